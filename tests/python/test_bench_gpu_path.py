"""The part of the harness that runs on a GPU, run on PyTorch's CPU: events, streams and graphs are
stand-ins, tensors and results are real."""

import contextlib
import math
import sys
import time
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from invented import GPU, result_of  # noqa: E402

from tessera.bench import (  # noqa: E402
    arrays,
    flops,
    measure,
    nvml,
    ours,
    peers,
    results,
    suite,
    timing,
)
from tessera.bench.cases import make_case  # noqa: E402
from tessera.bench.files import read_json  # noqa: E402
from tessera.bench.measure import Settings, measure_case  # noqa: E402
from tessera.bench.peers import flex  # noqa: E402
from tessera.bench.problem import Problem  # noqa: E402
from tessera.bench.reference import WrongResult, check_same  # noqa: E402
from tessera.bench.table import text_table  # noqa: E402
from tessera.bench.timing import Prepared  # noqa: E402

PRODUCT = {"m": 64, "n": 32, "k": 96, "block": 16, "pattern": "random", "density": 0.4}


class Event:
    def __init__(self, enable_timing=False):
        self.at = None

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        assert self.at is not None, "waited for an event that was never recorded"

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3


class Graph:
    """A stand-in for a captured graph: a replay is counted and sleeps."""

    replays = 0

    def replay(self):
        Graph.replays += 1
        time.sleep(1e-4)


class Stream:
    def wait_stream(self, other):
        pass


class Meter:
    """A card at 1500 MHz and 600 W."""

    def clock_mhz(self):
        return 1500

    def joules(self):
        return 600.0 * time.perf_counter()


@pytest.fixture
def gpu(monkeypatch):
    stand_ins = {"Event": Event, "synchronize": lambda: None, "empty_cache": lambda: None,
                 "Stream": Stream, "current_stream": Stream, "CUDAGraph": Graph,
                 "stream": lambda one: contextlib.nullcontext(),
                 "graph": lambda one: contextlib.nullcontext()}
    for name, one in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, one)

    def normal(shape, dtype, device, seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).to(arrays.torch_dtype(dtype))

    monkeypatch.setattr(arrays, "normal", normal)
    monkeypatch.setattr(arrays, "empty", lambda shape, dtype, device: torch.full(
        shape, float("nan"), dtype=arrays.torch_dtype(dtype)))
    monkeypatch.setattr(arrays, "on_device", lambda array, device: torch.from_numpy(array))
    monkeypatch.setattr("tessera.bench.timing.REST_SECONDS", 0.001)
    monkeypatch.setattr("tessera.bench.timing.BURST_SECONDS", 0.001)
    monkeypatch.setattr("tessera.bench.timing.CHUNK_SECONDS", 0.002)
    monkeypatch.setattr("tessera.bench.timing.WARM_UP_SECONDS", 0.01)
    monkeypatch.setattr("tessera.bench.timing.LEAD_IN_SECONDS", 0.01)
    return Settings(device="cuda", seconds=0.05, meter=Meter(), cache_bytes=30_000)


@pytest.fixture
def cublaslt(monkeypatch):
    """The two cuBLASLt peers, computed by PyTorch."""
    from tessera.bench.peers import cublaslt

    def product_of(self, i, algorithm):
        (a, b, out), kind = self.sets[i], self.kind
        out[...] = (a.t() if kind[0] == "t" else a) @ (b.t() if kind[1] == "t" else b)
        return out

    def init(self, sets, sizes, kind, dtype):
        self.sets, self.kind = sets, kind

    monkeypatch.setattr(cublaslt.Product, "__init__", init)
    monkeypatch.setattr(cublaslt.Product, "run", product_of)
    monkeypatch.setattr(cublaslt.Product, "choose", lambda self: 0)
    monkeypatch.setattr(cublaslt.CublasLt, "version", lambda self: "1")
    monkeypatch.setattr(peers, "peer_names", lambda device=None: [
        "cublaslt", "cublaslt_dense"])
    return cublaslt


def product(states):
    return make_case("bsr_matmul", {**PRODUCT, "dtype": "bf16"}, states)


