"""The report's page and its command line, on results that were never measured: every figure here
is invented and round."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from invented import (
    CASES,
    DENSE,
    DENSITIES,
    EAGER,
    GPU,
    HOST,
    LENGTHS,
    PRODUCTS,
    SPARSE,
    attention,
    record,
    result_of,
    tables,
)
from support import KERNELS, OTHER_ROW, ROOT, kernel_tree

cli, card_tables = tables.report, tables.card_tables
RICH = [*CASES[:4], *LENGTHS, *DENSITIES, *PRODUCTS]
HOSTILE = ('<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "'onload='alert(1)",
           "</style><script>alert(1)</script>", "a&b]]>\x00\x1b\u202e", "x" * 500)


def product(m, ms, peers=None, **more):
    made = record("matmul", {**DENSE, "m": m}, ms, {"cublaslt": 1.0} if peers is None else peers)
    made["ours"].update(more)
    return made


def rich(**more):
    cases = json.loads(json.dumps(RICH))
    for case in cases:
        if "ms" in case["ours"]:
            code = tables.machine_code.code_of(KERNELS, OTHER_ROW, case["params"]["dtype"])
            case["ours"].update(predicted_ms=2 * case["ours"]["ms"], row=OTHER_ROW,
                                machine_code=code, joules_per_tflop=2.0)
            case["max_error"], case["error_budget"] = 0.25, 0.5
        for entry in case["peers"].values():
            if "ms" in entry:
                entry["joules_per_tflop"] = 4.0
    return {**result_of(cases), **more}


class Page(HTMLParser):
    """What a page holds: elements as (name, attributes), texts of h1 to h3, and table rows as
    lists of cells."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.elements, self.headings, self.rows = text, [], [], [], []
        self.feed(text)
        assert self.open == [], "not closed"

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name != "meta":
            self.open.append(name)
        if name == "tr":
            self.rows.append([])
        elif name in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open[-1:] and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)
        elif self.open[-1:] and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def check(self):
        """What holds of every page: whole, and nothing runs or comes from elsewhere."""
        ids = [given["id"] for _, given in self.elements if "id" in given]
        assert len(ids) == len(set(ids)) and self.text.count("<h1>") == 1
        for name, given in self.elements:
            assert name not in ("script", "img", "link", "iframe") and "src" not in given
            assert given.get("href", "#")[0] == "#" and given.get("href", "#")[1:] in ("", *ids)
            assert not any(key.startswith("on") for key in given)
            assert name != "svg" or all(one in ids for one in given["aria-labelledby"].split())
        assert "url(" not in self.text and "@import" not in self.text
        return self

    def row(self, *begin):
        return next(row for row in self.rows if row[: len(begin)] == list(begin))


@pytest.fixture
def make(tmp_path, capsys):
    """Writes results, runs the command, and reads what it made."""
    kernel_tree(tmp_path)

    def run(*results):
        paths = []
        for place, result in enumerate(results):
            path = tmp_path / f"r{place}.json"
            path.write_text(result if isinstance(result, str) else json.dumps(result))
            paths.append(str(path))
        run.status = cli.main([*paths, "-o", str(tmp_path / "page.html"), "--tree", str(tmp_path)])
        run.told = capsys.readouterr()
        page = tmp_path / "page.html"
        return Page(page.read_text(encoding="utf-8")).check() if page.exists() else None

    return run


# ---- The page


def test_the_page_tells_all_and_the_same_each_time(make):
    page = make(rich(host=[HOST], eager=[EAGER]))
    assert make.status == 0 and "13 cases, Invented Card, 100 W" in make.told.out
    assert page.headings == [
        "tessera: what was measured", "Invented Card, 100 W", "At a glance", "Attention",
        "Products", "Density from which a dense product is faster",
        "Predicted against measured time", "Calls in C++", "Eager calls in Python",
        "The card and the tests: r0.json"]
    for part in ("Attention, head dimension 128, full", "Sparse products: speed-up over dense",
                 "Block-sparse attention: speed-up", "of the dense rate", "Tests: 1 passed",
                 "13 measurements were held against double precision; the largest use of an error "
                 "budget is 50%.", "driver 1.2, CUDA 99.0, 2001-02-03, commit abcdef0"):
        assert part in page.text, part
    assert page.row("cpp.b") == ["cpp.b", "failed", ""]
    assert make(rich(host=[HOST], eager=[EAGER])).text == page.text


def test_stale_cases_are_counted_by_file_and_in_every_picture(make):
    assert "stale" not in make(rich()).text
    old = rich()
    products = [case for case in old["cases"] if case["op"] != "attention"]
    for case in products:
        case["ours"]["machine_code"] = "0" * 16
    page = make(old)
    count = f"{len(products)} of {len(old['cases'])} cases are stale: their kernels have changed"
    assert f"r0.json: {count} since;" in page.text
    figures = dict(re.findall(r"<title [^>]*>([^<]*)</title>\n<desc [^>]*>([^<]*)", page.text))
    stale = {title for title, said in figures.items() if "3 of 3 cases are stale" in said}
    assert stale == {"Sparse products: speed-up over dense cuBLASLt"}
    assert "0" * 16 not in page.text


