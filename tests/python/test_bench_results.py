"""The reference, the result file, the suite: everything of the harness that needs no GPU."""

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from invented import EAGER, GPU, HOST
from support import KERNELS

from tessera.bench import (
    arrays,
    cli,
    machine_code,
    measure,
    ours,
    peers,
    results,
    schema,
    suite,
    table,
    timing,
    tree,
)
from tessera.bench.cases import make_case
from tessera.bench.files import Unwritable, check_writable, write_json
from tessera.bench.measure import Settings, measure_case
from tessera.bench.peers.base import Peer, Unavailable, one_line
from tessera.bench.problem import Problem
from tessera.bench.reference import WrongResult, check_same
from tessera.bench.timing import Prepared
from tessera.report import card_tables, markdown

ROOT = Path(__file__).parents[2]
SCHEMA = schema.of_results()
RANDOM = {"pattern": "random", "density": 0.4, "dtype": "f32"}
CASES = {
    "dense": ("matmul", {"m": 40, "n": 30, "k": 20, "transpose": "tn", "dtype": "f32"}),
    "sparse": ("bsr_matmul", {"m": 64, "n": 24, "k": 96, "block": 16, **RANDOM}),
    "linear": ("bsr_matmul", {"m": 24, "n": 64, "k": 96, "block": 16, "block_cols": 32,
                              "side": "b", **RANDOM}),
    "sampled": ("sddmm", {"m": 64, "n": 96, "k": 24, "block": 16, **RANDOM}),
    "both": ("spgemm", {"m": 64, "n": 96, "k": 48, "block": 16, **RANDOM}),
    "attention": ("attention", {"s": 70, "skv": 90, "b": 2, "h": 4, "hk": 2, "d": 16, "dv": 8,
                                "causal": True, "dtype": "f32"}),
    "long": ("attention", {"s": 1500, "h": 2, "d": 32, "dtype": "f32"}),
    "half": ("attention", {"s": 64, "h": 2, "d": 16, "dtype": "f16"}),
    "lists": ("attention", {"s": 64, "h": 2, "d": 16, "block_q": 16, "block_kv": 8, "window": 20,
                            "lists": "per_head", **RANDOM}),
    "packed": ("attention", {"s": 200, "h": 2, "d": 16, "sequences": 5, "causal": True,
                             "softcap": 5.0, "dtype": "f32"}),
    "pages": ("attention", {"s": 3, "skv": 50, "b": 2, "h": 4, "hk": 2, "d": 16, "dv": 8,
                            "page": 8, "causal": True, "dtype": "f32"}),
    "uneven pages": ("attention", {"s": 1, "skv": 90, "b": 5, "h": 4, "hk": 2, "d": 16, "page": 16,
                                   "lengths": 1.5, "dtype": "f16"}),
    "lists over pages": ("attention", {"s": 1, "skv": 64, "b": 3, "h": 4, "hk": 2, "d": 16,
                                       "page": 16, "block_q": 1, "block_kv": 8,
                                       "lists": "per_kv_head", **RANDOM}),
}
SETTINGS = {"device": "cpu", "seconds": 0.01}


# Ten random problems.
VERIFIED = {"op": "attention", "device": "cuda", "first_seed": 10, "last_seed": 19, "problems": 10,
            "right": 10, "refused": 0, "failed": [], "worst": 0.5, "worst_seed": 12, "seconds": 1.5}


def case_problems(record):
    return schema.problems(record, {"$ref": "#/$defs/case"}, SCHEMA)


def quick_case(name="sparse"):
    return make_case(*CASES[name])


@pytest.fixture
def fake_peer(monkeypatch):
    """Registers a peer that does what the test says, and no other."""
    def register(prepare, name="fake", refuse=None):
        class Fake(Peer):
            ops = tuple(cases_op for cases_op, _ in CASES.values())

            def version(self):
                return "1"

            def refuse(self, case):
                return refuse

        peer = Fake(name)
        peer.prepare = prepare
        monkeypatch.setattr(peers, "peer_names", lambda device=None: [name])
        monkeypatch.setattr(peers, "get_peer", lambda name: peer)

    return register


# ---- The reference -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_ours_is_within_its_budget(name):
    problem = Problem(quick_case(name), "cpu")
    problem.poison()
    error, budget = check_same(problem.reference, ours.prepare_ours(problem).run(0), problem.dtype)
    assert error <= budget