def test_every_state_gives_figures(gpu, cublaslt):
    Graph.replays = 0
    gpu.seconds = 0.8
    records = measure_case(product(("burst", "sustained", "graph")), gpu)
    assert [record["state"] for record in records] == ["burst", "sustained", "graph"]
    assert Graph.replays > 0
    burst, sustained, graph = (record["peers"]["cublaslt"] for record in records)
    for entry in (burst, sustained):
        assert entry["ms"] > 0 and entry["clock_mhz"] == 1500 and entry["host_us"] > 0
    assert burst["watts"] is None and burst["joules_per_tflop"] is None
    assert sustained["watts"] == pytest.approx(600, rel=0.05)
    assert sustained["joules_per_tflop"] == pytest.approx(sustained["watts"] / sustained["tflops"])
    assert graph["ms"] > 0 and graph["host_us"] is None


def test_the_time_of_a_replay_is_divided_by_its_calls(gpu):
    timer, seen = timing.CudaTimer(3, gpu.meter), []
    replayed, calls = timer.captured(Prepared(seen.append))
    assert calls == 21 and seen[1:] == [0, 1, 2] * 7  # each set equally often, after a warm-up
    timer.calls_ms = lambda prepared, runs: 42.0
    figures = timing.measure_bursts(timer, {"graph": replayed}, {"graph": calls}, rounds=5)
    assert figures["graph"].times == [2.0] * 5


@pytest.mark.parametrize("bound", [True, False])
def test_host_bound_calls_are_replayed(gpu, cublaslt, monkeypatch, bound):
    """In the sustained state, where the device would be idle otherwise. The record says so."""
    monkeypatch.setattr(timing.CudaTimer, "host_us", lambda self, prepared: 9e9 if bound else 0.0)
    ran = []

    def noted(timer, competitors, seconds, calls):
        ran.append((competitors, calls))
        return timing.measure_bursts(timer, competitors, calls, rounds=1)

    monkeypatch.setattr(measure, "measure_sustained", noted)
    record = measure_case(product(("sustained",)), gpu)[0]
    for name, entry in (("ours", record["ours"]), ("cublaslt", record["peers"]["cublaslt"])):
        assert entry.get("replayed", False) == bound
        assert (ran[0][1][name] > 1) == bound
    assert list(ran[0][0]) == ["ours", "cublaslt", "cublaslt_dense"]  # in turns as before


def test_host_bound_calls_without_a_graph_are_called(gpu, cublaslt, monkeypatch):
    monkeypatch.setattr(timing.CudaTimer, "is_host_bound", lambda self, prepared: True)

    def refuse(self, prepared):
        raise RuntimeError("no graph")

    monkeypatch.setattr(timing.CudaTimer, "captured", refuse)
    entry = measure_case(product(("sustained",)), gpu)[0]["peers"]["cublaslt"]
    assert entry["ms"] > 0 and "replayed" not in entry


def test_a_lost_device_stops_the_process(gpu, cublaslt, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "gpu_facts", lambda: (dict(GPU), gpu.meter))

    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    gpu.ours = False
    run = suite.Suite(str(tmp_path / "out.json"), gpu, quiet=True, ceilings=False)
    assert run.run([product(("burst",))]) == suite.AGAIN
    crashed = read_json(tmp_path / "out.json.crashed")
    assert crashed[0]["competitor"] == "cublaslt" and "illegal memory" in crashed[0]["reason"]


@pytest.mark.parametrize("extra", [
    {}, {"causal": True}, {"causal": True, "window": 40}, {"softcap": 10.0},
    {"pattern": "random", "density": 0.4, "block_q": 64, "block_kv": 32, "lists": "per_head"},
    {"pattern": "random", "density": 0.5, "block_q": 32, "causal": True, "s": 96},
    {"sequences": 5}, {"sequences": 5, "causal": True},
])
def test_the_mask_of_flex_is_that_of_the_case(gpu, extra):
    """FlexAttention's lists and rule have the same elements as the reference."""
    from torch.nn.attention import flex_attention

    case = make_case("attention", {"s": 128, "skv": 128, "h": 2, "d": 16, "dtype": "f32", **extra})
    problem = Problem(case, "cpu")
    mask = flex.block_mask(flex_attention, problem)
    p = case.params
    seen = torch.ones(1, p["h"], p["s"], p["skv"], dtype=torch.bool)
    if problem.lists is not None:
        for counts, kind in ((mask.full_kv_num_blocks, 0), (mask.kv_num_blocks, 1)):
            assert counts.sum() == sum(flops.classify(p, one)[kind].stored for one in problem.lists)
    if mask is not None:
        rule = flex.visible(problem)
        q, kv = torch.arange(p["s"])[:, None], torch.arange(p["skv"])
        if rule is not None:
            seen &= rule(0, 0, q, kv)
        blocks = mask.to_dense().bool()
        block_q, block_kv = mask.BLOCK_SIZE
        blocks = blocks.repeat_interleave(block_q, -2).repeat_interleave(block_kv, -1)
        seen = seen & blocks[..., : p["s"], : p["skv"]]
    one = problem.sets[0]
    q, k, v = (flex.batched(arrays.to_torch(one[name])).transpose(1, 2) for name in "qkv")
    scores = q @ k.transpose(-1, -2) * p["d"] ** -0.5
    if "softcap" in p:
        scores = flex.softcapped(torch, p["softcap"])(scores, 0, 0, 0, 0)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
    out = (weights @ v).transpose(1, 2)
    check_same(problem.reference, out.reshape(one["out"].shape), "f32")


