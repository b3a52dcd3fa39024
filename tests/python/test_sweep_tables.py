"""The tables and the picture of shapes drawn at random: every figure here is invented."""

import itertools
import json
import re
from xml.etree import ElementTree

import pytest
from invented import GPU, put, record, result_of, row_of, run, tables
from support import PRODUCT_ROW, ROOT, change_kernel, marked, page_tree

sweep_tables, pictures, markdown = tables.sweep_tables, tables.pictures, tables.markdown
page, reading = (tables.package_module(f"report.{name}") for name in ("page", "reading"))
ratios, results, schema = (tables.bench_module(name) for name in ("ratios", "results", "schema"))
SVG = "{http://www.w3.org/2000/svg}"


def shape(m, ratio, state="graph", op="matmul", **more):
    """A shape with this ratio; 0: without a kernel, None: without an alternative."""
    params = {"m": m, "n": 8, "k": 8, "block": 8, "pattern": "random", "density": 0.5}
    params |= {"side": "b"} if op == "linear" else {}
    if op == "matmul":
        params = {"m": m, "n": 8, "k": 8}
    if op == "attention":
        params = {"s": m}
    peers = {"fast": "absent"} if ratio is None else {"fast": ratio or 1.0, "slow": 99.0}
    made = record("bsr_matmul" if op == "linear" else op, params,
                  "no kernel for it" if ratio == 0 else 1.0, peers, state=state)
    return {**made, **more}


def swept(op, cases, seed=1, **more):
    """A sweep's file."""
    found = ratios.summary_of(cases, "graph") or {"count": 1, "ratio": {}}
    return {**result_of(cases), "sweeps": [
        {"op": op, "state": "graph", "seed": seed, **found}], **more}


def told(name, cases):
    return markdown.lines(getattr(sweep_tables, name)(cases))


SHAPES = [shape(m, m / 10) for m in range(1, 21)]
SHAPES += [shape(m, 5.0, state="burst") for m in range(1, 20)] + [shape(20, None, state="burst")]


def test_distributions_are_of_all_shapes_with_an_alternative():
    lines = told("distribution", [*SHAPES, shape(3, 2.0, op="linear"),
                                  shape(3, 0, op="attention"), shape(5, 4.0, op="attention")])
    assert row_of(lines, "shapes of") == ["shapes of", "state", "shapes", "without an alternative",
                                          *ratios.PERCENT, "below 0.95", "in both states"]
    assert row_of(lines, "| matmul | graph") == ["matmul", "graph", "20", "", "0.10", "0.20",
                                                 "0.57", "1.05", "1.52", "2.00", "9", "0"]
    assert row_of(lines, "| matmul | eager")[2:5] == ["19", "1", "5.00"]
    both = [shape(1, 0.9), shape(1, 0.8, state="burst"), shape(2, 0.7), shape(2, 1, state="burst")]
    assert [row_of(told("distribution", both), f"| matmul | {state}")[-2:]
            for state in ("graph", "eager")] == [["2", "1"], ["1", "1"]]
    # Linear layers are products with a sparse second operand; what has no kernel counts as 0.
    assert row_of(lines, "| linear")[1:5] == ["graph", "1", "", "2.00"]
    assert row_of(lines, "| attention")[4:8] == ["0.00", "0.20", "1.00", "2.00"]
    order = [line.split()[1] for line in lines if line.startswith("| ")][1:]
    assert order == ["attention", "matmul", "matmul", "linear"]


def test_measured_again_the_median_counts():
    again = shape(1, 0.5, ratios=[0.5, 0.9, 1.1, 0.9])
    assert row_of(told("distribution", [again]), "matmul")[4] == "0.90"
    assert row_of(told("worst", [again]), "1x8x8")[1] == "0.90"


def test_the_worst_shapes_of_each_state_are_shown():
    lines = told("worst", [one for one in SHAPES if one["state"] == "graph"])
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in lines if line.startswith("| ")]
    assert lines[0] == "The worst shapes of matmul, graph:"
    assert len(rows) == 1 + sweep_tables.WORST
    assert rows[0] == ["shape", "ratio", "alternative", "ours, us", "kernel row"]
    assert rows[1][:4] == ["1x8x8 bf16", "0.10", "fast", "1000"]
    assert rows[1][4] == PRODUCT_ROW and rows[8][0] == "8x8x8 bf16"
    assert row_of(told("worst", [shape(2, 0)]), "2x8x8")[1:] == ["0.00", "fast", "no kernel"]
    both = told("worst", [shape(2, 3.0), shape(2, 0.5, state="burst")])
    graph, eager = (row for row in both if row.startswith("| 2x8x8"))
    assert "| 3.00 | 0.50 |" in graph and "| 0.50 | 3.00 |" in eager
    assert "The worst shapes of matmul, eager:" in both
    assert told("worst", [shape(2, None)]) == []


