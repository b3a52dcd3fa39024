"""bench/workloads/models.json: small cases of every kind give right results, and the host's part of
every full case runs without allocating its tensors."""

from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera.bench import (
    arrays,
    cases,
    cli,
    flops,
    measure,
    options,
    ours,
    patterns,
    peers,
    problem,
)
from tessera.bench.cases import CaseError, make_case
from tessera.bench.reference import check_same

WORKLOADS = Path(__file__).parents[2] / "bench" / "workloads"
MODELS = cases.read_workload(WORKLOADS / "models.json")
SMALL = cases.read_workload(WORKLOADS / "models_small.json")
# The reasons for which all kernels of another device are rejected in a build without CUDA.
NOT_HERE = ("not in this build", "the tensors are on cpu")


def kind(case):
    """The properties of a case, except its sizes."""
    p = case.params
    names = ("pattern", "lists", "causal", "side", "transpose", "keep", "of")
    return (case.op, *(p.get(name) for name in names), "experts" in p, p.get("hk") == p.get("h"))


def label(case):
    return case.label


def test_every_kind_of_case_has_a_small_one():
    assert {kind(case) for case in SMALL} == {kind(case) for case in MODELS}


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_small_cases_are_right(case):
    """Our result is within its budget, and the peers' results agree."""
    settings = measure.Settings(seconds=0.01, peers=["openblas"])
    record, = measure.measure_case(case, settings)
    assert "ms" in record["ours"], record["ours"]
    assert record["max_error"] <= record["error_budget"]
    assert record["useful_flops"] > 0
    for name, entry in record["peers"].items():
        assert "ms" in entry, (name, entry)


@pytest.fixture
def unwritten(monkeypatch):
    """Makes arrays whose memory is never touched, so that they need no pages."""
    def empty(shape, dtype, device, seed=None):
        return np.empty(shape, np.float16)

    monkeypatch.setattr(arrays, "normal", empty)
    monkeypatch.setattr(arrays, "empty", empty)


@pytest.mark.parametrize("case", MODELS, ids=label)
def test_the_host_s_part_of_full_cases(case, unwritten):
    names = peers.peers_for(case, "cuda")
    assert list(names) == sorted(case.peers, key=names.index)
    assert [name for name in names if peers.get_peer(name).refuse(case)] == []
    made = problem.Problem(case, "cpu")
    assert made.bytes * len(made.sets) < 10e9
    dense = case.dense()
    if case.sparse:
        whole = (flops.attention_flops(dense.params) if case.op == "attention"
                 else flops.product_flops(dense.op, dense.params))
        assert 0 < made.useful_flops < 0.5 * whole
        assert {"tessera_dense", "cublaslt_dense"} & set(names), "no dense peer"
    assert [name for name in names if name not in ("tessera_dense", "cublaslt_dense")]
    answer = ours.explanation(made, device="h200")
    fitting = [one["kernel"] for one in answer["candidates"] if one["backend"] == "sm90"
               and all(reason.startswith(NOT_HERE) for reason in one["reasons"])]
    assert fitting, str(answer)


def test_no_case_is_in_two_tables():
    keys = {case.key for case in MODELS}
    for path in WORKLOADS.glob("*.json"):
        if path.stem != "models":
            assert not keys & {case.key for case in cases.read_workload(path)}, path


def test_long_lists_keep_their_budget():
    for case in MODELS:
        p = case.params
        if p.get("pattern") not in ("vertical_slash", "heavy_hitters"):
            continue
        lists = patterns.attention_lists(p)
        assert len(lists) == p["h"] and len({id(one) for one in lists}) == p["hk"]
        for one in lists:
            assert one.counts.max() <= 32 and one.counts.min() >= 1
            assert (one.indices <= one.row_of_entry()).all()
        assert not np.array_equal(lists[0].indices, lists[-1].indices)


EXPERTS = {"m": 40, "n": 32, "k": 48, "experts": 3, "shares": 1.0, "dtype": "f32"}


def test_experts_share_the_rows_unevenly():
    rows = flops.expert_rows(make_case("matmul", EXPERTS).params)
    assert rows.sum() == 40 and len(rows) == 3 and rows.min() >= 1
    assert sorted(rows) == [7, 10, 23]
    even = flops.expert_rows(make_case("matmul", {**EXPERTS, "shares": 0}).params)
    assert even.max() - even.min() <= 1


