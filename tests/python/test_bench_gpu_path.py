"""The part of the harness that runs on a GPU, with PyTorch's CPU in the GPU's place: its events,
streams and graphs are stand-ins, the tensors and the results are real."""

import contextlib
import math
import sys
import time
from typing import ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tessera.bench import arrays, measure, nvml, ours, peers, suite, timing  # noqa: E402
from tessera.bench.cases import make_case  # noqa: E402
from tessera.bench.files import read_json  # noqa: E402
from tessera.bench.measure import Settings, measure_case  # noqa: E402
from tessera.bench.peers import flex  # noqa: E402
from tessera.bench.problem import Problem  # noqa: E402
from tessera.bench.reference import check_same  # noqa: E402
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
    """Captures by remembering that runs happened; a replay repeats one of them."""

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
def only_peer(monkeypatch):
    """One peer that multiplies with PyTorch."""
    def register(**options):
        class Plain(peers.base.Peer):
            ops = ("bsr_matmul",)

            def version(self):
                return "1"

            def prepare(self, problem):
                dense = [problem.bsr_a.fill_dense(one["a"]) for one in problem.sets]
                return Prepared(lambda i: dense[i] @ problem.sets[i]["b"], **options)

        monkeypatch.setattr(peers, "peer_names", lambda device=None: ["plain"])
        monkeypatch.setattr(peers, "get_peer", Plain)

    return register


def product(states):
    return make_case("bsr_matmul", {**PRODUCT, "dtype": "bf16"}, states)


def test_every_state_gives_figures(gpu, only_peer):
    only_peer()
    Graph.replays = 0
    gpu.seconds = 0.8
    records = measure_case(product(("burst", "sustained", "graph")), gpu)
    assert [record["state"] for record in records] == ["burst", "sustained", "graph"]
    assert Graph.replays > 0
    burst, sustained, graph = (record["peers"]["plain"] for record in records)
    for entry in (burst, sustained):
        assert entry["ms"] > 0 and entry["clock_mhz"] == 1500 and entry["host_us"] > 0
    assert burst["watts"] is None and burst["joules_per_tflop"] is None
    assert sustained["watts"] == pytest.approx(600, rel=0.05)
    assert sustained["joules_per_tflop"] == pytest.approx(sustained["watts"] / sustained["tflops"])
    assert graph["ms"] > 0 and graph["host_us"] is None


def test_a_replay_stands_for_the_calls_that_were_captured(gpu):
    timer, seen = timing.CudaTimer(3, gpu.meter), []
    replayed, calls = timer.captured(Prepared(seen.append))
    assert calls == 21 and seen[1:] == [0, 1, 2] * 7  # whole turns of the sets, after a warm-up
    timer.calls_ms = lambda prepared, runs: 42.0
    figures = timing.measure_bursts(timer, {"graph": replayed}, {"graph": calls}, rounds=5)
    assert figures["graph"].times == [2.0] * 5


@pytest.mark.parametrize("bound", [True, False])
def test_who_keeps_the_host_longer_than_the_device_is_replayed(gpu, only_peer, monkeypatch, bound):
    """In the sustained state, where the device would rest else; and says so."""
    only_peer()
    monkeypatch.setattr(timing.CudaTimer, "host_us", lambda self, prepared: 9e9 if bound else 0.0)
    ran = []

    def noted(timer, competitors, seconds, calls):
        ran.append((competitors, calls))
        return timing.measure_bursts(timer, competitors, calls, rounds=1)

    monkeypatch.setattr(measure, "measure_sustained", noted)
    record = measure_case(product(("sustained",)), gpu)[0]
    for name, entry in (("ours", record["ours"]), ("plain", record["peers"]["plain"])):
        assert entry.get("replayed", False) == bound
        assert (ran[0][1][name] > 1) == bound
    assert list(ran[0][0]) == ["ours", "plain"]  # turns stay as they are