def test_blocked_ell_holds_the_matrix_row_by_row(gpu):
    problem = Problem(make_case("bsr_matmul", {**PRODUCT, "pattern": "power_law", "exponent": 1.0,
                                               "dtype": "bf16"}), "cuda")
    values = problem.sets[0]["a"]
    _, (columns, stored) = peers.get_peer("cusparse_bell").sparse_matrix(
        problem, values, lambda *arguments: None)
    rows = stored.reshape(64, -1)
    made = torch.zeros(64, 96, dtype=rows.dtype)
    for i, j in np.ndindex(*columns.shape):
        if columns[i, j] >= 0:
            to = slice(16 * int(columns[i, j]), 16 * int(columns[i, j]) + 16)
            made[16 * i : 16 * i + 16, to] = rows[16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
    assert torch.equal(made, problem.bsr_a.fill_dense(values))


MINIATURE = [
    ("matmul", {"m": 40, "n": 24, "k": 32, "transpose": "tt"}),
    ("bsr_matmul", {**PRODUCT, "side": "b", "m": 3, "n": 64}),
    ("bsr_matmul", {**PRODUCT, "pattern": "power_law", "exponent": 1.2, "density": 0.5}),
    ("bsr_matmul", {**PRODUCT, "pattern": "banded", "half_width": 1}),
    ("bsr_matmul", {**PRODUCT, "pattern": "block_diagonal", "groups": 2, "zipf": 1.2}),
    ("bsr_matmul", {**PRODUCT, "m": 128, "k": 128, "pattern": "butterfly", "levels": 2}),
    ("bsr_matmul", {**PRODUCT, "pattern": "bigbird", "half_width": 1, "global": 1, "random": 1}),
    ("sddmm", PRODUCT),
    ("spgemm", {**PRODUCT, "n": 80}),
]


@pytest.mark.parametrize("op", ["list_blocks", "top_k_blocks"])
def test_making_lists_is_measured_in_every_state(gpu, op):
    params = {"s": 256, "h": 2, "block_q": 16, "pattern": "random", "density": 0.4,
              "lists": "per_head", "dtype": "bf16"}
    for record in measure_case(make_case(op, params, ("burst", "graph", "sustained")), gpu):
        assert record["ours"]["ms"] > 0 and record["ours"]["row"] is None, record
        assert record["max_error"] == record["error_budget"] == 0


@pytest.mark.parametrize("op, params", [(op, {"n": 32, **params}) for op, params in MINIATURE])
def test_each_kind_of_product_is_measured_beside_dense_products(gpu, cublaslt, op, params):
    """One multiplies the zeros of the case, the other has random values everywhere."""
    states = ("burst",) if op == "spgemm" else ("burst", "graph")
    gpu.cache_bytes = 0
    whole = 2 * params["m"] * params["n"] * params["k"]
    case = make_case(op, {**params, "dtype": "bf16"}, states)
    for record in measure_case(case, gpu):
        mine = record["ours"]
        assert mine["row"] == f"cpu_{op.removeprefix('bsr_')}_m64_n384_k512"
        assert mine["ms"] > 0 and record["max_error"] <= record["error_budget"]
        assert ("symbolic_ms" in mine) == (op == "spgemm")
        assert record["useful_flops"] <= whole
        names = ["cublaslt"] if op in ("matmul", "sddmm") else ["cublaslt_dense", "cublaslt"]
        assert sorted(record["peers"]) == sorted(names)
        for name, entry in record["peers"].items():
            assert entry["ms"] > 0, (name, entry)
            assert ("computed_tflops" in entry) == (record["useful_flops"] != whole)
            rate = entry.get("computed_tflops", entry["tflops"])
            assert rate == pytest.approx(whole / entry["ms"] / 1e9)
    values = cublaslt.DenseProduct(Problem(case, "cuda").dense()).sets[0]
    assert all(one.count_nonzero() > 0.99 * one.numel() for one in values[:2])


def test_a_wrong_dense_product_gets_no_time(gpu, cublaslt, monkeypatch):
    monkeypatch.setattr(cublaslt.Product, "run", lambda self, i, _: self.sets[i][2].zero_())
    record = measure_case(product(("burst",)), gpu)[0]
    for entry in record["peers"].values():
        assert entry["unavailable"].startswith("wrong result")


@pytest.mark.parametrize("extra", [
    {"pattern": "random", "density": 0.3, "block_q": 64}, {"sequences": 3, "causal": True},
    {"hk": 1}, {"softcap": 20.0}])
def test_our_dense_attention_is_a_peer_of_cases_with_a_mask_or_an_option(gpu, monkeypatch, extra):
    monkeypatch.setattr(peers, "peer_names", lambda device=None: ["tessera_dense"])
    sizes = {"s": 128, "h": 2, "d": 16, "dtype": "bf16"}
    record = measure_case(make_case("attention", {**sizes, **extra}, ("burst",)), gpu)[0]
    dense = record["peers"]["tessera_dense"]
    assert dense["ms"] > 0 and "ms" in record["ours"]
    whole = 4 * 2 * 16 * (128 * 129 // 2 if "causal" in extra else 128 * 128)
    assert dense.get("computed_tflops", dense["tflops"]) == pytest.approx(whole / dense["ms"] / 1e9)
    plain = measure_case(make_case("attention", sizes, ("burst",)), gpu)[0]
    assert plain["peers"] == {}


def test_a_case_may_ask_for_less_than_the_caller(gpu, cublaslt, monkeypatch):
    asked = []

    def noted(timer, competitors, seconds, calls):
        asked.append(seconds)
        return timing.measure_bursts(timer, competitors, rounds=1)

    monkeypatch.setattr(measure, "measure_sustained", noted)
    for seconds in (None, 0.01, 7.0):
        case = make_case("bsr_matmul", {**PRODUCT, "dtype": "bf16"}, ("sustained",), None, seconds)
        measure_case(case, gpu)
    assert asked == [0.05, 0.01, 0.05]


@pytest.mark.parametrize("extra", [{}, {"causal": True, "window": 20}, {"softcap": 8.0, "hk": 1},
                                   {"sequences": 4, "causal": True}])
def test_flash_attention_3_gets_the_options_of_the_case(gpu, monkeypatch, extra):
    asked = []

    class Fa3:
        """FlashAttention-3's functions, which record their arguments."""

        flash_attn_func = flash_attn_varlen_func = staticmethod(
            lambda q, *tensors, **options: asked.append((tensors[2:], options)) or (q, None))

    fa3 = peers.get_peer("fa3")
    case = make_case("attention", {"s": 96, "h": 2, "d": 16, "dtype": "bf16", **extra})
    assert fa3.refuse(case) is None
    problem = Problem(case, "cuda")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)  # the other build works too
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", Fa3)
    assert fa3.prepare(problem).run(0) is problem.sets[0]["q"]
    packing, options = asked[-1]
    assert options == {"causal": "causal" in extra, "softcap": extra.get("softcap", 0),
                       "window_size": (20, 0) if "window" in extra else (-1, -1)}
    if "sequences" in extra:
        offsets, same, longest, _ = packing
        assert offsets is same is problem.offsets_array and longest == offsets.diff().max()
    else:
        assert packing == ()


FP8 = {"s": 192, "h": 4, "hk": 2, "d": 32, "dtype": "e4m3"}


@pytest.fixture
def fa3_in_fp8(monkeypatch):
    """FlashAttention-3's function, which rounds P as its kernels do: a list of the factors that it
    got. An infinite result where `overflows(v)`."""
    def arm(overflows=lambda v: False):
        asked = []

        def flash_attn_func(q, k, v, causal, window_size, softcap, **descales):
            asked.append(descales)
            group, overflow = q.shape[2] // k.shape[2], overflows(v)
            q, k, v = (x.float() * descales[name + "_descale"].repeat_interleave(
                x.shape[2] // k.shape[2], 1)[:, None, :, None]
                for name, x in (("q", q), ("k", k), ("v", v)))
            k, v = (x.repeat_interleave(group, 2) for x in (k, v))
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
            p = (scores - scores.amax(-1, True)).exp()
            rounded = (256 * p).to(torch.float8_e4m3fn).float() / 256
            out = torch.einsum("bhqk,bkhd->bqhd", rounded / p.sum(-1, True), v)
            return out.to(torch.bfloat16) * (torch.inf if overflow else 1)

        module = types.ModuleType("fa3_fwd_interface")
        module.flash_attn_func = flash_attn_func
        monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
        monkeypatch.setitem(sys.modules, "fa3_fwd_interface", module)
        return asked

    return arm


@pytest.mark.parametrize("factors", ["head", "tensor"])
def test_fp8_is_measured_beside_the_peers_that_run_it(gpu, fa3_in_fp8, factors):
    """Times and the errors for both kinds of inputs, of ours and of each peer."""
    asked = fa3_in_fp8()
    case = make_case("attention", {**FP8, "b": 2, "factors": factors}, ("burst", "graph"))
    records = measure_case(case, gpu)
    for record in records:
        assert "ms" in record["ours"] and record["max_error"] <= record["error_budget"]
        assert set(record["peers"]) == {"tessera_dense", "tessera_bf16", "fa3"}
        for name, entry in {"ours": record["ours"], **record["peers"]}.items():
            assert entry["ms"] > 0 and ("rms_error" in entry) == (name != "tessera_dense"), name
        errors = {name: entry["rms_error"] for name, entry in
                  {**record["peers"], "ours": record["ours"]}.items() if "rms_error" in entry}
        for kind in ("normal", "difficult"):
            assert 0 < errors["ours"][kind] < 0.005  # the CPU does not round P to e4m3
            assert 0 < errors["tessera_bf16"][kind] < 0.005
        assert 0.01 < errors["fa3"]["normal"] < 0.05
    for descales in asked:
        assert {one.shape for one in descales.values()} == {(2, 2)}
        assert (descales["k_descale"][:, 0] == descales["k_descale"][:, 1]).all() == (
            factors == "tensor")
    whole = result_of(records)
    assert results.problems(whole) == []
    whole["cases"][0]["ours"]["rms_error"] = {"normal": 0.1}
    assert "rms_error: 'difficult' is missing" in results.problems(whole)[0]


def test_fp8_is_measured_with_contiguous_keys_of_v(gpu, fa3_in_fp8):
    fa3_in_fp8()
    case = make_case("attention", {**FP8, "v_layout": "keys"}, ("burst",))
    v, = {one["v"].stride() for one in Problem(case, gpu).sets}
    assert v[1] == 1 and v[3] % 16 == 0
    record, = measure_case(case, gpu)
    assert record["max_error"] <= record["error_budget"]
    assert set(record["peers"]) == {"tessera_dense", "tessera_bf16", "fa3"}
    assert all(entry["ms"] > 0 for entry in (record["ours"], *record["peers"].values()))
    assert case.label.endswith(" v by keys e4m3")


@pytest.mark.parametrize("extra", [{}, {"page": 16, "b": 2}])
def test_keys_in_fp8_are_measured_beside_the_same_values_in_bf16(gpu, fa3_in_fp8, extra):
    """FlashAttention-3 takes queries in FP8 too, so that its result is farther from ours."""
    asked = fa3_in_fp8()
    module = sys.modules["fa3_fwd_interface"]
    without_pages = module.flash_attn_func

    def flash_attn_with_kvcache(*tensors, cache_seqlens, **options):
        return without_pages(*tensors, **options)

    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    case = make_case("attention", {"s": 64, "skv": 192, "h": 4, "hk": 2, "d": 32, **extra,
                                   "kv_dtype": "e4m3", "factors": "tensor"}, ("burst",))
    record, = measure_case(case, gpu)
    assert record["max_error"] <= record["error_budget"]
    entries = {name: one for name, one in record["peers"].items() if "ms" in one}
    assert set(entries) == {"tessera_bf16", "tessera_dense", "fa3"}
    assert all("rms_error" not in one for one in (record["ours"], *entries.values()))
    assert set(asked[0]) == {"q_descale", "k_descale", "v_descale"}
    assert entries["fa3"]["max_error"] > record["max_error"]
    assert "k, v e4m3 one factor" in case.label and case.label.endswith("bf16")
    assert results.problems(result_of([record])) == []


def test_errors_of_fp8_that_are_not_finite_are_none(gpu, fa3_in_fp8):
    fa3_in_fp8(overflows=lambda v: v.float().mean() > 20)
    record, = measure_case(make_case("attention", FP8, ("burst",), ["fa3"]), gpu)
    assert record["peers"]["fa3"]["rms_error"]["difficult"] is None
    assert results.problems(result_of([record])) == []
    assert "not finite" in text_table([record])
    assert record["peers"]["fa3"]["rms_error"]["normal"] > 0


FP8_PRODUCTS = [("matmul", {}), ("matmul", {"experts": 3}),
                ("bsr_matmul", {"block": 16, "pattern": "random", "density": 0.4}),
                ("bsr_matmul", {"block": 16, "pattern": "random", "density": 0.4, "experts": 3})]


@pytest.fixture
def scaled_mm(monkeypatch):
    """torch._scaled_mm in float32: a list of the shapes of the factors that it got."""
    asked = []

    def stand_in(a, b, scale_a, scale_b, out_dtype, use_fast_accum):
        assert a.stride(-1) == b.stride(0) == 1 and not use_fast_accum
        asked.append((tuple(scale_a.shape), tuple(scale_b.shape)))

        def wide(x, scale):
            for axis, size in enumerate(x.shape if scale.ndim else ()):
                box = {1: size, size: 1}.get(scale.shape[axis], 128)
                scale = scale.repeat_interleave(box, axis).narrow(axis, 0, size)
            return x.float() * scale

        return (wide(a, scale_a) @ wide(b, scale_b)).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", stand_in)
    return asked


@pytest.mark.parametrize("factors", ["tensor", "row", "block"])
@pytest.mark.parametrize("op, more", FP8_PRODUCTS)
def test_products_in_fp8_are_measured_beside_their_peers(gpu, scaled_mm, op, more, factors):
    case = make_case(op, {"m": 96, "n": 160, "k": 272, "dtype": "e4m3", "factors": factors, **more},
                     ("burst",))
    record, = measure_case(case, gpu)
    assert "ms" in record["ours"] and record["max_error"] <= record["error_budget"]
    wanted = {"tessera_bf16"}
    if "experts" not in more:
        wanted |= {"torch_dense"}
    elif op == "bsr_matmul":
        wanted |= {"tessera_dense"}
    assert set(record["peers"]) == wanted
    for name, entry in {"ours": record["ours"], **record["peers"]}.items():
        assert entry["ms"] > 0, name
        if "rms_error" in entry:
            assert all(0 < entry["rms_error"][kind] < 0.005 for kind in ("normal", "difficult"))
    if scaled_mm:
        assert set(scaled_mm) == {{"tensor": ((), ()), "row": ((96, 1), (1, 160)),
                                   "block": ((96, 3), (3, 2))}[factors]}
    assert results.problems(result_of([record])) == []


@pytest.mark.parametrize("op, more", FP8_PRODUCTS)
def test_inputs_of_products_in_fp8_use_the_range(gpu, op, more):
    case = make_case(op, {"m": 96, "n": 160, "k": 272, "dtype": "e4m3", "factors": "block", **more})
    problem = Problem(case, "cuda")
    inputs = problem.sets[0]
    assert {inputs[name].dtype for name in "ab"} == {torch.float8_e4m3fn}
    assert inputs["out"].dtype == torch.bfloat16
    assert all(inputs[name].float().abs().max() == 448 for name in "ab")
    assert inputs["a_scale"].shape == (96, 3) and inputs["a_scale"].stride(0) == 1
    lists = problem.lists
    assert inputs["b_scale"].shape == ((lists.stored,) if lists else
                                       (*([3] if "experts" in more else []), 2, 3))
    wide = problem.in_bf16().sets[0]
    assert set(wide) == {"a", "b", "out"} and wide["b"].shape == inputs["b"].shape
    assert 0.9 < wide["a"].float().std() < 1.1


@pytest.mark.parametrize("share", [1.0, 1.1])
def test_a_wrong_fp8_product_exceeds_its_budget(share):
    problem = Problem(make_case("matmul", {"m": 96, "n": 160, "k": 272, "dtype": "e4m3",
                                           "factors": "row"}), "cpu")
    right = ours.prepare_ours(problem)
    prepared = Prepared(lambda i: right.run(i) * share)
    if share == 1:
        error, budget = measure.check_ours(prepared, problem)
        assert error <= budget
    else:
        with pytest.raises(WrongResult):
            measure.check_ours(prepared, problem)


@pytest.mark.parametrize("share", [1.0, 1.2])
def test_a_wrong_result_in_fp8_is_over_its_budget(share):
    problem = Problem(make_case("attention", {**FP8, "hk": 4}), "cpu")
    right = ours.prepare_ours(problem)
    prepared = Prepared(lambda i: right.run(i) * share)
    if share == 1:
        error, budget = measure.check_ours(prepared, problem)
        assert error < budget
    else:
        with pytest.raises(WrongResult):
            measure.check_ours(prepared, problem)


def test_fp8_of_the_reference_is_that_of_pytorch():
    values = np.concatenate([np.linspace(-500, 500, 4001), np.linspace(-0.1, 0.1, 4001),
                             2.0 ** np.arange(-12, 9)]).astype(np.float32)
    want = torch.from_numpy(values).clamp(-448, 448).to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(arrays.round_to(values, "e4m3"), want)
    x = torch.randn(3, 50, 4, 8) * torch.tensor([1.0, 2.0, 3.0, 100.0])[:, None]
    for count, different in ((1, 1), (2, 2), (4, 4)):
        narrow, factors = arrays.quantized(x, count)
        assert narrow.dtype == torch.float8_e4m3fn and len(set(factors.tolist())) == different
        assert factors.shape == (1,) if count == 1 else (4,)
        assert narrow.float().abs().amax() == 448
        wide = arrays.widened(narrow, factors[:, None])
        assert wide.dtype == torch.bfloat16
        error = (wide.float() - x).abs() / x.abs().clamp(min=factors[-1] / 50)
        assert error.max() < 0.07


def attended(q, k, v, causal):
    """Attention of one sequence: q [queries, heads, dim], k and v [keys, kv_heads, dim]."""
    q, k, v = (x.transpose(0, 1)[None].float() for x in (q, k, v))
    seen = None
    if causal:
        seen = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]) == 1
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen,
                                                           enable_gqa=True)
    return out[0].transpose(0, 1).to(torch.bfloat16)