def test_cards_have_parts_of_their_own(make):
    second = {**result_of([attention(1024, 0.02, {"fa4": 0.02})]),
              "gpu": {**GPU, "name": "Invented-Card"}}
    third = {**second, "gpu": {**second["gpu"], "name": "Invented Card", "power_limit_w": 50.0}}
    page = make(result_of(LENGTHS), second, third)
    names = ["Invented Card, 100 W", "Invented-Card, 100 W", "Invented Card, 50 W"]
    assert [text for text in page.headings if text in names] == names
    first, other, _ = page.text.split("<h2")[1:]
    assert "410 at 4096" in first and "51.2 at 1024" not in first and "51.2 at 1024" in other


def test_every_head_dimension_has_its_charts(make):
    page = make(result_of([attention(1024, 0.01, {}, d=96), attention(1024, 0.01, {}, causal=True),
                           attention(1024, 0.01, {}, d=192, dv=128)]))
    assert re.findall(r">(Attention, head [^<]*)</title>", page.text) == [
        "Attention, head dimension 96, full", "Attention, head dimension 128, causal",
        "Attention, head dimension 192:128, full"]


def test_files_of_one_card_are_put_together_and_the_newest_counts(make):
    page = make({**result_of([product(1, 1.0)]), "date": "2002-01-01T00:00:00Z"},
                result_of([product(1, 5.0), product(2, 5.0)]))
    assert page.text.count("<h2") == 1
    rates = {row[0]: row[2] for row in page.rows if row[1] == "GB/s"}
    assert rates == {"matmul 1x1000x1000 bf16": "6", "matmul 2x1000x1000 bf16": "1.2"}


@pytest.mark.parametrize("cases", [
    [],
    [product(1, 1.0, peers={})],
    [product(1, "no kernel", peers={"cublaslt": "absent"})],
    [attention(1024, 0.01, {})],
    [{**record("list_blocks", {"s": 64, "block_q": 8, "pattern": "random", "density": 0.5}, 1.0, {},
               flops=0), "bytes": 0}],
    [record("matmul", DENSE, 1.0, {"cublaslt": 1.0}, flops=0)],
])
def test_few_cases_make_a_page_too(make, cases):
    for more in ({}, {"gpu": None, "ceilings": {}, "tests": []}):
        page = make({**result_of(cases), **more})
        assert make.status == 0
        assert not re.search(r"\b(nan|inf|None)\b", page.text.split("</style>")[1])


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
    result["host"] = [{**HOST, "call": name, "row": name}]
    make(result)  # which checks its elements
    assert make.status == 0


# ---- What is concluded


def test_wins_and_losses_are_both_counted():
    cases = [product(1, 0.5), product(2, 2.0), product(3, 1.02, spread=0.1), product(4, 4.0),
             product(5, 1.0, peers={}), product(6, "no kernel")]
    assert card_tables.counts(cases) == {"faster": 1, "even": 1, "slower": 2}
    assert card_tables.by_groups(cases).rows == [
        ["matmul", "sustained", 4, 1, 1, 2, "0.74x", "0.25x", "2.00x"]]
    lost = card_tables.losses(cases)
    assert [row[-1] for row in lost.rows] == ["0.25x", "0.50x"] and "4x1000" in lost.rows[0][0]
    many = card_tables.losses([product(m, 2.0 + m) for m in range(1, 13)])
    assert len(many.rows) == 10 and many.caption == "The 10 worst of 12 losses"


def test_dense_references_are_no_peers_to_win_against():
    made = record("spgemm", {**SPARSE, "density": 1.0}, 1.0,
                  {"cublaslt_dense": 0.1, "cublaslt": 2.0})
    assert card_tables.counts([made]) == {"faster": 1, "even": 0, "slower": 0}


def test_the_model_s_error_is_told_over_all_and_by_family():
    cases = [product(1, 1.0, predicted_ms=1.1, row="sm90_a_64"),
             product(2, 1.0, predicted_ms=0.7, row="sm90_a_128"),
             product(3, 1.0, predicted_ms=5.0, row="sm90_b"),
             product(4, 1.0, predicted_ms=None), product(5, "no kernel")]
    sentence, families, _, worst = card_tables.predictions(cases)
    assert sentence == ("The median error over 3 cases is 30% of the measured time; 1 of them are "
                        "within 20%.")
    assert [row[:3] for row in families.rows] == [["sm90_a", 2, "20%"], ["sm90_b", 1, "400%"]]
    assert [row[-1] for row in worst.rows] == [5.0, 0.7, 1.1]


# ---- What cannot be read or written


def spoilt(place, value):
    """A result with something else at that place; without it where that is KeyError."""
    result = json.loads(json.dumps(result_of([product(1, 1.0)])))
    inside = result
    for step in place[:-1]:
        inside = inside[step]
    if value is KeyError:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return result


CASE = ["cases", 0]
WHOLE = json.dumps(result_of(CASES))


