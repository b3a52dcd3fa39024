"""The report's page and its command line, on results that were never measured: every figure here
is invented and round. What a browser makes of the page is in test_report_browser.py,
what becomes of broken results in test_report_input.py."""

import json
import os
import re
import subprocess
import sys

import pytest
from report_pages import MATMUL, Page, check_form, maker, product, rich
from support import KERNELS, OTHER_ROW, kernel_tree
from test_pictures import LENGTHS, attention
from test_tables import CASES, ROOT, machine_code, record, result_of, tables

from tessera.bench import profiles

ceilings = tables.package_module("report.ceilings")
compare = tables.package_module("report.compare")
model_error = tables.package_module("report.model_error")
scatter = tables.package_module("report.scatter")
summary = tables.package_module("report.summary")
svg = tables.package_module("report.svg")


@pytest.fixture
def make(tmp_path, capsys):
    return maker(tmp_path, capsys)


# ---- The page ----------------------------------------------------------------------------------


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


def test_the_page_of_the_committed_results_is_small_enough_and_whole(tmp_path):
    assert tables.main(["--report", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    check_form(Page(text))
    cards = re.split(r'(?=<section [^>]*class="card-part")', text)
    assert len(cards) > 1 and all(len(card.encode()) < 1 << 20 for card in cards)
    assert "http:" not in text and "https:" not in re.sub(r'href="data:[^"]*"', "", text)


def test_colours_can_be_told_from_what_is_behind_them():
    def luminance(colour):
        parts = [int(colour[i: i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(part * weight for part, weight in zip(parts, (0.2126, 0.7152, 0.0722),
                                                         strict=True))

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


def test_stale_cases_are_counted_by_file_and_in_every_picture(make):
    assert "stale" not in make(rich()).text.lower()
    old = rich()
    products = [case for case in old["cases"] if case["op"] != "attention"]
    for case in products:
        case["ours"]["machine_code"] = "0" * 16
    page = make(old)
    count = f"{len(products)} of {len(old['cases'])} cases are stale: their kernels have changed"
    assert f"r0.json: {count} since." in page.section("invented-card-100-w")
    said = {given["id"].removeprefix("invented-card-100-w-"): text
            for _, given, text in page.of("figure")}
    assert "3 of 3 cases are stale" in said["product-density"]
    assert count in said["roofline-chart"]
    assert "stale" not in said["attention-density"]
    assert "0" * 16 not in page.text


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


def test_labels_of_roofs_have_room_though_all_cases_lie_beyond_the_ridge():
    guides = ceilings.roofs({"copy_tbs": 3.0, "cublas_bf16": 930.0, "cublas_bf16_sustained": 850.0})
    points = [scatter.Point(400.0, 500.0, ""), scatter.Point(4000.0, 700.0, "")]
    drawn = scatter.render(scatter.Scatter("", [], "", "", [scatter.Group("", 0, points)], guides))
    ends = {said: float(x) for x, said in re.findall(r'x="([\d.]+)" y="[\d.]+">([^<]*)<',
                                                     "".join(drawn.body))}
    for label in ("930 in bursts", "850 at the power limit"):
        assert ends[label] - 6 * len(label) > scatter.LEFT


def test_registers_are_shown_where_a_profile_has_them(make, tmp_path):
    page = make(rich())
    assert page.csv("light")[1][-2:] == ["", ""] and "no profile of them was named" in page.text
    values = {"gpu__time_duration.sum": 1e-3, "launch__registers_per_thread": 168,
              "launch__shared_mem_per_block_dynamic": 232448}
    extract = profiles.extract_of([{"kernel": "kernel<64>", "grid": "(1, 1, 1)",
                                    "block": "(384, 1, 1)", "values": values}])
    profile = {"schema": 1, "date": "2026-11-21T00:00:00Z", "gpu": "Invented Card",
               "label": "any product", "op": "matmul", "params": {"dtype": "bf16"},
               "row": OTHER_ROW, "commit": None, "ncu": "ncu",
               "machine_code": machine_code.code_of(KERNELS, OTHER_ROW, "bf16"),
               "clocks": "none", "useful_tflops": None, **extract}
    path = tmp_path / "profile.json"

    def with_profile(**changes):
        path.write_text(json.dumps({**profile, **changes}))
        return make(rich(), options=["--profiles", str(path)])

    page = with_profile()
    assert make.status == 0, make.told.err
    assert page.csv("light")[1][-2:] == ["168", "232448"]
    assert "no profile of them was named" not in page.text
    # Of another card, or of kernels that were others, they are not these kernels'.
    for change in ({"gpu": "Other Card"}, {"machine_code": "1" * 16}, {"row": "sm90_other"},
                   {"machine_code": None}, {"row": None}):
        assert with_profile(**change).csv("light")[1][-2:] == ["", ""]
    for change in ({"schema": 2}, {"launch": {}}, {"gpu": 1}, {"stalls": 3},
                   {"launch": {**extract["launch"], "registers": -1}},
                   {"launch": {**extract["launch"], "registers": "<b>"}}):
        with_profile(**change)
        assert make.status == 2 and "profile.json" in make.told.err


def test_errors_and_tests_are_told_by_file(make):
    skipped = {"name": "cpp.c", "outcome": "skipped", "detail": "no GPU"}
    second = {**result_of([]), "tests": [skipped]}
    page = make(rich(), second)
    said = page.section("right")
    for part in ("r0.json: 1 passed, 1 failed", "r1.json: 1 skipped",
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


# ---- The programs ------------------------------------------------------------------------------


def test_the_module_runs_as_a_program(tmp_path):
    pytest.importorskip("tessera", reason="the package is not built")
    results = sorted(str(path) for path in (ROOT / "bench/results").glob("*.json"))
    profiles = sorted(str(path) for path in (ROOT / "bench/results/profiles").glob("*.json"))
    made, same = tmp_path / "page.html", tmp_path / "same.html"
    done = subprocess.run([sys.executable, "-m", "tessera.report", *results, "-o", str(made),
                           *(["--profiles", *profiles] if profiles else [])],
                          check=False, cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert tables.main(["--report", str(same)]) == 0 and made.read_text() == same.read_text()
    told = subprocess.run([sys.executable, "-m", "tessera.report", "--help"], check=False,
                          cwd=ROOT, capture_output=True, text=True, env=os.environ).stdout
    for word in ("--against", "--profiles", "examples:", "exit status is 2"):
        assert word in told


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
    assert "1.50x" in made.read_text()
    made.unlink()
    (tmp_path / "bench/results/card.json").write_text("{")
    assert run() == 2 and "card.json: not a whole JSON file" in capsys.readouterr().err
    assert not made.exists()
