"""tools/tables.py and what it is made of, on results that were never measured: every figure here
is invented and round."""


import pytest
from invented import (
    CASES,
    DENSE,
    GPU,
    HOST,
    SPARSE,
    put,
    record,
    result_of,
    row_of,
    run,
    tables,
)
from support import ATTENTION_ROW, PRODUCT_ROW, ROOT, change_kernel, marked, page_tree

markdown, case_tables, cases = tables.markdown, tables.case_tables, tables.cases
values = tables.package_module("report.values")


def told(name, records):
    return markdown.lines(getattr(case_tables, name)(records))


def test_the_invented_results_have_the_shape_of_real_ones():
    assert tables.bench_module("results").problems(result_of(CASES)) == []


def test_a_comparison_shows_every_peer_and_who_is_missing():
    lines = told("comparison", CASES)
    assert row_of(lines, "case") == ["case", "in", "tessera", "best peer", "of the dense rate",
                                     "cublaslt", "cublaslt_dense", "torch_bsr",
                                     "cusparse_bell", "flex", "fa3", "fa4", "J/TFLOP"]
    sparse = row_of(lines, "density 0.25")
    # 5e8 operations in half a millisecond: 1 TFLOPS. The dense product of random values makes 2e9
    # in a fifth of one, faster than every peer, but it is none.
    assert sparse[1:5] == ["TFLOPS", "1", "torch_bsr 0.50x", "0.10"]
    assert sparse[5:9] == ["0.5, 2.00x", "10, 0.40x", "2, 0.50x", "- (1)"] and sparse[-1] == "3"
    # Both operands of a sampled product are dense: cuBLASLt makes 2e9 in a millisecond.
    sampled = record("sddmm", {**SPARSE, "density": 0.5}, 1.0, {"cublaslt": 1.0}, flops=1e9)
    assert row_of(told("comparison", [sampled]), "sddmm")[3:6] == ["cublaslt 1.00x", "0.50",
                                                                 "1, 1.00x"]
    # Where it was not measured, zeros do not stand in for it; dense products need no other.
    assert row_of(lines, "density 0.5")[4] == "" and row_of(lines, "matmul 1000x")[4] == "0.50"
    attention = row_of(lines, "attention")
    assert attention[2:4] == ["- (2)", "flex"] and attention[-3:-1] == ["- (3)", "- (3)"]
    text = "\n".join(lines)
    assert "(1) cusparse_bell: square blocks only" in text
    assert "(3) fa3, fa4: absent" in text
    # Dense products come first, whatever the order of the file.
    assert text.index("matmul 1000x1000x1000 bf16") < text.index("bsr_matmul")


def test_units_say_what_limits_a_case():
    lines = told("comparison", CASES)
    assert row_of(lines, "matmul 1x1000x1000")[1:4] == ["GB/s", "3000", "cublaslt 1.50x"]
    assert row_of(lines, "matmul 2x1000x1000")[1:3] == ["GB/s", "3000"]
    few = record("bsr_matmul", {**SPARSE, "n": 2, "density": 0.5}, 0.002, {}, state="graph")
    assert row_of(told("comparison", [few]), "bsr_matmul")[1:3] == ["us", "2"]
    slow = record("matmul", DENSE, 100.0, {}, flops=2e9)
    assert row_of(told("comparison", [slow]), "matmul")[1:3] == ["GFLOPS", "20"]


def test_wide_spreads_and_patterns_found_beforehand_are_shown():
    wide = record("spgemm", {**SPARSE, "density": 0.5}, 1.0, {}, symbolic_ms=0.25)
    wide["ours"]["spread"] = 0.2
    assert row_of(told("comparison", [wide]), "spgemm")[2] == "2 ±10%, pattern 250 us"


def test_the_share_of_stored_blocks_is_told_where_no_density_is():
    params = {**SPARSE, "pattern": "butterfly", "levels": 3}
    assert "butterfly block 50 bf16, 0.25 stored" in values.case_text(
        record("bsr_matmul", params, 1.0, {}, flops=5e8))


@pytest.mark.parametrize("points, expected", [
    ([(0.25, 0.5), (0.5, 1.5)], "0.38"),
    ([(0.25, 0.3), (0.5, 0.6)], "0.83 (extrapolated)"),
    ([(0.25, 0.2), (0.5, 0.4)], "never"),
    ([(0.25, 1.2), (0.5, 2.4)], "below 0.25"),
    ([(0.1, 0.4), (0.25, 0.3)], "never"),
])
def test_crossover(points, expected):
    assert case_tables.equal_at(points) == expected