def sparse_experts(**more):
    return make_case("bsr_matmul", {**EXPERTS, "side": "b", "block": 8, "pattern": "power_law",
                                    "density": 0.4, "exponent": 1.0, **more})


@pytest.mark.parametrize("pattern", [{}, {"pattern": "power_law_graph"}])
def test_experts_are_products_one_after_the_other(pattern):
    """With an equal number of blocks per expert, or a pool of blocks for all."""
    made = problem.Problem(sparse_experts(**pattern), "cpu")
    inputs, counted, out = made.sets[0], 0, np.zeros((40, 32), np.float32)
    weights = made.bsr_b.fill_dense(inputs["b"])
    assert weights.shape == (3, 32, 48) and not np.array_equal(weights[0] != 0, weights[1] != 0)
    assert bool(made.bsr_b.batch) == (not pattern)
    for expert, (begin, length) in enumerate(zip(made.offsets, made.lengths, strict=False)):
        out[begin : begin + length] = inputs["a"][begin : begin + length] @ weights[expert].T
        counted += 2 * length * int((weights[expert] != 0).sum())
    assert made.useful_flops == counted
    error, budget, _ = made.reference.compare(out)
    assert error <= budget
    found = ours.prepare_ours(made).run(0)
    assert np.allclose(found, out, rtol=1e-4, atol=1e-4)
    # A row of another expert is an error.
    first = int(made.lengths[0])
    out[[first - 1, first]] = out[[first, first - 1]]
    error, budget, _ = made.reference.compare(out)
    assert error > budget


def test_peers_of_products_with_experts():
    names = ["tessera_dense", "grouped_mm", "cublaslt_loop"]
    assert peers.peers_for(sparse_experts(), "cuda") == names
    assert peers.peers_for(make_case("matmul", EXPERTS), "cuda") == names[1:]
    assert peers.peers_for(sparse_experts(), "cpu") == []
    plain = make_case("bsr_matmul", {"m": 16, "n": 16, "k": 16, "block": 8, "pattern": "random",
                                     "density": 0.5})
    assert not set(peers.peers_for(plain, "cuda")) & set(names)
    assert sparse_experts().dense().params == make_case(
        "matmul", {**EXPERTS, "transpose": "nt"}).params