class Fa3Caches:
    """FlashAttention-3's function for caches of keys."""

    flash_attn_func = None

    @staticmethod
    def flash_attn_with_kvcache(q, k, v, cache_seqlens, causal, window_size, softcap):
        assert window_size == (-1, -1) and softcap == 0
        return torch.stack([attended(q[b], k[b, :n], v[b, :n], causal)
                            for b, n in enumerate(cache_seqlens)])


def fa4_over_pages(q, k, v, out, causal, return_lse, page_table, seqused_k):
    for b, n in enumerate(seqused_k):
        keys, values = (pool[page_table[b].long()].flatten(0, 1)[:n] for pool in (k, v))
        out[b] = attended(q[b], keys, values, causal)
    return out, None


class FlashInferPages:
    """FlashInfer's wrappers for pages."""

    __version__ = "1"

    class BatchPrefillWithPagedKVCacheWrapper:
        def __init__(self, workspace, layout, backend):
            assert layout == "NHD"

        def plan(self, queries, offsets, numbers, last, heads, kv_heads, dim, page, *,
                 head_dim_vo, causal, **options):
            self.plans = queries, offsets, numbers, last, page, causal

        def run(self, q, pools, out):
            queries, offsets, numbers, last, page, causal = self.plans
            for b, rest in enumerate(last):
                pages = numbers[offsets[b] : offsets[b + 1]].long()
                length = (len(pages) - 1) * page + rest
                rows = slice(queries[b], queries[b + 1])
                out[rows] = attended(q[rows], *(pool[pages].flatten(0, 1)[:length]
                                                for pool in pools), causal)
            return out

    class BatchDecodeWithPagedKVCacheWrapper(BatchPrefillWithPagedKVCacheWrapper):
        def __init__(self, workspace, layout, use_tensor_cores):
            pass

        def plan(self, offsets, *where, **options):
            queries = torch.arange(len(offsets))
            super().plan(queries, offsets, *where, head_dim_vo=None, causal=False)