def test_crossover_takes_each_series_by_itself():
    lines = told("crossover", CASES)
    assert row_of(lines, "1000x1000x1000 bf16") == ["1000x1000x1000 bf16", "50", "sustained",
                                                    "0.38", "0.25, 0.5"]
    assert told("crossover", CASES[:1]) == []


@pytest.fixture
def tree(tmp_path):
    return page_tree(tmp_path, readme="# T\n\n" + marked("products") + "\nafter\n",
                     page="<!-- table: attention -->\ntyped by hand\n<!-- end -->\n"
                     + marked("machine"))


def page_of(tree, *tables):
    """The lines of a page with these tables."""
    (tree / "README.md").write_text(marked(*tables))
    run(tree)
    return (tree / "README.md").read_text().splitlines()


def test_without_results_the_tables_say_so(tree, capsys):
    assert run(tree, "--check") == 1
    assert "make tables" in capsys.readouterr().out
    assert run(tree) == 0 and run(tree, "--check") == 0
    readme = (tree / "README.md").read_text()
    assert "Not measured yet." in readme and readme.endswith("<!-- end -->\n\nafter\n")
    assert "typed by hand" not in (tree / "docs/page.md").read_text()


def test_tables_follow_the_files_and_the_kernels(tree):
    run(tree)
    put(tree, "card-check.json")
    assert run(tree, "--check") == 1
    run(tree)
    assert run(tree, "--check") == 0
    readme, page = (tree / "README.md").read_text(), (tree / "docs/page.md").read_text()
    for part in ("Invented Card, 100 W, driver 1.2, CUDA 99.0, 2001-02-03, commit abcdef0",
                 "torch_bsr 0.50x"):
        assert part in readme
    assert "stale" not in readme and "attention" not in readme
    assert "no kernel for attention" in page and "Tests: 1 passed, 1 failed." in page
    # A kernel changes: the check fails until the tables say which part is stale, then no more.
    for code in ("a" * 16, "b" * 16):
        change_kernel(tree, PRODUCT_ROW, code)
        assert run(tree, "--check") == (1 if code[0] == "a" else 0)
        run(tree)
    readme, page = (tree / "README.md").read_text(), (tree / "docs/page.md").read_text()
    assert "*5 of 5 cases are stale: their kernels have changed since*\n" in readme
    # Of the page's tables that of the whole file counts all cases, that of attention its own.
    stale = "*5 of 6 cases are stale: their kernels have changed since*\n"
    assert page.count("stale") == page.count(stale) == 1
    assert page.index("no kernel for attention") < page.index("stale")
    # A case of attention that no kernel took has no figure that could be stale.
    change_kernel(tree, ATTENTION_ROW)
    run(tree)
    assert "stale" not in (tree / "README.md").read_text() + (tree / "docs/page.md").read_text()


def test_a_tree_without_machine_code_is_refused(tree, capsys):
    (tree / "bench/machine_code.json").unlink()
    assert run(tree) == 1 and "no bench/machine_code.json" in capsys.readouterr().out


def test_lists_are_held_against_the_attention_that_walks_them(tree):
    walked = {"s": 8, "block_q": 4, "pattern": "random", "density": 0.5}
    other = {**walked, "density": 0.25}
    made = [record("attention", walked, 8.0, {}, flops=1e9),
            record("attention", walked, 4.0, {}, state="burst", flops=1e9),
            *(record("list_blocks", params, 0.02, {}, state=state, flops=0)
              for params, state in ((walked, "graph"), (walked, "burst"), (other, "graph"))),
            record("top_k_blocks", walked, "no kernel", {}, state="graph", flops=0)]
    put(tree, "card.json", made)
    lines = page_of(tree, "lists")
    assert row_of(lines, "state") == ["case", "state", "lists, us", "attention, ms",
                                      "lists / attention"]
    # 20 us of the 8 ms at the power limit.
    assert row_of(lines, "list_blocks")[1:] == ["graph", "20", "8", "0.25%"]
    assert row_of(lines, "density 0.25")[3:] == ["", ""]
    assert row_of(lines, "top_k_blocks")[2:] == ["- (1)", "8", ""]
    assert "(1) tessera: no kernel  " in lines
    # Attention alone makes no table of lists, and lists stand in no table of attention.
    put(tree, "card.json", made[:2])
    run(tree)
    assert "Not measured yet." in (tree / "README.md").read_text()
    assert "list_blocks" not in (tree / "docs/page.md").read_text()