def test_who_cannot_be_captured_is_called_all_the_same(gpu, only_peer, monkeypatch):
    only_peer()
    monkeypatch.setattr(timing.CudaTimer, "is_host_bound", lambda self, prepared: True)

    def refuse(self, prepared):
        raise RuntimeError("no graph")

    monkeypatch.setattr(timing.CudaTimer, "captured", refuse)
    entry = measure_case(product(("sustained",)), gpu)[0]["peers"]["plain"]
    assert entry["ms"] > 0 and "replayed" not in entry


def test_a_sustained_run_of_many_calls_gives_the_time_of_one(monkeypatch):
    monkeypatch.setattr(timing, "time_slice", lambda timer, name, calls, seconds, figures:
                        figures.times.append(6.0))
    monkeypatch.setattr(timing, "keep_busy", lambda *arguments: None)
    monkeypatch.setattr(timing, "estimate_ms", lambda timer, one: 1.0)
    figures = timing.measure_sustained(None, {"a": "a", "b": "b"}, 1.0, {"a": 20, "b": 1})
    assert figures["a"].ms == 0.3 and figures["b"].ms == 6.0


def test_short_runs_claim_no_energy(gpu, only_peer, monkeypatch):
    monkeypatch.setattr(timing, "ENERGY_SECONDS", 3600.0)  # so that no machine is too slow for it
    only_peer()
    record = measure_case(product(("sustained",)), gpu)[0]
    assert record["peers"]["plain"]["joules_per_tflop"] is None


def test_a_lost_device_stops_the_process(gpu, only_peer, monkeypatch, tmp_path):
    only_peer()
    facts = {"name": "X", "compute_capability": 90, "units": 1, "memory_bytes": 1, "l2_bytes": 1,
             "driver": None, "power_limit_w": None}
    monkeypatch.setattr(suite, "gpu_facts", lambda: (facts, gpu.meter))

    def lost():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    gpu.ours = False
    run = suite.Suite(str(tmp_path / "out.json"), gpu, quiet=True, ceilings=False)
    assert run.run([product(("burst",))]) == suite.AGAIN
    crashed = read_json(tmp_path / "out.json.crashed")
    assert crashed[0]["competitor"] == "plain" and "illegal memory" in crashed[0]["reason"]


def test_inputs_rotate_past_the_cache(gpu):
    problem = Problem(product(("burst",)), "cuda", cache_bytes=100_000)
    assert len(problem.sets) * problem.bytes >= 300_000


@pytest.mark.parametrize("extra", [
    {}, {"causal": True}, {"causal": True, "window": 40}, {"softcap": 10.0},
    {"pattern": "random", "density": 0.4, "block_q": 64, "block_kv": 32, "lists": "per_head"},
    {"pattern": "random", "density": 0.5, "block_q": 32, "causal": True, "s": 96},
    {"sequences": 5}, {"sequences": 5, "causal": True},
])
def test_flex_s_mask_says_what_the_case_says(gpu, extra):
    """FlexAttention's lists and rule, opened into elements, are what the reference sees."""
    from torch.nn.attention import flex_attention

    case = make_case("attention", {"s": 128, "skv": 128, "h": 2, "d": 16, "dtype": "f32", **extra})
    problem = Problem(case, "cpu")
    mask = flex.block_mask(flex_attention, problem)
    p = case.params
    seen = torch.ones(1, p["h"], p["s"], p["skv"], dtype=torch.bool)
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


def test_full_blocks_are_full_and_partial_ones_are_not(gpu):
    from torch.nn.attention import flex_attention

    case = make_case("attention", {"s": 128, "h": 1, "block_q": 32, "causal": True, "dtype": "f32",
                                   "pattern": "random", "density": 1.0})
    mask = flex.block_mask(flex_attention, Problem(case, "cpu"))
    assert mask.full_kv_num_blocks.flatten().tolist() == [0, 1, 2, 3]
    assert mask.kv_num_blocks.flatten().tolist() == [1, 1, 1, 1]


