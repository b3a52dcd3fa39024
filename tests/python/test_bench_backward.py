"""The benchmark of attention's gradients: its truth against autograd, its cases, its peers."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_support import reference  # noqa: E402

import tessera  # noqa: E402
from tessera import _signatures  # noqa: E402
from tessera.bench import arrays, cases, cli, flops, ours, peers, schema  # noqa: E402
from tessera.bench.cases import make_case  # noqa: E402
from tessera.bench.measure import Settings, measure_case  # noqa: E402
from tessera.bench.peers import flex  # noqa: E402
from tessera.bench.peers.base import Unavailable  # noqa: E402
from tessera.bench.peers.torch_cpu import element_mask  # noqa: E402
from tessera.bench.problem import Problem  # noqa: E402
from tessera.bench.reference import WrongResult, check_same, seen_by  # noqa: E402

OP = "attention_backward"
WORKLOAD = Path(__file__).parents[2] / "bench/workloads/hopper_attention_backward.json"
RANDOM = {"pattern": "random", "density": 0.4}
CASES = {
    "dense": {"s": 70, "skv": 90, "b": 2, "h": 4, "hk": 2, "d": 16, "dv": 8, "causal": True},
    "long": {"s": 700, "h": 2, "d": 32},
    "more queries": {"s": 40, "skv": 25, "h": 2, "d": 16, "causal": True},  # some see no key
    "window": {"s": 90, "h": 2, "d": 16, "causal": True, "window": 11},
    "lists": {"s": 64, "h": 4, "hk": 2, "d": 16, "block_q": 16, "block_kv": 8, "window": 20,
              "lists": "per_head", **RANDOM},
    "packed": {"s": 200, "h": 4, "hk": 1, "d": 16, "sequences": 5, "causal": True, "softcap": 5.0},
}


def problem_of(name, dtype="f32"):
    return Problem(make_case(OP, {**CASES[name], "dtype": dtype}), "cpu")


def by_autograd(problem):
    """dq, dk and dv of the first set in float64."""
    p, one = problem.params, problem.sets[0]
    leaves = [torch.as_tensor(arrays.to_f64(one[name])).requires_grad_() for name in "qkv"]
    if "sequences" in p:
        bounds = [slice(a, b) for a, b in zip(problem.offsets, problem.offsets[1:], strict=False)]
        parts = [[x[None, at] for x in leaves] for at in bounds]
        masks = [torch.as_tensor(seen_by(problem, 0, np.arange(n), n, n))
                 for n in problem.lengths.tolist()]
    else:
        parts, masks = [leaves], [torch.as_tensor(element_mask(problem))]
    outs = [reference(*part, mask, softcap=p.get("softcap", 0.0))[0]
            for part, mask in zip(parts, masks, strict=True)]
    out = torch.cat([x[0] for x in outs]) if "sequences" in p else outs[0]
    out.backward(torch.as_tensor(arrays.to_f64(one["dout"])))
    return tuple(x.grad.numpy() for x in leaves)


@pytest.mark.parametrize("name", CASES)
def test_the_truth_is_autograds(name):
    problem = problem_of(name)
    for part, whole in zip(problem.reference.parts, by_autograd(problem), strict=True):
        # out and lse are f32 here.
        np.testing.assert_allclose(part.pick(whole), part.truth, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_ours_is_within_its_budget(name, dtype):
    problem = problem_of(name, dtype)
    problem.poison()
    error, budget = check_same(problem.reference, ours.prepare_ours(problem).run(0), dtype)
    assert error <= budget


@pytest.mark.parametrize("name", CASES)
def test_wrong_results_are_told(name):
    problem = problem_of(name)
    right = [np.array(x) for x in ours.prepare_ours(problem).run(0)]
    check_same(problem.reference, right, "f32")
    for place, one in enumerate(right):
        nan, fewer = np.full_like(one, np.nan), one[..., :-1]
        for wrong in (one * np.float32(1.01), np.roll(one, 1, axis=-1), nan, fewer):
            results = [*right[:place], wrong, *right[place + 1 :]]
            with pytest.raises((WrongResult, IndexError)):
                check_same(problem.reference, results, "f32")


def test_operations_of_five_products():
    p = make_case(OP, {"s": 16, "h": 1, "d": 8, "dv": 4}).params
    assert flops.attention_flops(p, None, OP) == 2 * 16 * 16 * (3 * 8 + 2 * 4)
    same = {**p, "dv": 8}
    assert flops.attention_flops(same, None, OP) == 2.5 * flops.attention_flops(same)


@pytest.mark.parametrize("name", ["dense", "lists"])
def test_a_case_is_measured_beside_pytorch_on_the_cpu(name):
    case = make_case(OP, {**CASES[name], "dtype": "f32"})
    (record,) = measure_case(case, Settings(device="cpu", seconds=0.01, rows=True))
    assert record["ours"]["row"].startswith("cpu_attention_backward")
    assert record["rows"][record["ours"]["row"]] > 0
    assert record["peers"]["torch"]["ms"] > 0
    assert record["max_error"] <= record["error_budget"]
    assert not schema.problems(record, {"$ref": "#/$defs/case"}, schema.of_results())


def test_the_dense_case_is_of_the_same_operation():
    case = make_case(OP, {"s": 64, "block_q": 8, **RANDOM})
    assert case.dense().key == make_case(OP, {"s": 64}).key
    assert peers.get_peer("tessera_dense").applies(case)
    problem = Problem(make_case(OP, {**CASES["lists"], "dtype": "f32"}), "cpu")
    dense = peers.get_peer("tessera_dense").prepare(problem)
    check_same(dense.problem.reference, dense.run(0), "f32")


def test_any_order_is_a_separate_case():
    case = make_case(OP, {"s": 64, "any_order": True})
    assert case.key != make_case(OP, {"s": 64}).key and "any order" in case.label
    assert case.dense().key == case.key
    place = _signatures.ATTENTION_BACKWARD.Inputs._fields.index("deterministic")
    for params in ({}, {"any_order": True}):
        problem = Problem(make_case(OP, {**CASES["dense"], **params, "dtype": "f32"}), "cpu")
        arguments = ours.gradient_arguments(tessera, problem, problem.sets[0])
        assert arguments[place] is not bool(params)


def test_the_command_lists_and_measures(tmp_path, capsys):
    assert cli.main([OP, "--q-length", "64", "--heads", "2", "--dim", "16", "--device", "cpu",
                     "--peers", "none", "--seconds", "0.01", "--quiet"]) == 0
    assert f"{OP} B1 H2 S64 D16 f32" in capsys.readouterr().out
    assert cli.main(["sweep", OP, "--seed", "3", "--count", "5", "--list"]) == 0
    assert capsys.readouterr().out.count(OP) == 5


def test_the_workload_has_the_cases_and_peers_for_each():
    found = cases.read_workload(WORKLOAD)
    assert {case.op for case in found} == {OP}
    have = {(p["b"], p["h"], p["hk"], p["s"], p["d"], p["dv"], p["causal"])
            for p in (case.params for case in found) if "pattern" not in p}
    for b, h, hk, s, d, dv in ((4, 16, 16, 4096, 128, 128), (1, 16, 16, 16384, 128, 128),
                               (1, 32, 8, 16384, 128, 128), (1, 32, 32, 16384, 64, 64),
                               (1, 16, 16, 16384, 96, 96), (1, 16, 16, 16384, 192, 128),
                               (1, 16, 16, 16384, 256, 256), (16, 16, 16, 1024, 128, 128)):
        assert {(b, h, hk, s, d, dv, causal) for causal in (False, True)} <= have
    for case in found:
        assert set(case.peers) >= set(peers.peers_for(case, "cuda"))
        taking = [name for name in peers.peers_for(case, "cuda")
                  if peers.get_peer(name).refuse(case) is None]
        assert len(taking) >= 2, case.label


@pytest.mark.parametrize(("name", "ops"), [
    ("fa4", 2), ("fa3", 2), ("flex", 2), ("sdpa_cudnn", 2), ("sdpa_flash", 2),
    ("sdpa_efficient", 1), ("flashinfer", 1), ("torch", 2)])
def test_peers_of_the_backward_pass(name, ops):
    applies = peers.get_peer(name).applies
    assert [applies(make_case(op, {"s": 8})) for op in cases.ATTENTION_PASSES] == [
        True, ops == 2]
    only = peers.get_peer("fa4_deterministic")
    assert [only.applies(make_case(op, {"s": 8})) for op in cases.ATTENTION_PASSES] == [False, True]


# ---- Peers that need a GPU: stand-ins of their functions, computed by autograd ------------------


def bf16_problem(name):
    problem = problem_of(name, "bf16")
    return problem, [torch.as_tensor(x).bfloat16() for x in by_autograd(problem)]


def test_flash_attention_4_gets_our_results_and_its_options(monkeypatch):
    for name in ("packed", "window", "lists"):
        problem, right = bf16_problem(name)
        asked = []

        class Interface:
            @staticmethod
            def _flash_attn_bwd(q, k, v, out, dout, lse, *, dq, dk, dv, **options):
                one = problem.sets[0]  # noqa: B023
                asked.append(options)  # noqa: B023
                for got, key in ((q, "q"), (out, "out"), (dout, "dout"), (lse, "lse")):
                    assert got is one[key]
                for into, value in zip((dq, dk, dv), right, strict=True):  # noqa: B023
                    into.copy_(value)
                return dq, dk, dv

        class Sparsity:
            BlockSparseTensorsTorch = dict

        monkeypatch.setitem(sys.modules, "flash_attn", type(sys)("flash_attn"))
        monkeypatch.setitem(sys.modules, "flash_attn.cute", type(sys)("flash_attn.cute"))
        monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", Interface)
        monkeypatch.setitem(sys.modules, "flash_attn.cute.block_sparsity", Sparsity)
        for peer in ("fa4", "fa4_deterministic"):
            if peers.get_peer(peer).refuse(problem.case):
                assert name == "lists" and peer == "fa4_deterministic"
                continue
            problem.poison()
            check_same(problem.reference, peers.get_peer(peer).prepare(problem).run(0), "bf16")
            assert asked[-1]["deterministic"] == (peer == "fa4_deterministic")
        options = asked[-1]
        if name == "packed":
            assert options["cu_seqlens_q"] is problem.offsets_array and options["softcap"] == 5.0
        if name == "window":
            assert (options["window_size_left"], options["window_size_right"]) == (11, 0)
        if name == "lists":
            assert_transposed(problem, options["block_sparse_tensors"])


def assert_transposed(problem, lists):
    """By columns, these are the blocks of the rows; full blocks apart."""
    p = problem.params
    made = np.zeros((len(problem.lists), p["skv"] // p["block_kv"], p["s"] // p["block_q"]), int)
    for kind, value in (("mask", 1), ("full", 2)):
        counts, indices = (arrays.to_f64(lists[f"{kind}_block_{part}"]).astype(int)[0]
                           for part in ("cnt", "idx"))
        for head, column in np.ndindex(counts.shape):
            made[head, column, indices[head, column, : counts[head, column]]] += value
    for head, one in enumerate(problem.lists):
        full, partial = flops.classify(p, one)
        assert np.array_equal(made[head].T, 2 * full.blocks() + partial.blocks())
    assert lists["block_size"] == (p["block_q"], p["block_kv"])


def test_flash_attention_3_backward_or_its_absence(monkeypatch):
    problem, right = bf16_problem("packed")
    asked = []

    class Fa3:
        @staticmethod
        def _flash_attn_backward(dout, q, k, v, out, lse, *rest):
            *packing, dq, dk, dv, scale, causal, left, right_side, softcap = rest
            asked.append((packing, scale, causal, left, right_side, softcap))
            for into, value in zip((dq, dk, dv), right, strict=True):
                into.copy_(value)

    monkeypatch.setitem(sys.modules, "flash_attn_interface", Fa3)
    Fa3.__name__ = "flash_attn_interface"
    check_same(problem.reference, peers.get_peer("fa3").prepare(problem).run(0), "bf16")
    packing, *options = asked[-1]
    assert packing[0] is packing[1] is problem.offsets_array and packing[2:4] == [None, None]
    assert options == [16 ** -0.5, True, -1, -1, 5.0]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    forward = type("fa3_fwd_interface", (), {})
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", forward)
    with pytest.raises(Unavailable, match="fa3-fwd has no backward pass"):
        peers.get_peer("fa3").prepare(problem)


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_cudnn"])
def test_pytorchs_operators_get_what_their_forward_pass_gave(name):
    """Shapes alone, on the meta device: the operators accept these arguments."""
    case = make_case(OP, {"s": 64, "b": 2, "h": 4, "d": 64, "causal": True, "dtype": "bf16"})
    problem = Problem(case, "cpu")
    problem.sets = [{key: x.to("meta") for key, x in one.items()} for one in problem.sets]
    results = peers.get_peer(name).prepare(problem).run(0)
    assert [x.shape for x in results] == [(2, 64, 4, 64)] * 3


@pytest.mark.parametrize("name", ["window", "packed"])
def test_flex_differentiates_its_forward_pass(name):
    """FlexAttention has no backward pass on the CPU: its forward pass is written out here."""
    problem, right = bf16_problem(name)
    mask = np.zeros((problem.params["s"], problem.params["skv"]), bool)
    for begin, n in zip(getattr(problem, "offsets", [0]), getattr(problem, "lengths", [len(mask)]),
                        strict=False):
        at = slice(int(begin), int(begin) + int(n))
        mask[at, at] = seen_by(problem, 0, np.arange(n), int(n), int(n))

    def forward(views):
        q, k, v = (x.transpose(1, 2) for x in views)
        return reference(q, k, v, torch.as_tensor(mask),
                         softcap=problem.params.get("softcap", 0.0))[0].transpose(1, 2)

    views = [[flex.batched(problem.sets[0][name]).double().transpose(1, 2) for name in "qkv"]]
    problem.sets[0]["dout"] = problem.sets[0]["dout"].double()
    results = flex.gradients(torch, problem, views, forward)(0)
    check_same(problem.reference, results, "bf16")
    assert all(torch.equal(x.bfloat16(), y) for x, y in zip(results, right, strict=True))