def test_workloads_have_a_table_of_their_own(tree):
    path = ROOT / "bench/workloads/models.json"
    sparse, whole, video = (next(case for case in cases.read_workload(path) if wanted(case))
                            for wanted in (lambda case: case.op == "bsr_matmul",
                                           lambda case: case.op == "matmul",
                                           lambda case: "volume" in case.params))
    made = [record("bsr_matmul", sparse.params, 1.0,
                   {"cublaslt_dense": 2.5, "torch_bsr": 2.0, "cublaslt": 1.5}, flops=1e9),
            record("matmul", whole.params, 2.0, {"cublaslt": 1.0}),
            record("attention", video.params, "no kernel", {"tessera_dense": 8.0, "fa4": "absent"}),
            CASES[2]]
    (tree / "README.md").write_text(marked("workloads", "products"))
    (tree / "docs/page.md").write_text(marked("glance"))
    put(tree, "card.json", made)
    run(tree)
    # They count where wins and losses are counted.
    glance = (tree / "docs/page.md").read_text().splitlines()
    assert row_of(glance, "| bsr_matmul | sustained")[2:4] == ["1", "1"]
    assert row_of(glance, "| matmul 4096x")[-1] == "0.50x"
    text = (tree / "README.md").read_text()
    lines, products = (part.splitlines() for part in text.split("<!-- table: products -->"))
    assert row_of(lines, "case") == ["case", "state", "tessera, ms", "dense, ms", "best peer, ms",
                                     "over dense", "over the peer", "without"]
    assert row_of(lines, "n-of-m")[1:] == ["sustained", "1", "2.5", "cublaslt 1.5", "2.50x",
                                           "1.50x", ""]
    # Dense itself: the peer is all there is beside it.
    assert row_of(lines, "| matmul 4096x")[2:] == ["2", "", "cublaslt 1", "", "0.50x", ""]
    assert row_of(lines, "sliding-tile")[2:] == ["- (1)", "8", "", "", "", "fa4 - (2)"]
    assert "(1) tessera: no kernel  " in lines and "(2) fa4: absent  " in lines
    assert sum(line.startswith("| matmul") for line in lines) == 1
    # What is no workload is in the other tables, and no workload is.
    assert row_of(products, "matmul 1000x1000x1000")
    assert not any("4096" in line for line in products)


def test_cases_that_name_a_backend_are_in_another_table(tree):
    size = {"s": 64, "h": 2}
    put(tree, "card-a.json", [record("attention", size, 1.0, {"fa4": 2.0})])
    put(tree, "card-sm80.json", [record("attention", {**size, "backend": "sm80"}, 4.0,
                                        {"fa4": 2.0})])
    (tree / "README.md").write_text(marked("attention", "sm80"))
    (tree / "docs/page.md").write_text(marked("glance"))
    run(tree)
    text = (tree / "README.md").read_text()
    chosen, given = (part.splitlines() for part in text.split("<!-- table: sm80 -->"))
    assert row_of(chosen, "| attention")[3] == "fa4 2.00x" and "sm80" not in "".join(chosen)
    assert row_of(given, "| attention")[3] == "fa4 0.50x" and "bf16 by sm80" in "".join(given)
    glance = (tree / "docs/page.md").read_text().splitlines()
    assert row_of(glance, "| kernels of a named backend | sustained")[-3:] == ["0.50x"] * 3


def test_at_a_glance_all_files_of_a_card_are_one_table_with_its_losses(tree):
    size = {"m": 8, "n": 8, "k": 8, "dtype": "f16"}
    won = record("matmul", size, 1.0, {"cublaslt": 2.0})
    lost = record("matmul", {**size, "m": 16}, 2.0, {"cublaslt": 1.0})
    put(tree, "card-a.json", [won])
    put(tree, "card-b.json", [lost])
    lines = page_of(tree, "glance")
    assert row_of(lines, "| matmul | sustained")[2:] == ["2", "1", "0", "1", "1.25x", "0.50x",
                                                         "2.00x"]
    assert "faster than the best one in 1, slower in 1" in "".join(lines)
    assert row_of(lines, "| matmul 16x8x8")[2:] == ["cublaslt", "2", "1", "0.50x"]
    # Of several files each says what it has measured; of one there is no need.
    assert sum(line.startswith("*products: ") for line in lines) == 2
    (tree / "bench" / "results" / "card-b.json").unlink()
    run(tree)
    assert "*products: " not in (tree / "README.md").read_text()