@pytest.mark.parametrize("extra", [{"s": 3, "causal": True}, {"s": 1, "lengths": 1.0}])
@pytest.mark.parametrize("name", ["fa3", "fa4", "flashinfer"])
def test_peers_attend_to_the_keys_on_the_pages(gpu, monkeypatch, name, extra):
    sizes = {"b": 4, "skv": 45, "h": 4, "hk": 2, "d": 16, "page": 16}
    case = make_case("attention", {**sizes, **extra})
    problem, peer = Problem(case, "cuda"), peers.get_peer(name)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", Fa3Caches)
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", types.ModuleType("flash_attn.cute"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface",
                        types.SimpleNamespace(_flash_attn_fwd=fa4_over_pages))
    monkeypatch.setitem(sys.modules, "flashinfer", FlashInferPages)
    monkeypatch.setattr("tessera.bench.peers.flashinfer.fastest", lambda runs: [
        run() for run in runs.values()] and list(runs)[-1])
    monkeypatch.setattr("tessera.bench.peers.flashinfer.WORKSPACE", 1)
    if name == "flashinfer":
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda count, dtype, device: empty(count, dtype=dtype))
    monkeypatch.setattr(peer, "version", lambda: "1", raising=False)
    assert peer.refuse(case) is None
    prepared = peer.prepare(problem)
    problem.poison()
    check_same(problem.reference, prepared.run(0), problem.dtype)
    assert (prepared.version or "").endswith({"fa3": "(contiguous keys)", "flashinfer": (
        "(decode)" if extra["s"] == 1 else "(fa2)")}.get(name, ""))