def test_dense_products_of_experts(monkeypatch):
    """On tensors as on a GPU: the peers multiply zeros, the dense case has none."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(arrays, "on_device", lambda array, device: torch.from_numpy(array))
    sizes = []

    class OneProduct:
        def __init__(self, sets, shape, transposed, dtype):
            sizes.append(shape)
            assert (transposed, dtype) == ("nt", "bf16")
            self.sets = sets

        def choose(self):
            return 7

        def run(self, i, best):
            assert best == 7
            a, b, out = self.sets[i]
            out[...] = a @ b.T

    monkeypatch.setattr("tessera.bench.peers.grouped.Product", OneProduct)
    made = problem.Problem(sparse_experts(dtype="bf16"), "cpu")
    for name in ("grouped_mm", "cublaslt_loop"):
        prepared = peers.get_peer(name).prepare(made)
        check_same(made.reference, prepared.run(0), "bf16")
        assert prepared.computed_flops == 2 * 40 * 32 * 48
    assert sizes == [(int(rows), 32, 48) for rows in made.lengths]
    dense = peers.get_peer("tessera_dense").prepare(made)
    check_same(dense.problem.reference, dense.run(0), "bf16")
    assert dense.computed_flops == 2 * 40 * 32 * 48 and "pattern" not in dense.problem.params


VIDEO = {"s": 96, "block_q": 8, "pattern": "sliding_tile", "volume": "2x3x2", "tile_blocks": 1,
         "neighbourhood": "1x3x1"}
MESH = {"m": 64, "k": 64, "n": 8, "block": 16, "pattern": "mesh", "nodes": "1x4x8", "unknowns": 2}


@pytest.mark.parametrize("op, params, names", [
    ("matmul", {**EXPERTS, "experts": 0}, "experts"),
    ("matmul", {**EXPERTS, "experts": 41}, "experts: expected a row each"),
    ("matmul", {**EXPERTS, "shares": -1}, "shares"),
    ("matmul", {**EXPERTS, "shares": "even"}, "shares"),
    ("matmul", {**EXPERTS, "transpose": "tn"}, "experts: a is dense"),
    ("bsr_matmul", {**EXPERTS, "block": 8, "pattern": "random", "density": 1}, "experts"),
    ("attention", {**VIDEO, "volume": "2x3"}, "volume: expected three sizes"),
    ("attention", {**VIDEO, "neighbourhood": "1x0x1"}, "neighbourhood"),
    ("attention", {**VIDEO, "tile_blocks": 2}, "24 x 24 blocks are not the case's 12 x 12"),
    ("attention", {**VIDEO, "s": 100}, "12.5"),
    ("attention", {**VIDEO, "pattern": "mesh", "nodes": "1x1x1", "unknowns": 1}, "mesh: products"),
    ("bsr_matmul", {**MESH, "m": 48}, "mesh"),
    ("bsr_matmul", {**MESH, "block_cols": 8}, "square blocks"),
    ("bsr_matmul", {**MESH, "unknowns": 0}, "unknowns"),
])
def test_invalid_cases_are_refused_by_name(op, params, names):
    with pytest.raises(CaseError, match=names):
        make_case(op, params)


@pytest.mark.parametrize("words, op, params", [
    ("--m 40 --n 32 --k 48 --experts 3 --shares 1 --dtype f32", "matmul", EXPERTS),
    ("--m 8 --n 4 --k 2 --transpose-a --dtype f32", "matmul",
     {"m": 8, "n": 4, "k": 2, "transpose": "tn", "dtype": "f32"}),
    ("--q-length 8 --kv-length 16 --window-left 3", "attention",
     {"s": 8, "skv": 16, "window": 3, "dtype": "f32"}),
    ("--m 64 --k 64 --n 8 --block 16 --pattern mesh --nodes 1x4x8 --unknowns 2 --dtype bf16",
     "bsr_matmul", MESH),
    ("--q-length 96 --block-q 8 --pattern sliding_tile --volume 2x3x2 --neighbourhood 1x3x1 "
     "--tile-blocks 1 --dtype bf16", "attention", VIDEO),
    ("--m 8 --n 32 --k 64 --block 8 --sparse b --transpose-b --pattern n_of_m --keep 2 --of 8 "
     "--experts 2",
     "bsr_matmul", {"m": 8, "n": 32, "k": 64, "block": 8, "side": "b", "pattern": "n_of_m",
                    "keep": 2, "of": 8, "experts": 2, "dtype": "f32"}),
])
def test_cases_from_the_command_line(words, op, params):
    arguments = cli.build_parser().parse_args([op, *words.split()])
    assert options.case_of(arguments, "cpu").params == make_case(op, params).params


SIZES = {"m": 64, "n": 8, "k": 96, "block": 8, "seed": 5}
SLASH = {"s": 64, "block_q": 8, "pattern": "vertical_slash", "verticals": 2, "slashes": 3}


@pytest.mark.parametrize("params, generator, arguments", [
    (VIDEO, "sliding_tile", ((2, 3, 2), (1, 3, 1), 1)), (MESH, "mesh", ((1, 4, 8), 2, 16)),
    ({**SLASH, "causal": True}, "vertical_slash", (8, 8, 2, 3, True, 1)),
    ({**SLASH, "causal": False}, "vertical_slash", (8, 8, 2, 3, False, 1)),
    ({**SIZES, "pattern": "n_of_m", "keep": 1, "of": 4}, "n_of_m", (8, 12, 1, 4, 5)),
    ({**SIZES, "pattern": "bigbird", "half_width": 1, "global": 1, "random": 2}, "bigbird",
     (8, 12, 1, 1, 2, 5))])
def test_patterns_are_the_library_s_own(params, generator, arguments):
    op = "attention" if "s" in params else "bsr_matmul"
    p = make_case(op, params).params
    lists = patterns.attention_lists(p)[0] if "s" in p else patterns.product_lists(op, p)
    assert np.array_equal(lists.blocks(), getattr(tessera.patterns, generator)(*arguments))