@pytest.mark.parametrize("name", [name for name in CASES if name != "both"])
def test_wrong_results_are_told(name):
    problem = Problem(quick_case(name), "cpu")
    right = np.array(ours.prepare_ours(problem).run(0))
    check_same(problem.reference, right, problem.dtype)
    for wrong in (right * np.asarray(1.1, right.dtype), np.roll(right, 1, axis=-1), -right):
        with pytest.raises(WrongResult):
            check_same(problem.reference, wrong, problem.dtype)
    unwritten = np.full_like(right, np.nan)
    with pytest.raises(WrongResult, match="not finite"):
        check_same(problem.reference, unwritten, problem.dtype)
    with pytest.raises((WrongResult, IndexError)):
        check_same(problem.reference, right[..., :-1], problem.dtype)


LISTING = {"s": 640, "skv": 320, "h": 3, "block_q": 16, "block_kv": 8, "lists": "per_head",
           **RANDOM}


@pytest.mark.parametrize("op", ["list_blocks", "top_k_blocks"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_lists_are_those_of_the_pattern_and_of_the_largest_scores(op, dtype):
    if dtype == "bf16":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    problem = Problem(make_case(op, {**LISTING, "dtype": dtype}), "cpu")
    (given,) = problem.sets[0].values()
    assert tuple(given.shape) == (1, 3, 40, 40)
    assert problem.bytes == 3 * 40 * 40 * (1 if op == "list_blocks" else arrays.BYTES[dtype])
    if dtype == "f16" and op == "top_k_blocks":
        given[...] = np.round(given)  # many are equal
    counts, indices = ours.prepare_ours(problem).run(0)
    assert check_same(problem.reference, (counts, indices), dtype) == (0, 0)
    row = problem.reference.rows[-1]
    for place, change in ((0, (0, 2, row)), (1, (0, 0, row, 0))):  # one fewer; another block
        wrong = [arrays.to_f64(array).astype(int) for array in (counts, indices)]
        wrong[place][change] ^= 1
        with pytest.raises(WrongResult, match=f"row {row} of head"):
            check_same(problem.reference, wrong, dtype)


def test_making_lists_is_a_record_like_others():
    case = make_case("list_blocks", LISTING)
    record = measure_case(case, Settings(**SETTINGS))[0]
    assert case_problems(record) == []
    assert record["peers"] == {} and record["ours"]["ms"] > 0 and record["useful_flops"] == 0
    assert "list_blocks" in table.text_table([record])
    assert timing.Figures([1.0], [], [600.0]).entry(0)["joules_per_tflop"] is None


# ---- One case ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lists, heads", [("shared", 1), ("per_kv_head", 2), ("per_head", 4)])
def test_ours_takes_as_many_lists_as_the_case_has(lists, heads):
    case = make_case("attention", {"s": 64, "h": 4, "hk": 2, "d": 8, "block_q": 8, "block_kv": 16,
                                   "lists": lists, **RANDOM})
    problem = Problem(case, "cpu")
    counts, indices = problem.stacked_lists
    assert counts.shape[:2] == indices.shape[:2] == (1, heads)
    # All query heads count, however many lists there are.
    stored = int(counts.sum()) * 4 // heads
    assert problem.useful_flops == 2 * (8 + 8) * 8 * 16 * stored
    check_same(problem.reference, ours.prepare_ours(problem).run(0), "f32")


def test_a_case_has_the_schema_s_shape_beside_real_peers():
    records = measure_case(quick_case(), Settings(**SETTINGS))
    assert [record["state"] for record in records] == ["burst"]
    assert case_problems(records[0]) == []
    assert set(records[0]["peers"]) == {"openblas", "torch", "scipy"}
    ours_entry = records[0]["ours"]
    assert ours_entry["tflops"] == pytest.approx(
        records[0]["useful_flops"] / ours_entry["ms"] / 1e9)
    assert ours_entry["row"] == "cpu_matmul_m64_n384_k512"
    openblas = records[0]["peers"]["openblas"]
    density = records[0]["useful_flops"] / (2 * 64 * 24 * 96)
    assert openblas["computed_tflops"] * density == pytest.approx(openblas["tflops"])


def test_ours_without_a_kernel_is_recorded_with_the_library_s_reason(monkeypatch):
    import tessera

    def refuses(*arguments, **options):
        raise NotImplementedError("bsr_matmul: no backend takes f32 blocks of 16")

    monkeypatch.setattr(tessera, "bsr_matmul", refuses)
    record = measure_case(quick_case(), Settings(**SETTINGS))[0]
    assert record["ours"] == {"unavailable": "bsr_matmul: no backend takes f32 blocks of 16"}
    assert record["max_error"] is None
    assert "ms" in record["peers"]["scipy"]
    assert case_problems(record) == []


@pytest.mark.parametrize("name", CASES)
def test_a_forced_backend_is_the_only_one(name):
    case = make_case(*CASES[name], ("burst",))
    forced = measure_case(case.on("sm80"), Settings(**SETTINGS, peers=()))[0]["ours"]
    assert "execution.backend requires sm80" in forced["unavailable"]
    assert "ms" in measure_case(case.on("cpu"), Settings(**SETTINGS, peers=()))[0]["ours"]
    assert case.on(None) is case and case.on("cpu").dense().params["backend"] == "cpu"
    assert case.on("cpu").label == f"{case.label} by cpu"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_keys_in_fp8_are_measured_on_a_cpu(dtype):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    case = make_case("attention", {"s": 1, "skv": 200, "h": 4, "hk": 2, "d": 32, "page": 16,
                                   "dtype": dtype, "kv_dtype": "e4m3"}, ("burst",))
    record = measure_case(case, Settings(**SETTINGS, peers=()))[0]
    assert record["ours"]["ms"] > 0 and record["max_error"] <= record["error_budget"]


def test_a_refusal_is_its_reasons_each_once_without_other_devices_kernels():
    error = NotImplementedError(
        "problem   something long\nchosen    no kernel supports this problem\n"
        "rejected  sm90_a       blocks need a multiple of 64 rows\n"
        "rejected  sm90_b       blocks need a multiple of 64 rows\n"
        "rejected  sm80         no kernel for matmul in this version\n"
        "rejected  cpu_matmul_m64_n384_k512  runs on a CPU\n")
    assert ours.refusal(error, "cuda") == (
        "no kernel: sm90_a, sm90_b: blocks need a multiple of 64 rows; "
        "sm80: no kernel for matmul in this version")
    assert ours.refusal(error, "cpu") == "no kernel: cpu_matmul_m64_n384_k512: runs on a CPU"
    assert ours.refusal(NotImplementedError("not this"), "cuda") == "not this"


def test_reasons_name_no_folder_of_the_machine(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/", "/some/where/site", *sys.path])
    assert one_line("no /some/where/site/peer/lib.so\n in 1/2") == "no peer/lib.so in 1/2"
    assert one_line("CUDA error: no\nSearch for `cudaErrorNo' in https://a.b/c") == "CUDA error: no"


def test_our_own_wrong_result_gets_no_time(monkeypatch):
    import tessera

    true = tessera.bsr_matmul
    monkeypatch.setattr(tessera, "bsr_matmul", lambda *a, **o: true(*a, **o) * np.float32(1 + 1e-5))
    monkeypatch.setattr(ours, "explanation", lambda problem, kernel: {
        "plan": {"kernel_name": "row", "predicted_ms": 1.0}})
    record = measure_case(quick_case(), Settings(**SETTINGS))[0]
    assert record["ours"]["unavailable"].startswith("wrong result: error")


def breaks(problem):
    raise KeyError("some key")


@pytest.mark.parametrize("prepare, refuse, told", [
    (lambda problem: Prepared(lambda i: np.ones((64, 24), np.float32)), None, "wrong result: "),
    (breaks, None, "KeyError: 'some key'"), (breaks, "never on Sundays", "never on Sundays")])
def test_a_peer_without_a_right_result_has_a_reason_in_place_of_a_time(fake_peer, prepare, refuse,
                                                                      told):
    fake_peer(prepare, refuse=refuse)
    record = measure_case(quick_case(), Settings(**SETTINGS))[0]
    assert record["peers"]["fake"]["unavailable"].startswith(told) and "ms" in record["ours"]


def test_every_gpu_peer_says_why_it_is_not_here():
    """Without its library a peer raises Unavailable and nothing else."""
    for name in peers.peer_names():
        peer = peers.get_peer(name)
        assert peer.name == name and peer.ops
        try:
            assert peer.version()
        except Unavailable as reason:
            assert str(reason)


# ---- Timing ------------------------------------------------------------------------------------


def test_figures_are_medians():
    figures = timing.Figures(times=[1.0, 1.1, 1.2, 1.3, 9.0], clocks=[1000, None, 1200])
    entry = figures.entry(2e12)
    assert entry["ms"] == 1.2 and entry["tflops"] == pytest.approx(2e12 / 1.2e9)
    assert entry["spread"] == pytest.approx(0.2 / 1.2)
    assert entry["clock_mhz"] == 1100 and entry["watts"] is entry["joules_per_tflop"] is None
    figures.watts = [600.0, None, 700.0]
    entry = figures.entry(6e11)  # 500 TFLOPS
    assert entry["watts"] == 650 and entry["joules_per_tflop"] == pytest.approx(1.3)


def test_power_counts_between_the_counter_s_movements():
    # It moves every 100 ms, and is looked at every 30 ms, over half a second at 700 W.
    samples = [(0.03 * i, 70.0 * int(0.3 * i)) for i in range(17)]
    assert timing.power(samples) == pytest.approx(700, rel=0.06)
    assert timing.power(samples[:12]) is None  # too short to say
    assert timing.power([(0.1 * i, None) for i in range(9)]) is None
    assert timing.power([]) is None


def test_sets_rotate():
    case = quick_case()
    once = Problem(case, "cpu")
    rotated = Problem(case, "cpu", cache_bytes=2 * once.bytes)
    assert len(once.sets) == 1 and len(rotated.sets) == 6
    seen = []
    timing.CpuTimer(3).calls_ms(Prepared(seen.append), 7)
    assert seen == [0, 1, 2, 0, 1, 2, 0]
    assert not np.array_equal(rotated.sets[0]["a"], rotated.sets[1]["a"])


# ---- Files -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "out.json"
    workload = path.with_name("w.json")
    workload.write_text(json.dumps({"cases": [{"op": op, "params": params} for op, params in
                                              (CASES["dense"], CASES["sparse"], CASES["half"])]}))
    assert cli.main(["suite", str(workload), "--device", "cpu", "--seconds", "0.01", "--json",
                     str(path), "--tree", str(ROOT), "--commit", "0123abc", "--quiet"]) == 0
    return results.read(path)


def as_gpu(result, **changes):
    return {**copy.deepcopy(result), "gpu": {**GPU, **changes}}


def test_merge_joins_cases_and_the_later_file_counts(result):
    first, second = as_gpu(result), as_gpu(result)
    first["date"], second["date"] = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    first["cases"], second["cases"] = first["cases"][:2], copy.deepcopy(second["cases"][1:])
    second["cases"][0]["ours"]["ms"] = 123.0
    first["tests"] = [{"name": "a", "outcome": "failed"}, {"name": "b", "outcome": "passed"}]
    second["tests"] = [{"name": "a", "outcome": "passed"}]
    first["host"] = [{**HOST, "call": "a"}, {**HOST, "call": "b"}]
    second["host"] = [{**HOST, "call": "a", "us": 2.0}]
    first["ceilings"], second["ceilings"] = {"l2_tbs": 5.0, "copy_tbs": 1.0}, {"copy_tbs": 2.0}
    second["eager"] = [EAGER]
    first["verify"] = [VERIFIED, {**VERIFIED, "first_seed": 20, "last_seed": 29}]
    second["verify"] = [{**VERIFIED, "right": 8, "failed": [13, 17]}]
    merged = results.merge([second, first])
    assert len(merged["cases"]) == 3
    assert merged["date"] == second["date"]
    assert [record["ours"]["ms"] for record in merged["cases"]
            if record["op"] == "bsr_matmul"] == [123.0]
    assert {test["name"]: test["outcome"] for test in merged["tests"]} == {"a": "passed",
                                                                           "b": "passed"}
    assert [(one["call"], one["us"]) for one in merged["host"]] == [("a", 2.0), ("b", 3.21)]
    assert merged["eager"] == second["eager"]
    assert merged["ceilings"] == {"l2_tbs": 5.0, "copy_tbs": 2.0}
    assert [part["ceilings"] for part in merged["parts"]] == [first["ceilings"],
                                                              second["ceilings"]]
    assert [(one["first_seed"], one["right"]) for one in merged["verify"]] == [(10, 8), (20, 10)]
    assert [part["cases"] for part in merged["parts"]] == [2, 2]
    assert schema.problems(merged, SCHEMA) == []
    assert len(results.merge([merged, first])["parts"]) == 3
    assert ", 2026-01-01, 2026-01-02" in markdown.provenance(merged)[0]


def test_random_problems_are_told_in_words():
    def said(*runs):
        return results.verified({"verify": list(runs)})

    assert said() == results.verified({}) == ""
    assert said(VERIFIED, {**VERIFIED, "worst": 0.84}) == (
        "20 random problems of attention against double precision: all right; the worst right one "
        "took 0.84 of its budget")
    wrong = said({**VERIFIED, "right": 6, "refused": 2, "failed": [13, 17]})
    assert "10 random problems of attention against double precision: 6 right, 2 refused, " \
        "2 wrong (seeds 13, 17);" in wrong
    assert said(VERIFIED, {**VERIFIED, "op": "products", "right": 8, "refused": 2}).startswith(
        f"{said(VERIFIED)}. 10 random problems of products against double precision: 8 right, 2 "
        "refused; ")
    shown = card_tables.ceilings_and_tests({"ceilings": {}, "tests": [], "verify": [VERIFIED]})
    assert shown == [said(VERIFIED) + "."]


def test_merged_shards_come_into_the_workloads_order(result):
    def case(m, state="burst"):
        record = copy.deepcopy(result["cases"][0])
        record["params"], record["state"] = record["params"] | {"m": m}, state
        return record

    whole = [case(1), case(1, "sustained"), case(2), case(3), case(4), case(5)]
    shards = [as_gpu(result) | {"cases": [record for record in whole
                                          if record["params"]["m"] % 2 == i]}
              for i in (1, 0)]
    assert results.merge(shards)["cases"] == whole


@pytest.mark.parametrize("change, names", [
    (lambda r: r["gpu"].update(name="NVIDIA H100"), "name"),
    (lambda r: r["gpu"].update(power_limit_w=500.0), "power_limit_w"),
    (lambda r: r.update(gpu=None), "GPU"),
])
def test_merge_refuses_what_does_not_belong_together(result, change, names):
    other = as_gpu(result)
    change(other)
    with pytest.raises(results.Mixed, match=names):
        results.merge([as_gpu(result), other])


def test_the_merge_command(result, tmp_path, capsys):
    for name, made in (("a", as_gpu(result)), ("b", as_gpu(result, name="NVIDIA L4"))):
        write_json(tmp_path / name, made)
    out = tmp_path / "c"
    assert cli.main(["merge", str(tmp_path / "a"), str(tmp_path / "a"), "--json", str(out)]) == 0
    assert len(results.read(out)["cases"]) == 3
    out.unlink()
    assert cli.main(["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--json", str(out)]) == 2
    assert "cards differ" in capsys.readouterr().err and not out.exists()


def test_the_check_of_committed_results(result, tmp_path):
    kernels = machine_code.committed(ROOT)
    row = next(row for row in kernels if row.startswith("sm90_attention"))
    fresh = as_gpu(result)
    fresh["cases"] = fresh["cases"][2:]
    fresh["cases"][0]["ours"].update(row=row, machine_code=machine_code.code_of(kernels, row,
                                                                                "f16"))
    stale, twice, untrue = (copy.deepcopy(one) for one in (fresh, fresh, as_gpu(result)))
    stale["cases"][0]["ours"]["row"] = "sm90_no_such_row"
    twice["cases"] *= 2
    untrue["cases"][0]["ours"]["tflops"] *= 2
    changed = "1 of 1 case is stale: its kernel has changed since\n  attention"
    for made, options, status, told in (
            (result, [], 1, "committed results come from a GPU"),
            (fresh, ["--fresh"], 0, "check_results: 1 files"),
            (stale, [], 0, changed), (stale, ["--fresh"], 1, changed),
            (as_gpu(result), [], 0, "3 of 3 cases are stale: their machine code is unknown"),
            (twice, [], 1, "comes twice"), (untrue, [], 1, "the time says")):
        path = tmp_path / "r.json"
        write_json(path, made)
        done = subprocess.run([sys.executable, ROOT / "tools" / "check_results.py", *options, path],
                              check=False, capture_output=True, text=True)
        assert done.returncode == status and told in done.stdout, told


# ---- Many cases --------------------------------------------------------------------------------


class Counting:
    """measure_case that only notes what it was asked for."""

    def __init__(self, record):
        self.record, self.keys, self.broken, self.left_out = record, [], {}, {}

    def __call__(self, case, settings, say=None):
        self.keys.append(case.key)
        self.left_out[case.key] = settings.left_out
        if case.key in self.broken:
            raise self.broken[case.key]
        return [{**self.record, "op": case.op, "params": case.params, "state": "burst",
                 "peers": {"fa4": {"unavailable": "not here"}}}]


@pytest.fixture
def counting(monkeypatch, result):
    made = Counting(result["cases"][0])
    monkeypatch.setattr(suite, "measure_case", made)
    return made


def some_cases(count):
    return [make_case("matmul", {"m": 1 + i, "n": 2, "k": 3, "dtype": "f32"}) for i in range(count)]


def run_suite(path, cases, **options):
    made = suite.Suite(path, Settings(**SETTINGS), tree=ROOT, quiet=True, **options)
    return made.run(cases), made


def test_resume_leaves_out_what_is_done(counting, tmp_path):
    path, cases = str(tmp_path / "out.json"), some_cases(4)
    assert run_suite(path, cases[:2])[0] == suite.DONE
    assert run_suite(path, cases, resume=True)[0] == suite.DONE
    assert counting.keys == [case.key for case in cases]
    assert len(results.read(path)["cases"]) == 4


def test_resume_refuses_another_machine(counting, tmp_path):
    path = str(tmp_path / "out.json")
    run_suite(path, some_cases(1))
    write_json(path, as_gpu(results.read(path)))
    with pytest.raises(results.Mixed, match="GPU"):
        run_suite(path, some_cases(2), resume=True)


def test_resume_measures_again_what_other_machine_code_gave(counting, tmp_path):
    path, cases = str(tmp_path / "out.json"), some_cases(3)
    run_suite(path, cases)
    _, made = run_suite(path, cases, resume=True)
    records = {record["params"]["m"]: record["ours"] for record in made.result["cases"]}
    kernels = {"row": {"kernel": "a" * 16}}
    code = machine_code.code_of(kernels, "row", "f32")
    for m, own in ((1, code), (2, "0" * 16), (3, None)):
        records[m].update(row="row", machine_code=own)
    for installed, done in ((None, [True] * 3), (kernels, [True, False, False])):
        made.kernels = installed
        assert [made.is_done(case) for case in cases] == done
    made.settings.ours = False  # then nothing of ours would be measured
    assert all(map(made.is_done, cases))


def test_a_file_that_another_commit_continues_names_both(counting, tmp_path):
    path, cases = str(tmp_path / "out.json"), some_cases(3)
    for commit, count in (("0123abc", 1), ("0123abc", 2), ("4567def", 3), ("4567def", 3)):
        run_suite(path, cases[:count], resume=True, commit=commit)
    parts = [(part["commit"], part["cases"]) for part in results.read(path)["parts"]]
    assert parts == [("0123abc", 2), ("4567def", 1)]
    assert "commit 0123abc, commit 4567def" in markdown.provenance(results.read(path))[0]


def test_long_reasons_end_with_a_whole_word():
    words = markdown.plain("reason " * 60)
    assert words.endswith("reason...") and len(words) <= markdown.LONGEST_REASON
    assert markdown.plain("short") == "short"



def test_a_spent_budget_stops_between_cases(counting, tmp_path):
    path = str(tmp_path / "out.json")
    status, _ = run_suite(path, some_cases(3), budget=-1)
    assert status == suite.BUDGET_SPENT and results.read(path)["cases"] == []


def test_one_broken_case_leaves_the_others(counting, tmp_path):
    cases = some_cases(3)
    counting.broken[cases[1].key] = RuntimeError("out of memory")
    status, made = run_suite(str(tmp_path / "out.json"), cases)
    assert status == suite.FAILED and len(made.result["cases"]) == 2


def test_a_lost_device_is_remembered_and_the_next_start_leaves_the_culprit_out(counting, tmp_path):
    path, cases = str(tmp_path / "out.json"), some_cases(2)
    counting.broken[cases[0].key] = measure.DeviceLost("fa4", "illegal address")
    assert run_suite(path, cases)[0] == suite.AGAIN
    counting.broken.clear()
    assert run_suite(path, cases, resume=True)[0] == suite.DONE
    assert counting.left_out == {cases[0].key: {"fa4": "lost the device: illegal address"},
                                 cases[1].key: {}}
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"]


def test_a_competitor_that_took_its_process_down_is_left_out(tmp_path):
    path = str(tmp_path / "out.json")
    attempts = suite.Attempts(path, resume=False)
    with attempts.starting("another", "fa4"):
        pass
    assert list(tmp_path.iterdir()) == []
    with attempts.starting("a case", "flex"):
        again = suite.Attempts(path, resume=True)  # as the next process sees it
    assert again.of("a case") == {"flex": "the process died while it started"}
    assert again.of("another") == suite.Attempts(path, resume=False).of("a case") == {}
    settings = Settings(**SETTINGS, left_out={"scipy": "lost the device"})
    record = measure_case(quick_case(), settings)[0]
    assert record["peers"]["scipy"] == {"unavailable": "lost the device"}


def test_shards_divide_the_cases():
    whole = list(range(11))
    parts = []
    for text in ("1/3", "2/3", "3/3"):
        which, count = suite.parse_shard(text)
        parts += whole[which::count]
    assert sorted(parts) == whole
    for wrong in ("0/3", "4/3", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(ValueError, match="shard"):
            suite.parse_shard(wrong)


# ---- The command line --------------------------------------------------------------------------


@pytest.mark.parametrize("words, title, names", [
    ("attention --q-length 256 --heads 2 --dim 32 --causal --block-q 32 --density .5",
     "attention B1 H2 S256 D32 causal random block 32x32 density 0.5 f32", {"torch", "openblas"}),
    ("bsr_matmul --m 128 --n 64 --k 96 --block 16 --density .3 --peers scipy,openblas",
     "bsr_matmul 128x64x96 random block 16 density 0.3 f32", {"scipy", "openblas"})])
def test_a_case_stands_in_a_table_with_its_peers(capsys, words, title, names):
    if "torch" in names:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    assert cli.main([*words.split(), "--device", "cpu", "--seconds", ".01", "--quiet"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert title in lines
    assert {line.split()[0] for line in lines} & {"tessera", "torch", "scipy", "openblas"} == {
        "tessera", *names}


SMALL = "matmul --device cpu --m 8 --n 8 --k 8 --seconds .01 --peers none --quiet"


@pytest.mark.parametrize("command", [SMALL, "suite bench/workloads/cpu.json --device cpu --quiet",
                                     "merge file", "ceilings"])
def test_a_file_is_tried_before_anything_is_measured(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite, "Suite", lambda *rest, **more: pytest.fail("measured"))
    monkeypatch.setattr(results, "read", lambda path: pytest.fail("read"))
    (tmp_path / "file").write_text("")
    for path, reason in ((tmp_path / "no" / "x.json", "No such file or directory"),
                         (tmp_path, "it is a folder"),
                         (tmp_path / "file" / "x.json", "Not a directory")):
        assert cli.main([*command.split(), "--json", str(path)]) == 2
        assert capsys.readouterr().err == (
            f"tessera.bench: --json: cannot write {path}: {reason}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"a": 1})
    assert os.read(reader, 100) == b'{\n "a": 1\n}\n' and pipe.is_fifo()
    os.close(reader)


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    path = tmp_path / "one.json"
    write_json(path, {"a": 1})
    whole = path.read_text()

    def fails(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"a": 2})
    assert path.read_text() == whole and os.listdir(tmp_path) == ["one.json"]


def test_a_folder_below_dev_is_a_folder_as_any_other():
    with pytest.raises(Unwritable, match=r"^--json: cannot write /dev/shm/no-such/x\.json: "):
        check_writable("--json", "/dev/shm/no-such/x.json")
    check_writable("--json", "/dev/stdout")


def test_an_interrupt_shows_and_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    cases = [{"op": "matmul", "params": {"m": m, "n": 8, "k": 8, "dtype": "f32"}} for m in (8, 16)]
    (tmp_path / "work.json").write_text(json.dumps({"name": "x", "about": "x", "cases": cases}))
    path = tmp_path / "out.json"
    measure = suite.measure_case

    def interrupted(case, *rest):
        if case.params["m"] == 16:
            raise KeyboardInterrupt
        return measure(case, *rest)

    words = ["suite", str(tmp_path / "work.json"), "--device", "cpu", "--quiet", "--peers", "none",
             "--seconds", ".01", "--json", str(path)]
    monkeypatch.setattr(suite, "measure_case", interrupted)
    assert cli.main(words) == 130
    out, err = capsys.readouterr()
    assert "matmul 8x8x8" in out and "matmul 16x8x8" not in out
    assert err == "tessera.bench: stopped; what was measured is kept\n"
    kept = results.read(path)
    assert [one["params"]["m"] for one in kept["cases"]] == [8] and kept["interrupted"] is True
    assert kept["cases"][0]["peers"] == {}
    assert results.merge([kept])["interrupted"] is True

    monkeypatch.setattr(suite, "measure_case", lambda case, *rest: pytest.fail("measured again")
                        if case.params["m"] == 8 else measure(case, *rest))
    assert cli.main([*words, "--resume"]) == 0
    whole = results.read(path)
    assert [one["params"]["m"] for one in whole["cases"]] == [8, 16]
    assert "interrupted" not in whole


def test_missing_packages_come_with_what_to_do(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert cli.main(["peers", "--device", "cpu"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("scipy"))
    assert "unavailable: import scipy: " in line and line.endswith("; pip install scipy")


@pytest.mark.parametrize("words, told", [
    ("attention --q-length 8 --half-width 2",
     "--half-width applies to the patterns banded, bigbird"),
    ("attention --q-length 8 --block-q 8 --pattern banded --half-width 2 --density .5",
     "--density applies to the patterns random, power_law, power_law_graph, not to banded"),
    ("attention --q-length 8 --block-q 8", "--block-q applies to block masks"),
    ("bsr_matmul --m 8 --n 8 --k 8 --block 8 --density .5 --sparse b", "--sparse b with"),
    ("bsr_matmul --m 8 --n 8 --k 8 --block 8 --density .5 --transpose-b", "--sparse b with"),
    ("matmul --m 1 --n 1 --k 0", "k"),
    ("matmul --m 1 --n 1 --k 1 --peers fa9", "fa9"),
    ("matmul --m 1 --n 1 --k 1 --states idle", "idle"),
    ("suite nowhere.json", "nowhere.json: No such file"),
    ("table nowhere.json", "nowhere.json: No such file"),
    ("merge nowhere.json --json /dev/null", "nowhere.json: No such file"),
])
def test_mistakes_end_with_a_sentence(words, told, capsys):
    more = [] if words.split()[0] in ("table", "merge") else ["--device", "cpu", "--quiet"]
    assert cli.main([*words.split(), *more]) == 2
    told_text = capsys.readouterr().err
    assert told in told_text and told_text.count("\n") == 1


def test_a_tree_is_found_from_its_folders(tmp_path):
    assert tree.find_tree(ROOT / "tests" / "python") == str(ROOT)
    with pytest.raises(ValueError, match=f"--tree: .*{tmp_path}"):
        tree.find_tree(tmp_path)


def test_a_table_names_units_and_who_is_missing(result):
    text = table.text_table(result["cases"])
    assert "GFLOPS" in text and "matmul 40x30x20 tn f32" in text
    absent = copy.deepcopy(result["cases"])
    absent[0]["ours"] = {"unavailable": "no kernel"}
    assert "no kernel" in table.text_table(absent)
    assert len(markdown.provenance(result, KERNELS)) == 1  # figures of a CPU are not stale
    of_torch = {"torch", "cuda"} if importlib.util.find_spec("torch") else set()
    assert set(result["toolkit"]) == {"python", "tessera"} | of_torch


def test_the_dense_case_stands_in_the_table_with_all_that_it_computes(result):
    record = copy.deepcopy(result["cases"][1])
    record["peers"]["cublaslt_dense"] = {**record["peers"]["openblas"], "tflops": 1.0,
                                         "computed_tflops": 4.0, "joules_per_tflop": 8.0}
    record["ours"]["tflops"] = 3.0
    line = next(line.split() for line in table.text_table([record]).splitlines()
                if "cublaslt_dense" in line)
    assert "4" in line and "2" in line and line[-3:] == ["0.75", "of", "it"]


def test_markdown_from_the_command_line(result, tmp_path, capsys):
    path = tmp_path / "out.json"
    write_json(path, result)
    assert cli.main(["table", str(path), "--markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(result["cases"])
    assert len({row.count("|") for row in rows}) == 1


def test_the_program_lists_a_case_of_two_workloads_once():
    workload = "bench/workloads/cpu.json"
    done = subprocess.run([sys.executable, "-m", "tessera.bench", "suite", "--list", "--device",
                           "cpu", workload, workload], check=False, cwd=ROOT, capture_output=True,
                          text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(set(done.stdout.splitlines())) == 11
