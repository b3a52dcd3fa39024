"""The report's page and its command line, on results that were never measured: every figure here
is invented and round. What a browser makes of the page is in test_report_browser.py."""

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from support import kernel_tree
from test_pictures import DENSITIES, LENGTHS, PRODUCTS, attention
from test_tables import CASES, ROOT, record, result_of, sources, tables

cli = tables.package_module("report.cli")
reading = tables.package_module("report.reading")
ceilings = tables.package_module("report.ceilings")
compare = tables.package_module("report.compare")
model_error = tables.package_module("report.model_error")
summary = tables.package_module("report.summary")
svg = tables.package_module("report.svg")
Table = tables.package_module("report.table").Table
as_csv = tables.package_module("report.table").as_csv
make_case = tables.package_module("bench.cases").make_case

MATMUL = make_case("matmul", {"m": 1000, "n": 1000, "k": 1000}).params
RICH = [*CASES[:4], *LENGTHS, *DENSITIES, *PRODUCTS]
VOID = ("area", "base", "br", "col", "hr", "img", "input", "link", "meta")


def product(m, ms, peers=None, **more):
    made = record("matmul", {**MATMUL, "m": m}, ms, {"cublaslt": 1.0} if peers is None else peers)
    made["ours"].update(more)
    return made


class Page(HTMLParser):
    """Elements as (name, attributes, depth-first text), and whether all were closed in turn."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.wrong = [], [], []
        self.feed(text)
        self.close()
        self.text = text
        if self.open:
            self.wrong.append(f"{self.open[-1][0]} is not closed")

    def handle_starttag(self, name, attributes):
        element = [name, dict(attributes), ""]
        self.elements.append(element)
        if name not in VOID:
            self.open.append(element)

    def handle_endtag(self, name):
        if not self.open or self.open[-1][0] != name:
            self.wrong.append(f"{name} is closed within {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def of(self, *names):
        return [element for element in self.elements if element[0] in names]

    def ids(self):
        return [given["id"] for _, given, _ in self.elements if "id" in given]

    def section(self, key):
        """What a section says; its key is the end of its heading's id."""
        return next(text for name, given, text in self.of("section")
                    if given.get("aria-labelledby", "").endswith(key))

    def csv(self, name):
        """The rows of a download."""
        href = next(given["href"] for _, given, _ in self.of("a")
                    if given.get("download", "").endswith(f"{name}.csv"))
        text = unquote(href.removeprefix("data:text/csv;charset=utf-8,"))
        return list(csv.reader(io.StringIO(text)))


@pytest.fixture
def make(tmp_path, capsys):
    """Writes results, runs the command, and reads what it made."""
    kernel_tree(tmp_path)

    def run(*results, against=(), options=()):
        paths = []
        for place, result in enumerate((*results, *against)):
            path = tmp_path / f"r{place}.json"
            path.write_text(result if isinstance(result, str) else json.dumps(result))
            paths.append(str(path))
        split = len(results)
        words = [*paths[:split], "-o", str(tmp_path / "page.html"), "--tree", str(tmp_path)]
        words += ["--against", *paths[split:]] if against else []
        run.status = cli.main([*words, *options])
        run.told = capsys.readouterr()
        page = tmp_path / "page.html"
        return Page(page.read_text(encoding="utf-8")) if page.exists() else None

    return run


def rich(**more):
    cases = json.loads(json.dumps(RICH))
    for case in cases:
        if "ms" in case["ours"]:
            case["ours"].update(predicted_ms=2 * case["ours"]["ms"], row="sm90_kernel_64",
                                joules_per_tflop=2.0)
            case["max_error"], case["error_budget"] = 0.25, 0.5
        for entry in case["peers"].values():
            if "ms" in entry:
                entry["joules_per_tflop"] = 4.0
    return {**result_of(cases), **more}


# ---- The page ----------------------------------------------------------------------------------