def test_blocked_ell_holds_the_matrix_row_by_row(gpu):
    from tessera.bench.peers.cusparse import PEERS

    problem = Problem(make_case("bsr_matmul", {**PRODUCT, "pattern": "power_law", "exponent": 1.0,
                                               "dtype": "bf16"}), "cuda")
    values = problem.sets[0]["a"]
    _, (columns, stored) = PEERS["cusparse_bell"].sparse_matrix(problem, values,
                                                                lambda *arguments: None)
    rows = stored.reshape(64, -1)
    made = torch.zeros(64, 96, dtype=rows.dtype)
    for i, j in np.ndindex(*columns.shape):
        if columns[i, j] >= 0:
            to = slice(16 * int(columns[i, j]), 16 * int(columns[i, j]) + 16)
            made[16 * i : 16 * i + 16, to] = rows[16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
    assert torch.equal(made, problem.bsr_a.fill_dense(values))


def test_a_dense_result_is_seen_through_the_pattern(gpu):
    from tessera.bench.peers.cublaslt import SampledView

    problem = Problem(make_case("sddmm", {**PRODUCT, "dtype": "f32"}), "cuda")
    one = problem.sets[0]
    check_same(problem.reference, SampledView(one["a"] @ one["b"], problem.bsr_out), "f32")


def test_ours_runs_on_torch_tensors(gpu):
    problem = Problem(product(("burst",)), "cuda")
    prepared = ours.prepare_ours(problem)
    error, budget = check_same(problem.reference, prepared.run(0), "bf16")
    assert error <= budget


@pytest.mark.parametrize("op", ["list_blocks", "top_k_blocks"])
def test_making_lists_is_measured_by_replays_too(gpu, op):
    params = {"s": 256, "h": 2, "block_q": 16, "pattern": "random", "density": 0.4,
              "lists": "per_head", "dtype": "bf16"}
    records = measure_case(make_case(op, params, ("burst", "graph", "sustained")), gpu)
    for record in records:
        assert record["ours"]["ms"] > 0 and record["ours"]["row"] is None, record
        assert record["max_error"] == record["error_budget"] == 0


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


@pytest.mark.parametrize("op, params", [(op, {"n": 32, **params}) for op, params in MINIATURE])
def test_each_kind_of_product_case_is_made_run_and_beaten_against_the_dense_product(
        gpu, monkeypatch, op, params):
    """As on a GPU, with PyTorch's dense product on the matrices that cuBLASLt would get."""
    from tessera.bench.peers.cublaslt import SampledView

    class Dense(peers.base.Peer):
        ops = peers.get_peer("cublaslt").ops

        def version(self):
            return "1"

        def prepare(self, problem):
            kind = problem.case.transpose

            def run(i):
                one = problem.sets[i]
                a = problem.bsr_a.fill_dense(one["a"]) if problem.bsr_a else one["a"]
                b = problem.bsr_b.fill_dense(one["b"]) if problem.bsr_b else one["b"]
                out = (a.t() if kind[0] == "t" else a) @ (b.t() if kind[1] == "t" else b)
                return SampledView(out, problem.bsr_out) if problem.bsr_out else out

            return Prepared(run, computed_flops=problem.dense_flops)

    monkeypatch.setattr(peers, "peer_names", lambda device=None: ["dense"])
    monkeypatch.setattr(peers, "get_peer", Dense)
    states = ("burst",) if op == "spgemm" else ("burst", "graph")
    gpu.cache_bytes = 0
    for record in measure_case(make_case(op, {**params, "dtype": "bf16"}, states), gpu):
        dense, mine = record["peers"]["dense"], record["ours"]
        assert dense["ms"] > 0 and mine["ms"] > 0, (dense, mine)
        family = op.removeprefix("bsr_")
        assert mine["row"] == f"cpu_{family}_m64_n384_k512"
        assert record["max_error"] <= record["error_budget"]
        assert ("symbolic_ms" in mine) == (op == "spgemm")
        whole = 2 * params["m"] * params.get("n", 32) * params["k"]
        assert record["useful_flops"] <= whole
        assert ("computed_tflops" in dense) == (record["useful_flops"] != whole)


@pytest.mark.parametrize("op, params", [
    ("bsr_matmul", PRODUCT), ("bsr_matmul", {**PRODUCT, "side": "b", "m": 3, "n": 64}),
    ("spgemm", {**PRODUCT, "n": 80})])
def test_the_dense_product_of_a_sparse_case_has_random_values_throughout(gpu, monkeypatch, op,
                                                                        params):
    from tessera.bench.peers import cublaslt

    class Product:
        """DenseProduct with PyTorch's arithmetic."""

        def __init__(self, problem):
            self.problem = problem

        def choose(self):
            return 0

        def run(self, i, algorithm):
            a, b = (self.problem.sets[i][name] for name in "ab")
            assert a.count_nonzero() > 0.99 * a.numel() and self.problem.op == "matmul"
            form = self.problem.case.transpose
            return (a.t() if form[0] == "t" else a) @ (b.t() if form[1] == "t" else b)

    dense = cublaslt.PEERS["cublaslt_dense"]
    assert not set(dense.ops) & {"matmul", "sddmm", "attention"}
    monkeypatch.setattr(cublaslt, "DenseProduct", Product)
    monkeypatch.setattr(dense, "version", lambda: "1")
    monkeypatch.setattr(peers, "peer_names", lambda device=None: ["cublaslt_dense"])
    case = make_case(op, {"n": 32, **params, "dtype": "bf16"}, ("burst",))
    record = measure_case(case, gpu)[0]
    made, p = record["peers"]["cublaslt_dense"], case.params
    assert made["computed_tflops"] == pytest.approx(2 * p["m"] * p["n"] * p["k"] / made["ms"] / 1e9)
    assert made["tflops"] < made["computed_tflops"]  # counts what the sparse case needs


@pytest.mark.parametrize("extra", [
    {"pattern": "random", "density": 0.3, "block_q": 64}, {"sequences": 3, "causal": True},
    {"hk": 1}, {"softcap": 20.0}])
def test_our_own_dense_attention_stands_beside_what_leaves_something_out(gpu, monkeypatch, extra):
    monkeypatch.setattr(peers, "peer_names", lambda device=None: ["tessera_dense"])
    sizes = {"s": 128, "h": 2, "d": 16, "dtype": "bf16"}
    record = measure_case(make_case("attention", {**sizes, **extra}, ("burst",)), gpu)[0]
    dense = record["peers"]["tessera_dense"]
    assert dense["ms"] > 0 and "ms" in record["ours"]
    whole = 4 * 2 * 16 * (128 * 129 // 2 if "causal" in extra else 128 * 128)
    assert dense.get("computed_tflops", dense["tflops"]) == pytest.approx(whole / dense["ms"] / 1e9)
    plain = measure_case(make_case("attention", sizes, ("burst",)), gpu)[0]
    assert plain["peers"] == {}


def test_a_case_may_ask_for_less_than_the_caller(gpu, only_peer, monkeypatch):
    only_peer()
    asked = []

    def noted(timer, competitors, seconds, calls):
        asked.append(seconds)
        return timing.measure_bursts(timer, competitors, rounds=1)

    monkeypatch.setattr(measure, "measure_sustained", noted)
    for seconds in (None, 0.01, 7.0):
        case = make_case("bsr_matmul", {**PRODUCT, "dtype": "bf16"}, ("sustained",), None, seconds)
        measure_case(case, gpu)
    assert asked == [0.05, 0.01, 0.05]


class Fa3Stand:
    """FlashAttention-3's functions as PyTorch would do them: which is asked with what."""

    asked: ClassVar[list] = []

    @staticmethod
    def sdpa(q, k, v, causal, window_size, softcap):
        Fa3Stand.asked.append((window_size, softcap))
        q, k, v = (one.transpose(-3, -2).double() for one in (q, k, v))
        group = q.shape[-3] // k.shape[-3]
        k, v = (one.repeat_interleave(group, -3) for one in (k, v))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        places = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        distance = places[1] - places[0] - (k.shape[-2] - q.shape[-2])
        seen = distance <= (0 if causal else k.shape[-2])
        seen &= distance >= (-window_size[0] if window_size[0] >= 0 else -q.shape[-2])
        return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(-3, -2)

    @staticmethod
    def flash_attn_func(q, k, v, *, causal, window_size, softcap):
        return Fa3Stand.sdpa(q, k, v, causal, window_size, softcap)

    @staticmethod
    def flash_attn_varlen_func(q, k, v, q_offsets, k_offsets, q_longest, k_longest, *, causal,
                               window_size, softcap):
        assert torch.equal(q_offsets, k_offsets)
        assert q_longest == k_longest == int(q_offsets.diff().max())
        parts = zip(q_offsets[:-1].tolist(), q_offsets[1:].tolist(), strict=True)
        return torch.cat([Fa3Stand.sdpa(q[a:b], k[a:b], v[a:b], causal, window_size, softcap)
                          for a, b in parts])


@pytest.mark.parametrize("extra", [{}, {"causal": True, "window": 20}, {"softcap": 8.0, "hk": 1},
                                   {"sequences": 4, "causal": True}])
def test_flash_attention_3_is_asked_for_what_the_case_says(gpu, monkeypatch, extra):
    fa3 = peers.get_peer("fa3")
    case = make_case("attention", {"s": 96, "h": 2, "d": 16, "dtype": "bf16", **extra})
    assert fa3.refuse(case) is None
    problem = Problem(case, "cuda")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)  # the other build serves too
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", Fa3Stand)
    result = fa3.prepare(problem).run(0)
    check_same(problem.reference, result, "bf16")
    assert Fa3Stand.asked[-1] == ((20, 0) if "window" in extra else (-1, -1),
                                  extra.get("softcap", 0))


def test_a_wrong_dense_product_gets_no_time(gpu, monkeypatch):
    from tessera.bench.peers import cublaslt

    class Zeros:
        def __init__(self, problem):
            self.problem = problem

        def choose(self):
            return 0

        def run(self, i, algorithm):
            return torch.zeros_like(self.problem.sets[i]["out"])

    monkeypatch.setattr(cublaslt, "DenseProduct", Zeros)
    monkeypatch.setattr(cublaslt.PEERS["cublaslt_dense"], "version", lambda: "1")
    monkeypatch.setattr(peers, "peer_names", lambda device=None: ["cublaslt_dense"])
    record = measure_case(product(("burst",)), gpu)[0]
    assert record["peers"]["cublaslt_dense"]["unavailable"].startswith("wrong result")


def test_the_first_slice_follows_work_as_the_others_do(gpu, monkeypatch):
    """Warmed up by the second, so that the first comes after the same one in both rounds."""
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
    assert "".join(turns[3:]) == "babcba"  # after an estimate of each


@pytest.mark.parametrize(("disturbed", "slices"), [((), 2), ((0,), 6), ((0, 1, 2, 3, 4), 6)])
def test_slices_that_are_not_alike_are_joined_by_more(gpu, monkeypatch, disturbed, slices):
    """By all: they are compared with each other. The median forgets a slice that was disturbed."""
    def slice_of(timer, name, calls, seconds, figures):
        late = name == "a" and len(figures.times) in disturbed
        figures.times.append(2.0 + len(figures.times) if late else 1.0)

    monkeypatch.setattr(timing, "time_slice", slice_of)
    monkeypatch.setattr(timing, "keep_busy", lambda *arguments: None)
    monkeypatch.setattr(timing, "estimate_ms", lambda timer, one: 1.0)
    figures = timing.measure_sustained(None, {"a": "a", "b": "b"}, 1.0)
    assert [len(one.times) for one in figures.values()] == [slices] * 2
    assert figures["b"].ms == 1.0
    assert figures["a"].ms == (1.0 if len(disturbed) < 2 else 3.5)


def test_a_pattern_found_once_serves_new_values(gpu):
    """The numeric half alone is timed on a GPU: it has to read the values of now."""
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


def test_the_names_of_measure_s_exceptions_reach_the_reader():
    assert str(measure.DeviceLost("fa4", "why")) == "fa4: why"