def test_seeds_are_told_by_operation():
    files = [swept(op, [], seed) for op in ("matmul", "attention") for seed in (3, 1, 2)]
    assert sweep_tables.seeds(files) == "seeds 1, 2, 3 of attention, matmul"
    assert sweep_tables.seeds([*files, swept("linear", [], 7)]) == (
        "seeds 1, 2, 3 of attention, matmul; 7 of linear")


# ---- The picture -------------------------------------------------------------------------------


def drawn(cases):
    made = pictures.draw("shapes", [swept("matmul", cases)])
    return [(one, ElementTree.fromstring(one.svg)) for one in made]


def test_a_panel_for_each_operation_that_there_is():
    cases = [*SHAPES, *(shape(m, m, op=op) for op in ("linear", "attention") for m in (2, 4, 8))]
    ((picture, root),) = drawn(cases)
    assert picture.file == "invented-card-shapes.svg"
    said = root.find(f"{SVG}desc").text
    for words in ("matmul, 20 shapes, graph (20): worst 0.1, p5 0.195",
                  "matmul, 20 shapes, eager (19): worst 5,", "linear, 3 shapes, graph"):
        assert words in said, said
    assert "bsr_matmul" not in said
    names = [x.text for x in root.iter(f"{SVG}text") if x.get("class") == "t b"]
    assert names == ["attention, 3 shapes", "matmul, 20 shapes", "linear, 3 shapes"]
    assert "graph: median 1.05x" in picture.svg and "eager: median 5.00x" in picture.svg
    assert drawn([]) == drawn([shape(1, None)]) == []


def line_of(root, colour=0):
    group = next(x for x in root.iter(f"{SVG}g") if x.get("class") == f"l k{colour}")
    path = group.find(f"{SVG}path").get("d")
    points = [tuple(map(float, point.split())) for point in path.strip("M").split("L")]
    return points, [(float(x.get("cx")), float(x.get("cy"))) for x in group.iter(f"{SVG}circle")]


def test_ratios_lie_on_a_logarithmic_axis():
    ((_, root),) = drawn([shape(i + 1, ratio) for i, ratio in enumerate((.5, 1.0, 2.0, 4.0, 8.0))])
    points, markers = line_of(root)
    steps = [(b[0] - a[0], a[1] - b[1]) for a, b in itertools.pairwise(points)]
    for step in steps[1:]:
        assert step == pytest.approx(steps[0], abs=0.11)
    assert steps[0][0] > 0 < steps[0][1]
    assert markers[0] == points[0] and markers[-1] == points[-1] and markers[3] == points[2]
    strong = [x.get("d") for x in root.iter(f"{SVG}path") if x.get("class") == "e"]
    assert strong == [d for d in strong if f"M{points[1][0]} " in d] and len(strong) == 1


@pytest.mark.parametrize("cases", [
    [shape(1, 1.0)], [shape(1, 0)], [shape(1, 0), shape(2, 1e-3), shape(3, 5e4)],
    [shape(m, 1 + m / 1000) for m in range(1, 400)]])
def test_few_many_and_extreme_shapes_stay_within_the_panel(cases):
    ((_, root),) = drawn(cases)
    points, _ = line_of(root)
    lines = [x.get("d") for x in root.iter(f"{SVG}path") if x.get("class") in ("g", "e")]
    across = [tuple(map(float, re.findall(r"[0-9.]+", d))) for d in lines if "H" in d]
    left, right = across[0][0], across[0][2]
    assert all(left - 0.1 <= x <= right + 0.1 for x, _ in points)
    assert 2 <= sum("V" in d for d in lines) <= 10


# ---- Pages -------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    folder = page_tree(tmp_path, readme="# T\n", shapes=(
        marked("shapes", kind="picture") + marked("shapes", "worst_shapes", "glance")))
    (folder / "bench/results/shapes").mkdir()
    return folder


def put_sweep(tree, name, cases, **more):
    put(tree, f"shapes/{name}", **swept("matmul", cases, **more))


def text_of(tree):
    return (tree / "docs/shapes.md").read_text()


def test_without_sweeps_the_page_says_so(tree):
    (tree / "bench/results/shapes").rmdir()
    assert run(tree) == 0 and run(tree, "--check") == 0
    assert text_of(tree).count("Not measured yet.") == 3 and "![" not in text_of(tree)