def check_form(page):
    """What holds of every page."""
    assert page.wrong == []
    ids = page.ids()
    assert len(ids) == len(set(ids))
    levels = [int(name[1]) for name, _, _ in page.of("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    for name, given, text in page.elements:
        for key in ("href", "src"):
            address = given.get(key, "")
            assert re.match(r"#|data:|$", address), (name, address)
            assert not address.startswith("#") or address[1:] in ids
        for key in ("aria-labelledby", "aria-describedby"):
            assert all(one in ids for one in given.get(key, "").split()), (name, given)
        assert not any(key.startswith("on") for key in given), (name, given)
        assert name != "th" or given.get("scope") in ("row", "col")
    counts = {name: len(page.of(name)) for name in ("table", "caption", "figure", "svg", "desc")}
    assert counts["table"] == counts["caption"] and counts["figure"] == counts["svg"]
    assert all(given.get("role") == "img" for _, given, _ in page.of("svg"))
    assert counts["desc"] == counts["svg"]
    for name in ("header", "nav", "main", "footer"):
        assert len(page.of(name)) == 1
    assert page.of("a")[0][1]["href"] == "#results" and "results" in ids


def test_the_page_is_whole_and_accessible(make):
    page = make(rich())
    assert make.status == 0 and "13 cases, Invented Card, 100 W" in make.told.out
    check_form(page)
    # Every picture has its figures as a table, folded away, and as CSV.
    downloads = {given["download"] for _, given, _ in page.of("a") if "download" in given}
    for _, given, _ in page.of("figure"):
        assert f"{given['id']}.csv" in downloads and f"{given['id']}-d-c" in page.ids()
    assert len(page.of("figure")) >= 9
    for part in ("Attention, head dimension 128, full", "Sparse products by block and density",
                 "Roofline", "Energy of attention", "Predicted against measured"):
        assert part in page.text


def test_equal_results_give_equal_bytes_and_no_date_of_writing(make):
    assert make(rich()).text == make(rich()).text
    assert not re.search(r"\d\.\d{9}", re.sub(r'href="data:[^"]*"', "", make(rich()).text))


def test_the_committed_page_is_small_enough_and_whole():
    text = (ROOT / "docs" / "report.html").read_text(encoding="utf-8")
    check_form(Page(text))
    assert len(text.encode()) < 1 << 20
    assert "http:" not in text and "https:" not in re.sub(r'href="data:[^"]*"', "", text)


def test_colours_can_be_told_from_what_is_behind_them():
    def luminance(colour):
        parts = [int(colour[i: i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(part * weight for part, weight in zip(parts, (0.2126, 0.7152, 0.0722)))

    def contrast(one, other):
        bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
        return (bright + 0.05) / (dark + 0.05)

    style = (ROOT / "python/tessera/report/style.css").read_text()
    themes = [dict(re.findall(r"--([\w-]+): (#\w+)", part))
              for part in re.findall(r":root \{(.*?)\}", style, re.DOTALL)]
    assert len(themes) == 2
    for theme, palette in zip(themes, (svg.LIGHT, svg.DARK), strict=True):
        for ground in ("paper", "soft"):
            for name in ("ink", "quiet", "link", "better", "worse"):
                assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
            assert all(contrast(colour, theme[ground]) >= 4.5 for colour in palette)
        assert contrast(theme["ink"], theme["warn"]) >= 4.5


def test_a_stale_file_is_called_so_by_name(make, tmp_path):
    page = make(rich())
    assert "Stale: r0.json, with 13 measurements" in page.section("invented-card-100-w")
    # So are the pictures that show some of it.
    old = "0" * 16
    hashes = sources.source_hashes(tmp_path)
    assert all(f"stale, measured at {old}" in text for _, _, text in page.of("figure"))
    page = make(rich(source_hash=hashes))
    assert "stale" not in page.text.lower()
    page = make(rich(source_hash={**hashes, "products": old}))
    said = {given["id"].removeprefix("invented-card-100-w-"): text
            for _, given, text in page.of("figure")}
    assert f"stale, measured at {old}" in said["product-density"]
    assert f"in part stale, measured at {old}" in said["roofline-chart"]
    assert "stale" not in said["attention-density"]


# ---- What is concluded -------------------------------------------------------------------------


def test_wins_and_losses_are_both_counted():
    cases = [product(1, 0.5), product(2, 2.0), product(3, 1.02, spread=0.1), product(4, 4.0),
             product(5, 1.0, peers={}), product(6, "no kernel")]
    assert summary.counts(cases) == {"quicker": 1, "even": 1, "slower": 2}
    assert summary.by_groups(cases).rows == [
        ["matmul", "sustained", 4, 1, 1, 2, "0.74x", "0.25x", "2.00x"]]
    lost = summary.losses(cases)
    assert [row[-1] for row in lost.rows] == ["0.25x", "0.50x"] and "4x1000" in lost.rows[0][0]
    many = summary.losses([product(m, 2.0 + m) for m in range(1, 13)])
    assert len(many.rows) == 10 and many.caption == "The 10 worst of 12 losses"


def test_dense_references_are_no_peers_to_win_against():
    made = record("spgemm", {**MATMUL, "block": 50}, 1.0, {"cublaslt_dense": 0.1, "cublaslt": 2.0})
    assert summary.counts([made]) == {"quicker": 1, "even": 0, "slower": 0}


def test_a_case_is_held_against_the_ceiling_that_limits_it():
    # 1 TFLOP: a second at 1 TFLOPS in bursts, two at half of it at the power limit; 1 TB at 2 TB/s.
    measured = {"copy_tbs": 2.0, "cublas_bf16": 1.0, "cublas_bf16_sustained": 0.5}
    one = record("matmul", MATMUL, 4000.0, {}, flops=1e12)
    one["bytes"] = 1e12
    light = ceilings.speed_of_light([one], measured).rows[0]
    assert light[4:6] == ["tensor cores", "50%"]
    one["state"] = "burst"
    assert ceilings.speed_of_light([one], measured).rows[0][4:6] == ["tensor cores", "25%"]
    one["bytes"] = 6e12
    assert ceilings.speed_of_light([one], measured).rows[0][4:6] == ["memory", "75%"]
    # The best rate of the tensor cores counts, whoever reached it.
    better = {**measured, "tensor_bf16_n256_tflops": 2.0, "tensor_bf16_n64_tflops": 1.5,
              "tensor_bf16_n256_sustained_tflops": 0.25}
    assert ceilings.tensor_rate(better, False) == (2.0, "tensor_bf16_n256_tflops")
    assert ceilings.tensor_rate(better, True) == (0.5, "cublas_bf16_sustained")
    # Clocks, watts and other types are no rates of bf16.
    more = {**better, "tensor_bf16_n256_mhz": 1800.0, "tensor_e4m3_n256_tflops": 9.0,
            "tensor_bf16_n256_sustained_watts": 700.0, "tensor_bf16_n64_rs_tflops": 3.0}
    assert ceilings.tensor_rate(more, False) == (3.0, "tensor_bf16_n64_rs_tflops")
    assert ceilings.tensor_rate(more, True) == ceilings.tensor_rate(better, True)
    one["params"] = {**MATMUL, "dtype": "f32"}
    assert ceilings.speed_of_light([one], measured).rows == []
    assert ceilings.speed_of_light([one], {}).rows == [] and ceilings.roofline([one], {}) is None


def test_the_best_that_a_card_showed_is_its_ceiling():
    first, second = result_of([]), result_of([])
    first["ceilings"] = {"copy_tbs": 3.0, "launch_us": 5.0, "tensor_bf16_n64_mhz": 1500.0}
    second["ceilings"] = {"copy_tbs": 0.0, "launch_us": 2.0, "tensor_bf16_n64_mhz": 1800.0}
    second["parts"] = [{"ceilings": {"copy_tbs": 4.0, "launch_us": 3.0}}]
    assert ceilings.best_of([first, second]) == {"copy_tbs": 4.0, "launch_us": 2.0,
                                                 "tensor_bf16_n64_mhz": 1500.0}


def test_every_ceiling_is_listed(make):
    measured = {"tensor_bf16_n256_tflops": 895.0, "tensor_bf16_n256_mhz": 1755.0,
                "tensor_bf16_n256_sustained_tflops": 640.0, "tensor_e4m3_n64_rs_tflops": 970.0,
                "l2_to_shared_tbs": 7.5, "launch_us": 1.25, "a_new_one": 3.0}
    page = make(rich(ceilings={**result_of([])["ceilings"], **measured}))
    assert page.csv("tensor")[1:] == [
        ["wgmma bf16 64x256x16", "895", "1755", "640", "", "", ""],
        ["wgmma e4m3 64x64x32, A in registers", "970", "", "", "", "", ""],
        ["cuBLAS bf16 8192x8192x8192", "2000", "", "1000", "", "", ""]]
    assert [row[1] for row in page.csv("ceilings")[1:]] == ["7.5", "9", "1.25", "3"]
    lines = tables.package_module("report.markdown").ceilings({"ceilings": measured})
    assert "| wgmma bf16 64x256x16 | 895 | 1755 | 640 |" in lines
    assert "| L2 to shared memory, TB/s | 7.5 |" in lines
    every_run = {"copy_tbs": 4.0, "cublas_bf16": 7.0, "cublas_bf16_sustained": 6.0}
    assert tables.package_module("report.markdown").ceilings({"ceilings": every_run}) == []


def test_both_roofs_are_drawn(make):
    page = make(rich())
    roofline = next(text for name, given, text in page.of("figure")
                    if given["id"].endswith("roofline-chart"))
    assert "2000 in bursts" in roofline and "1000 at the power limit" in roofline
    assert "memory 9.00 TB/s" in roofline
    assert len(page.of("svg")) == len(page.of("figure"))
    assert ["memory, copied, bytes read and written, TB/s", "9"] in page.csv("ceilings")


def test_registers_are_shown_where_a_profile_has_them(make, tmp_path):
    page = make(rich())
    assert page.csv("light")[1][-2:] == ["", ""] and "no profile of them was named" in page.text
    profile = {"schema": 1, "gpu": "Invented Card", "row": "sm90_kernel_64",
               "source_hash": "0" * 16, "launch": {"registers": 168, "shared_bytes": 232448}}
    path = tmp_path / "profile.json"

    def with_profile(**changes):
        path.write_text(json.dumps({**profile, **changes}))
        return make(rich(), options=["--profiles", str(path)])

    page = with_profile()
    assert page.csv("light")[1][-2:] == ["168", "232448"]
    assert "no profile of them was named" not in page.text
    # Of another card, or of kernels that were others, they are not these kernels'.
    for change in ({"gpu": "Other Card"}, {"source_hash": "1" * 16}, {"row": "sm90_other"},
                   {"row": None}):
        assert with_profile(**change).csv("light")[1][-2:] == ["", ""]
    for change in ({"schema": 2}, {"launch": {}}, {"gpu": 1}, {"launch": {
            "registers": -1, "shared_bytes": 1}}, {"launch": {"registers": "<b>"}}):
        with_profile(**change)
        assert make.status == 2 and "profile.json" in make.told.err


def test_errors_and_tests_are_told_by_file(make):
    skipped = {"name": "cpp.c", "outcome": "skipped", "detail": "no GPU"}
    second = {**result_of([]), "tests": [skipped]}
    page = make(rich(), second)
    said = page.section("right")
    for part in ("r0.json (stale): 1 passed, 1 failed", "r1.json (stale): 1 skipped",
                 "13 measurements were held", "the largest use of a budget is 50%"):
        assert part in said, part
    assert page.csv("tests")[1:] == [["cpp.b", "r0.json", "failed", ""],
                                     ["cpp.c", "r1.json", "skipped", "no GPU"]]
    assert page.csv("errors")[1][2:] == ["0.25", "0.5", "50%"]


def test_the_model_s_error_is_told_over_all_and_by_family():
    cases = [product(1, 1.0, predicted_ms=1.1, row="sm90_a_64"),
             product(2, 1.0, predicted_ms=0.7, row="sm90_a_128"),
             product(3, 1.0, predicted_ms=5.0, row="sm90_b"),
             product(4, 1.0, predicted_ms=None), product(5, "no kernel")]
    assert model_error.sentence(cases) == ("The median error over 3 cases is 30% of the measured "
                                           "time; 1 of them are within 20%.")
    assert [row[:3] for row in model_error.by_family(cases).rows] == [
        ["sm90_a", 2, "20%"], ["sm90_b", 1, "400%"]]
    assert [row[-1] for row in model_error.worst(cases).rows] == [5.0, 0.7, 1.1]


# ---- Two sets of results -----------------------------------------------------------------------


def test_changes_beyond_the_spreads_are_marked():
    old = [product(m, 1.0) for m in range(1, 6)] + [product(6, "no kernel"), product(8, 1.0)]
    new = [product(1, 2.0), product(2, 0.5), product(3, 1.1, spread=0.3), product(4, 1.0),
           product(5, "no kernel"), product(6, 1.0), product(7, 1.0)]
    table = compare.changes(new, old)
    words = {row[0].split()[1].split("x")[0]: row[2] for row in table.rows}
    assert words == {"1": "regression", "2": "improvement", "3": "within the spreads",
                     "4": "within the spreads", "5": "regression", "6": "improvement"}
    assert [row[2] for row in table.rows[:4]] == ["regression"] * 2 + ["improvement"] * 2
    assert list(table.marks.values()) == ["worse"] * 2 + ["better"] * 2
    assert compare.sentence(table) == ("6 cases are in both: 2 regressions and 2 improvements "
                                       "beyond both spreads.")
    assert "matmul 7x" in compare.only_in(new, old).rows[0][0]
    assert "matmul 8x" in compare.only_in(old, new).rows[0][0]
    burst = {**product(1, 5.0), "state": "burst"}
    assert compare.changes([burst], [product(1, 1.0)]).rows == []  # another state, another case


def test_the_comparison_is_a_part_of_the_page(make):
    page = make(result_of([product(1, 2.0), product(3, 1.0)]),
                against=[result_of([product(1, 1.0), product(2, 1.0)])])
    check_form(page)
    said = page.section("against")
    for part in ("1 regression and 0 improvements", "+100.0%", "Only in these results",
                 "Only in the earlier results", "r1.json"):
        assert part in said
    assert [given["class"] for _, given, _ in page.of("tr") if given.get("class")] == ["worse"]
    assert "Against earlier results" not in make(result_of([product(1, 2.0)])).text


def test_cards_are_compared_with_themselves_alone(make):
    other = {**result_of([])["gpu"], "name": "Other Card"}
    page = make(result_of([product(1, 2.0)]),
                against=[{**result_of([product(1, 1.0)]), "gpu": other}])
    assert "No earlier results of this card" in page.section("against")
    assert "also results of Other Card, 100 W" in page.text and "regression" not in page.text


def test_cards_have_parts_of_their_own(make):
    second = {**result_of([attention(1024, 0.02, {"fa4": 0.02})]),
              "gpu": {**result_of([])["gpu"], "name": "Invented-Card"}}
    third = {**second, "gpu": {**second["gpu"], "name": "Invented Card", "power_limit_w": 50.0}}
    page = make(result_of(LENGTHS), second, third)
    check_form(page)
    assert [text for _, _, text in page.of("h2")] == [
        "Invented Card, 100 W", "Invented-Card, 100 W", "Invented Card, 50 W"]
    first = page.section("invented-card-100-w")
    assert "410 at 4096" in first and "51.2 at 1024" not in first
    assert "51.2 at 1024" in page.section("invented-card-100-w-2")


def test_every_head_dimension_has_its_charts(make):
    page = make(result_of([attention(1024, 0.01, {}, d=96), attention(1024, 0.01, {}, causal=True),
                           attention(1024, 0.01, {}, d=192, dv=128)]))
    titles = [text for _, _, text in page.of("h4") if text.startswith("Attention, head")]
    assert titles == ["Attention, head dimension 96, full", "Attention, head dimension 128, causal",
                      "Attention, head dimension 192:128, full"]


def test_files_of_one_card_are_put_together_and_the_newest_counts(make):
    page = make({**result_of([product(1, 1.0)]), "date": "2002-01-01T00:00:00Z"},
                result_of([product(1, 5.0), product(2, 5.0)]))
    assert len(page.of("h2")) == 1
    assert [row[3] for row in page.csv("products-sustained")[1:]
            if row[2] == "tessera"] == ["1", "5"]


# ---- Bad input ---------------------------------------------------------------------------------


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
                        ([good, "-o", tmp_path / "no" / "page.html"], "there is no folder"),
                        ([good, "-o", tmp_path], "is a folder"),
                        ([good, "-o", page, "--against", tmp_path / "old.json"], "old.json"),
                        ([good, "-o", page, "--profiles", tmp_path / "k.json"], "k.json")):
        assert cli.main([str(word) for word in words]) == 2
        out, err = capsys.readouterr()
        assert told in err and err.count("\n") == 1 and out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]


def test_a_disk_that_fails_leaves_nothing_behind(make, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cli.os, "replace", full)
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
    bare = {**result_of([]), "ceilings": {}, "tests": [], "gpu": None, "source_hash": None,
            "commit": None}
    page = make(bare)
    check_form(page)
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


HOSTILE = ('<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "'onload='alert(1)",
           "</style><script>alert(1)</script>", "a&b]]>\x00\x1b\u202e", "=1+1", "-2", "@SUM(A1)",
           "javascript:alert(1)", "\t=cmd", "x" * 500)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_everywhere(make, name):
    result = rich()
    for case in result["cases"]:
        case["peers"] = {name: entry for entry in case["peers"].values()} or {
            name: {"unavailable": name}}
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


# ---- The programs ------------------------------------------------------------------------------


def test_the_module_runs_as_a_program(tmp_path):
    pytest.importorskip("tessera", reason="the package is not built")
    results = sorted(str(path) for path in (ROOT / "bench/results").glob("*.json"))
    made = tmp_path / "page.html"
    done = subprocess.run([sys.executable, "-m", "tessera.report", *results, "-o", str(made)],
                          cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert made.read_text() == (ROOT / "docs/report.html").read_text()
    told = subprocess.run([sys.executable, "-m", "tessera.report", "--help"], cwd=ROOT,
                          capture_output=True, text=True, env=os.environ).stdout
    for word in ("--against", "--profiles", "examples:", "exit\nstatus is 2"):
        assert word in told


def test_the_tables_program_keeps_the_page(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# T\n")
    (tmp_path / "bench/results").mkdir(parents=True)
    kernel_tree(tmp_path)
    made = tmp_path / "docs/report.html"

    def run(*words):
        return tables.main(["--root", str(tmp_path), *words])

    assert run("--check") == 0 and not made.exists()
    (tmp_path / "bench/results/card.json").write_text(json.dumps(result_of(CASES)))
    assert run("--check") == 1 and "docs/report.html: not what" in capsys.readouterr().out
    assert run() == 0 and run("--check") == 0
    made.write_text(made.read_text().replace("1.50x", "9.99x"))
    assert run("--check") == 1 and run() == 0 and "9.99x" not in made.read_text()
    (tmp_path / "bench/results/card.json").write_text("{")
    capsys.readouterr()
    assert run("--check") == 1 and "card.json: not a whole JSON file" in capsys.readouterr().out