def test_the_headline_is_of_the_card_that_has_most_of_its_lines(tree):
    def of(text, ms, peers):
        return record(*tables.headline.CASES[text], ms, peers, flops=1e9)

    dense, causal, sparse, *_ = tables.headline.CASES
    (tree / "README.md").write_text("<!-- table: headline -->\n<!-- end -->\n"
                                    "<!-- picture: headline -->\n<!-- end -->\n")
    run(tree)
    assert "Not measured yet." in (tree / "README.md").read_text()
    other = {**GPU, "name": "Other Card"}
    put(tree, "card-a.json", [of(dense, 4.0, {"fa4": 5.0, "fa3": 6.0})], gpu=other,
        date="2002-01-01T00:00:00Z")
    put(tree, "card-b.json", [of(sparse, 2.0, {"tessera_dense": 8.0, "flex": 3.0}), CASES[0],
                              of(causal, "no kernel", {"fa4": 1.0})])
    put(tree, "card-c.json", [of(dense, 8.0, {"fa4": 4.0})], date="2001-03-03T00:00:00Z")
    run(tree)
    text = (tree / "README.md").read_text()
    lines = text.splitlines()
    assert row_of(lines, f"| {dense} |")[1:] == ["8", "FlashAttention-4 4", "0.50x", "",
                                                 "2001-03-03"]
    assert row_of(lines, f"| {sparse} |")[1:] == ["2", "FlexAttention 3", "1.50x", "4.0x",
                                                  "2001-02-03"]
    assert causal not in text and "Other Card" not in text
    assert "*Invented Card, 100 W, driver 1.2, CUDA 99.0*" in lines
    assert "invented-card-attention-density.svg" in text
    change_kernel(tree, ATTENTION_ROW)
    assert run(tree, "--check") == 1
    run(tree)
    assert "CUDA 99.0; 2 of 2 cases are stale" in (tree / "README.md").read_text()


def test_what_calls_cost_the_host_is_a_table(tree):
    calls = [HOST, {**HOST, "call": "attention long", "us": 4.0, "spread": 0.2}]
    put(tree, "card-a.json", host=calls, date="2002-01-01T00:00:00Z")
    put(tree, "card-b.json", [], host=[{**calls[0], "us": 9.99}])
    change_kernel(tree, PRODUCT_ROW)
    lines = page_of(tree, "host")
    assert row_of(lines, "call") == ["call", "run, us", "at least", "empty launch, us",
                                     "plan found and run, us", "planning alone, us", "kernel"]
    assert row_of(lines, "short")[1:] == ["3.21", "3", "2.5", "8", "1.5", "sm90_attention"]
    assert row_of(lines, "long")[1] == "4 ±10%"
    assert not any("9.99" in line or "stale" in line for line in lines)


def test_passing_files_and_cpus_are_no_results(tree):
    run(tree)
    for name in ("card-quick.json", "quick.json", "card-check-1-of-4.json"):
        put(tree, name)
    put(tree, "cpu.json", gpu=None)
    assert run(tree, "--check") == 0


@pytest.mark.parametrize("text, told", [
    ("<!-- table: nothing -->\n<!-- end -->\n", "'nothing': there are headline, glance"),
    ("<!-- picture: nothing -->\n<!-- end -->\n", "'nothing': there are headline, attention_128"),
    ("<!-- table: products -->\n", "without its"),
    ("<!-- end -->\n", "other way round"),
    ("<!-- table: products -->\n<!-- table: products -->\n<!-- end -->\n", "without its"),
])
def test_broken_markers_are_told_with_the_page(tree, capsys, text, told):
    (tree / "docs/page.md").write_text(text)
    assert run(tree) == 1
    told_text = capsys.readouterr().out
    assert "page.md" in told_text and told in told_text


def test_every_table_of_the_tree_can_be_made(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().out