@pytest.mark.parametrize("result, told", [
    (spoilt(["schema"], 2), "schema: expected 1"),
    (WHOLE[: len(WHOLE) // 2], "not a whole JSON file"),
    ("", "not a whole JSON file"),
    ("[" * 100000, "not a whole JSON file"),
    ("[]", "expected object"),
    ("{}", "'schema' is missing"),
    (json.dumps(spoilt([*CASE, "ours", "ms"], float("nan"))), "ours.ms: expected a finite number"),
    (WHOLE.replace('"ms": 1.0', '"ms": 1e999'), "expected a finite number"),
    (WHOLE.replace('"ms": 1.0', f'"ms": 1{"0" * 400}'), "expected a finite number"),
    (spoilt([*CASE, "ours", "ms"], -1.0), "at least 0"),
    (spoilt([*CASE, "ours", "ms"], 0), "more than 0"),
    (spoilt([*CASE, "ours", "ms"], 1e-320), "the time says"),
    (spoilt([*CASE, "ours", "ms"], KeyError), "'ms' is missing"),
    (spoilt([*CASE, "ours", "ms"], "fast"), "expected number"),
    (spoilt([*CASE, "ours", "tflops"], 7.0), "the time says"),
    (spoilt([*CASE, "op"], "<script>"), "expected one of"),
    (spoilt([*CASE, "params", "m"], KeyError), "m is missing"),
    (spoilt([*CASE, "params", "m"], "<b>"), "expected a whole number"),
    (spoilt([*CASE, "params", "colour"], "red"), "no parameter 'colour'"),
    (spoilt([*CASE, "params", "transpose"], KeyError), "a parameter is missing"),
    (spoilt(["gpu", "name"], None), "gpu.name"),
    (spoilt(["date"], "yesterday"), "date"),
    (spoilt(["more"], 1), "more: is not in the schema"),
    (spoilt(["tests", 0, "outcome"], "maybe"), "outcome"),
    (spoilt([*CASE, "state"], "idle"), "state"),
    (spoilt([*CASE, "ours", "machine_code"], "xyz"), "machine_code"),
    (spoilt([*CASE, "useful_flops"], True), "useful_flops"),
    (spoilt([*CASE, "peers", "cublaslt"], {"unavailable": ""}), "cublaslt"),
    (spoilt(["ceilings", "copy_tbs"], float("-inf")), "finite"),
    (result_of([product(1, 1.0)] * 2), "comes twice"),
    (result_of([{**CASES[0], "params": {**CASES[0]["params"], "density": -0.5}}]), "density"),
    (result_of([{**CASES[0], "params": {**CASES[0]["params"], "density": "<i>"}}]), "params"),
])
def test_what_cannot_be_read_is_told_and_the_page_stays(make, result, told):
    before = make(result_of(CASES)).text
    assert make(result_of(CASES), result).text == before  # what is there stays
    assert make.status == 2 and make.told.out == ""
    assert make.told.err.startswith("tessera.report: ") and make.told.err.count("\n") == 1
    assert "r1.json" in make.told.err and told in make.told.err


def test_files_and_folders_that_are_not_there(tmp_path, capsys):
    good = tmp_path / "good.json"
    good.write_text(json.dumps(result_of(CASES)))
    page = tmp_path / "page.html"
    for words, told in (([tmp_path / "none.json", "-o", page], "none.json: No such file"),
                        ([tmp_path, "-o", page], "Is a directory"),
                        ([good, "-o", tmp_path / "no" / "page.html"], "--output: cannot write"),
                        ([good, "-o", tmp_path], "it is a folder"),
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


# ---- The programs


def test_both_programs_make_one_small_page_of_the_committed_results(tmp_path):
    same = tmp_path / "same.html"
    assert tables.main(["--report", str(same)]) == 0
    text = same.read_text(encoding="utf-8")
    Page(text).check()
    assert len(text.encode()) < 1 << 20
    pytest.importorskip("tessera", reason="the package is not built")
    results = [str(path) for folder in ("bench/results", "bench/results/shapes")
               for path in sorted((ROOT / folder).glob("*.json"))]
    made = tmp_path / "page.html"
    done = subprocess.run([sys.executable, "-m", "tessera.report", *results, "-o", str(made)],
                          check=False, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert made.read_text(encoding="utf-8") == text


def test_the_tables_program_writes_the_page_of_the_tree_s_results(tmp_path, capsys):
    (tmp_path / "bench/results").mkdir(parents=True)
    kernel_tree(tmp_path)
    made = tmp_path / "report.html"

    def run():
        return tables.main(["--root", str(tmp_path), "--report", str(made)])

    assert run() == 1 and "no results in bench/results" in capsys.readouterr().out
    (tmp_path / "bench/results/card.json").write_text(json.dumps(result_of(CASES)))
    (tmp_path / "bench/results/card-quick.json").write_text("{")  # a short look: not a result
    assert run() == 0 and "6 cases, Invented Card" in capsys.readouterr().out
    page = Page(made.read_text()).check()
    assert page.row("matmul 1x1000x1000 bf16")[3] == "cublaslt 1.50x"
    made.unlink()
    (tmp_path / "bench/results/card.json").write_text("{")
    assert run() == 2 and "card.json: not a whole JSON file" in capsys.readouterr().err
    assert not made.exists()