def test_files_of_all_seeds_come_together(tree, capsys):
    for seed in (1, 2, 3):
        put_sweep(tree, f"card-matmul-{seed}.json", [shape(seed, seed / 2)], seed=seed)
    put_sweep(tree, "card-matmul-1-2-of-4.json", [shape(9, 9.0)])  # a shard is no result
    assert run(tree) == 0 and run(tree, "--check") == 0
    text = text_of(tree)
    assert row_of(text.splitlines(), "| matmul | graph")[2:5] == ["3", "0.50", "0.55"]
    assert text.count("*seeds 1, 2, 3 of matmul*") == 2
    assert "(images/measured/invented-card-shapes.svg)" in text
    assert text.count("Not measured yet.") == 1, "shapes drawn at random are in no other table"
    assert "3 results" in capsys.readouterr().out
    put_sweep(tree, "card-matmul-3.json", [shape(3, 7.0)], seed=3)
    assert run(tree, "--check") == 1 and run(tree) == 0


def test_a_sweep_without_its_summary_is_refused(tree, capsys):
    put_sweep(tree, "card-matmul-1.json", [shape(1, 2.0)], sweeps=[])
    assert run(tree) == 1
    assert "shapes/card-matmul-1.json: no sweeps: run" in capsys.readouterr().out


def test_cards_have_pictures_and_tables_of_their_own(tree):
    put_sweep(tree, "a-matmul-1.json", [shape(1, 2.0)])
    put_sweep(tree, "b-matmul-1.json", [shape(1, 3.0)], gpu={**GPU, "name": "Other"})
    assert run(tree) == 0
    text = text_of(tree)
    assert text.count("| matmul | graph |") == 2
    assert "invented-card-shapes.svg" in text and "other-shapes.svg" in text


def test_stale_shapes_are_counted(tree):
    put_sweep(tree, "card-matmul-1.json", [shape(1, 2.0), shape(2, None)])
    change_kernel(tree, PRODUCT_ROW)
    assert run(tree) == 0
    assert text_of(tree).count("cases are stale: their kernels have changed since*") >= 1
    assert "1 of 1 case is stale" in (
        tree / "docs/images/measured/invented-card-shapes.svg").read_text()


def test_the_report_tells_sweeps_apart():
    cards = reading.cards({"a": result_of([shape(1, 0.25, state="burst")]),
                           "b": swept("matmul", [shape(7, 0.5)])})
    text = page.make(cards)
    assert "Of 1 measurements beside a peer" in text and "Shapes drawn at random" in text
    assert "The worst shapes of matmul" in text and "share of shapes below each ratio" in text
    without = page.make(reading.cards({"a": result_of([shape(1, 0.25)])}))
    assert "drawn at random" not in without


def test_sweeps_are_checked(monkeypatch, tmp_path, capsys):
    check = tables.sys.modules["check_results"]
    tree = page_tree(tmp_path)
    (tree / "bench/results/shapes").mkdir()
    put_sweep(tree, "card-matmul-1.json", [shape(1, 2.0)])
    monkeypatch.setattr(check, "ROOT", tree)
    monkeypatch.setattr(check.sys, "argv", ["check_results.py"])
    assert check.main() == 0 and "check_results: 1 files" in capsys.readouterr().out
    put_sweep(tree, "card-matmul-1.json", [shape(1, 2.0)], gpu=None)
    assert check.main() == 1
    assert "card-matmul-1.json: gpu: committed results come from a GPU" in capsys.readouterr().out
    other = swept("matmul", [shape(1, 3.0)])["sweeps"]
    put_sweep(tree, "card-matmul-1.json", [shape(1, 2.0)], sweeps=other)
    assert check.main() == 1
    assert "sweeps: matmul, graph: not what the cases give" in capsys.readouterr().out


def test_the_example_of_the_page_is_a_result():
    text = (ROOT / "docs/shapes.md").read_text()
    (example,) = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    result = json.loads(example)
    assert results.problems(result) == [] == ratios.summary_faults(result)
    (summary,) = result["sweeps"]
    case, = result["cases"]
    assert ratios.op_of(case) == summary["op"] and ratios.STATES[case["state"]] == summary["state"]
    assert set(summary["ratio"].values()) == {ratios.ratio(case)}
    assert ratios.measured_ratio(case) == pytest.approx(case["ratios"][0])
    drawn_shapes = tables.bench_module("shapes").draw(summary["op"], summary["seed"], 120)
    assert case["params"] == drawn_shapes[0].params
