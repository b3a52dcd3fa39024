"""What the report makes of results that are broken, poor or hostile."""

import csv
import io
import json
import os
import re
import stat
from urllib.parse import unquote

import pytest
from report_pages import HOSTILE, MATMUL, RICH, check_form, cli, make_case, maker, product, rich
from test_pictures import attention
from test_tables import CASES, ROOT, record, result_of, tables

Table = tables.package_module("report.table").Table
as_csv = tables.package_module("report.table").as_csv


@pytest.fixture
def make(tmp_path, capsys):
    return maker(tmp_path, capsys)


def spoilt(change, cases=None):
    result = json.loads(json.dumps(result_of(cases or [product(1, 1.0)])))
    change(result)
    return result


CASE = ["cases", 0]


def put(place, value):
    """Spoils what lies at a place."""
    def change(result):
        inside = result
        for step in place[:-1]:
            inside = inside[step]
        if value is KeyError:
            del inside[place[-1]]
        else:
            inside[place[-1]] = value
    return spoilt(change)


WHOLE = json.dumps(result_of(CASES))


@pytest.mark.parametrize("result, told", [
    (put(["schema"], 2), "schema: expected 1"),
    (put(["schema"], "<script>"), "schema: expected 1"),
    (WHOLE[: len(WHOLE) // 2], "not a whole JSON file"),
    ("", "not a whole JSON file"),
    ("\x00\x01", "not a whole JSON file"),
    ("[" * 100000, "not a whole JSON file"),
    ("[]", "expected object"),
    ("null", "expected object"),
    ("{}", "'schema' is missing"),
    (json.dumps(put([*CASE, "ours", "ms"], float("nan"))), "ours.ms: expected a finite number"),
    (WHOLE.replace('"ms": 1.0', '"ms": 1e999'), "expected a finite number"),
    (WHOLE.replace('"ms": 1.0', f'"ms": 1{"0" * 400}'), "expected a finite number"),
    (put([*CASE, "ours", "ms"], -1.0), "at least 0"),
    (put([*CASE, "ours", "ms"], 0), "more than 0"),
    (put([*CASE, "ours", "ms"], 1e-320), "the time says"),
    (put([*CASE, "ours", "ms"], KeyError), "'ms' is missing"),
    (put([*CASE, "ours", "ms"], "fast"), "expected number"),
    (put([*CASE, "ours", "tflops"], 7.0), "the time says"),
    (put([*CASE, "bytes"], -6), "at least 0"),
    (put([*CASE, "op"], "<script>"), "expected one of"),
    (put([*CASE, "state"], "hot"), "expected one of"),
    (put([*CASE, "params", "m"], KeyError), "m is missing"),
    (put([*CASE, "params", "m"], "<b>"), "expected a whole number"),
    (put([*CASE, "params", "colour"], "red"), "no parameter 'colour'"),
    (put([*CASE, "params", "transpose"], KeyError), "a parameter is missing"),
    (put(["gpu", "name"], None), "gpu.name"),
    (put(["ceilings", "copy_tbs"], float("-inf")), "finite"),
    (spoilt(lambda result: result["cases"].append(result["cases"][0])), "comes twice"),
    (spoilt(lambda result: result["cases"][0]["params"].update(density=-0.5),
            [json.loads(json.dumps(CASES[0]))]), "density"),
    (spoilt(lambda result: result["cases"][0]["params"].update(density="<i>"),
            [json.loads(json.dumps(CASES[0]))]), "params"),
])
def test_what_cannot_be_read_is_told_and_nothing_is_written(make, tmp_path, result, told):
    assert make(result_of(CASES), result) is None
    assert make.status == 2 and make.told.out == ""
    assert make.told.err.startswith("tessera.report: ") and make.told.err.count("\n") == 1
    assert "r1.json" in make.told.err and told in make.told.err
    assert not [path for path in tmp_path.iterdir() if "report" in path.name]


def test_a_page_that_is_there_stays_when_the_next_cannot_be_made(make, tmp_path):
    before = make(result_of(CASES)).text
    assert make("{").text == before and make.status == 2
    assert make(result_of(CASES), against=["{"]).text == before and make.status == 2


def test_files_and_folders_that_are_not_there(tmp_path, capsys):
    good = tmp_path / "good.json"
    good.write_text(json.dumps(result_of(CASES)))
    page = tmp_path / "page.html"
    for words, told in (([tmp_path / "none.json", "-o", page], "none.json: No such file"),
                        ([tmp_path, "-o", page], "Is a directory"),
                        ([good, "-o", tmp_path / "no" / "page.html"], "--output: cannot write"),
                        ([good, "-o", tmp_path], "it is a folder"),
                        ([good, "-o", page, "--against", tmp_path / "old.json"], "old.json"),
                        ([good, "-o", page, "--profiles", tmp_path / "k.json"], "k.json"),
                        ([good, "-o", page, "--tree", tmp_path], "--tree: expected a folder of")):
        assert cli.main([str(word) for word in words]) == 2
        out, err = capsys.readouterr()
        assert told in err and err.count("\n") == 1 and out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]


def test_a_disk_that_fails_leaves_nothing_behind(make, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert make(result_of(CASES)) is None
    assert make.status == 2 and "No space left on device" in make.told.err
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".json"}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_nobody_may_write_into(tmp_path, capsys):
    good, folder = tmp_path / "good.json", tmp_path / "locked"
    good.write_text(json.dumps(result_of(CASES)))
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert cli.main([str(good), "-o", str(folder / "page.html")]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_what_is_missing_is_a_sentence_and_no_empty_picture(make):
    bare = {**result_of([]), "ceilings": {}, "tests": [], "gpu": None, "commit": None,
            "toolkit": {"python": "3.12", "cuda": "13.0"}}
    page = make(bare)
    check_form(page)
    # Of a machine without a GPU nothing is said of GPUs.
    assert [text for name, given, text in page.of("p") if given.get("class") == "facts"] == [
        bare["date"][:10]]
    assert {row[0] for row in page.csv("machine")[1:]} == {
        "file", "date", "CPU", "threads", "python", "cuda", "cases", "tests"}
    assert make.status == 0 and page.of("figure") == [] and page.of("svg") == []
    for key, said in (("glance", "No case was measured here."), ("lengths", "No sustained"),
                      ("densities", "No sparse case"), ("blocks", "No random patterns"),
                      ("roofline", "no roofline"), ("energy", "No attention"),
                      ("light", "Without ceilings"), ("model", "No case has"),
                      ("right", "hold no tests"), ("cases", "There are none")):
        assert said in page.section(key), key
    assert "Invented CPU" in page.section("environment")


@pytest.mark.parametrize("cases", [
    [product(1, 1.0, peers={})],
    [product(1, 1.0, peers={"cublaslt": "absent"})],
    [product(1, "no kernel")],
    [product(1, "no kernel", peers={"cublaslt": "absent"})],
    [attention(1024, 0.01, {})],
    [{**record("list_blocks", make_case("list_blocks", {
        "s": 64, "block_q": 8, "pattern": "random", "density": 0.5}).params, 1.0, {}, flops=0),
      "bytes": 0}],
    [record("matmul", MATMUL, 1.0, {"cublaslt": 1.0}, flops=0)],
    *([case] for case in RICH),
])
def test_few_cases_make_a_page_too(make, cases):
    page = make({**result_of(cases)})
    assert make.status == 0
    check_form(page)
    assert not re.search(r"\b(nan|inf|None)\b", re.sub("<style>.*</style>", "", page.text,
                                                       flags=re.DOTALL))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_everywhere(make, name):
    result = rich()
    for case in result["cases"]:
        *_, last = {"unavailable": name}, *case["peers"].values()
        case["peers"] = {name: last}
        if "ms" in case["ours"]:
            case["ours"]["row"] = name
        for entry in case["peers"].values():
            if "version" in entry:
                entry["version"] = name
    result["gpu"]["name"] = result["cpu"]["name"] = result["gpu"]["driver"] = name
    result["toolkit"] = {"python": name, name: name, "cuda": name}
    result["ceilings"][name] = 1.0
    result["tests"] = [{"name": name, "outcome": "failed", "detail": name}]
    result["host"] = [{"op": "matmul", "call": name, "us": 1.0, "spread": 0.0, "with_plan_us": 1.0,
                       "row": name}]
    page = make(result, against=[result])
    assert make.status == 0
    check_form(page)
    assert len(page.of("script")) == 1 and page.of("img") == []
    assert page.of("script")[0][2] == (ROOT / "python/tessera/report/script.js").read_text()
    assert {key for _, given, _ in page.elements for key in given} <= {
        "aria-hidden", "aria-label", "aria-labelledby", "aria-describedby", "aria-live", "charset",
        "class", "content", "cx", "cy", "d", "download", "fill-opacity", "height", "href",
        "http-equiv", "id", "lang", "name", "r", "rel", "role", "rx", "scope", "tabindex",
        "transform", "value", "viewbox", "width", "x", "y"}
    for _, given, _ in page.of("a"):
        if "download" in given:
            assert re.fullmatch(r"[\w-]+\.csv", given["download"])
            text = unquote(given["href"].removeprefix("data:text/csv;charset=utf-8,"))
            cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
            assert not [cell for cell in cells
                        if cell.lstrip()[:1] in tuple("=+-@") and not is_number(cell)]


def test_attributes_are_escaped_too():
    tag = tables.package_module("report.markup").tag
    made = tag("a", '<b>"', aria_label='">\'<script>\n')
    assert made == '<a aria-label="&quot;&gt;&#x27;&lt;script&gt; ">&lt;b&gt;&quot;</a>'
    assert tag("p", made, "&") == f"<p>{made}&amp;</p>"


def is_number(text):
    try:
        return text == text.strip() and float(text) is not None
    except ValueError:
        return False


def test_cells_that_spreadsheets_would_run_are_texts():
    table = Table(["=a", "b"], [["=1+1", -2.5], ["+x", 3], ["-y", None], ["@z", 1 / 3],
                                ["\t=t", ""], ['say "x", y', "-"], ["fine", "a=b"]])
    assert list(csv.reader(io.StringIO(as_csv(table)))) == [
        ["'=a", "b"], ["'=1+1", "-2.5"], ["'+x", "3"], ["'-y", ""], ["'@z", "0.333333"],
        ["' =t", ""], ['say "x", y', "'-"], ["fine", "a=b"]]