def test_the_first_slice_follows_other_work(gpu, monkeypatch):
    """The second competitor warms up, so that the first one follows the same one in both rounds."""
    monkeypatch.setattr(timing, "STEADY", math.inf)
    ran = []

    def competitor(name):
        def run(i):
            ran.append(name)
            time.sleep(1e-3)

        return Prepared(run)

    timer = timing.CudaTimer(1, gpu.meter)
    figures = timing.measure_sustained(timer, {name: competitor(name) for name in "abc"}, 0.05)
    assert all(len(figures[name].times) == 2 for name in "abc")
    turns = [name for place, name in enumerate(ran) if place == 0 or ran[place - 1] != name]
    assert "".join(turns[3:]) == "babcba"  # after an estimate of each competitor


@pytest.mark.parametrize(("disturbed", "slices"), [((), 2), ((0,), 6), ((0, 1, 2, 3, 4), 6)])
def test_slices_that_are_not_alike_are_joined_by_more(gpu, monkeypatch, disturbed, slices):
    """By all: they are compared with each other. The median forgets a slice that was disturbed. One
    run of b is 20 calls, and its time that of one."""
    def slice_of(timer, name, calls, seconds, figures):
        late = name == "a" and len(figures.times) in disturbed
        figures.times.append(2.0 + len(figures.times) if late else 1.0)

    monkeypatch.setattr(timing, "time_slice", slice_of)
    monkeypatch.setattr(timing, "keep_busy", lambda *arguments: None)
    monkeypatch.setattr(timing, "estimate_ms", lambda timer, one: 1.0)
    figures = timing.measure_sustained(None, {"a": "a", "b": "b"}, 1.0, {"a": 1, "b": 20})
    assert [len(one.times) for one in figures.values()] == [slices] * 2
    assert figures["b"].ms == 0.05
    assert figures["a"].ms == (1.0 if len(disturbed) < 2 else 3.5)


def test_a_symbolic_plan_runs_on_new_values(gpu):
    """On a GPU only the numeric step is timed; it has to read the current values."""
    problem = Problem(make_case("spgemm", {**PRODUCT, "n": 80, "dtype": "bf16"}), "cuda")
    prepared = ours.prepare_ours(problem)
    before = prepared.run(0).matrix.values.clone()
    problem.sets[0]["a"] *= 2
    assert torch.equal(prepared.run(0).matrix.values, 2 * before)


def test_nvml_is_absent_without_harm():
    meter = nvml.Nvml(library="libnothing-of-this-name.so")
    assert (meter.clock_mhz(), meter.joules(), meter.power_limit_w(),
            meter.driver()) == (None,) * 4


def test_cublaslt_s_structure_is_the_header_s():
    import ctypes

    from tessera.bench.peers.cublaslt import Heuristic

    assert ctypes.sizeof(Heuristic) == 96
    assert (Heuristic.workspace_bytes.offset, Heuristic.state.offset) == (64, 72)
