"""tools/ncu_profile.py with a stand-in for ncu: what it asks for, what it makes of the table."""

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_results  # noqa: E402
import ncu_profile  # noqa: E402

from tessera.bench import machine_code, one_call, profiles  # noqa: E402
from tessera.bench.cases import CaseError, make_case  # noqa: E402
from tessera.bench.files import Unreadable  # noqa: E402
from tessera.bench.options import parse_case  # noqa: E402

ATTENTION = ("void tessera::cuda::sm90::attention::attention_kernel<Traits<Tile{128, 128}>>"
             "(const Arguments)")
ORDER = "order_kernel(Walk)"  # of a namespace without a name, of which ncu keeps a part
# Counter: unit, of the kernel that deals tiles out, of the one that computes. As ncu writes them.
TABLE = {
    "gpu__time_duration.sum": ("nsecond", "3,104", "1,311,744.00"),
    "gpc__cycles_elapsed.avg.per_second": ("hz", "1,500,000,000", "1,755,000,000.50"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "0.1", "74.5"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": ("%", "0", "71.25"),
    "l1tex__throughput.avg.pct_of_peak_sustained_active": ("%", "1", "40"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "1", "38.5"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "n/a", "9.5"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": ("", "12", "105,410,794"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("", "0", "1,387,413"),
    "launch__registers_per_thread": ("register/thread", "32", "168"),
    "launch__shared_mem_per_block_static": ("byte/block", "0", "0"),
    "launch__shared_mem_per_block_dynamic": ("Kbyte/block", "0", "229.376"),
    "launch__waves_per_multiprocessor": ("", "0.01", "1"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "2", "18.7"),
    "lts__t_bytes.sum": ("Mbyte", "0.01", "1,024"),
    "lts__t_sector_hit_rate.pct": ("%", "50", "85.5"),
    "dram__bytes_read.sum": ("byte", "128", "402,748,928"),
    "smsp__inst_executed.sum": ("inst", "1", "n/a"),
    "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio": ("inst", "0", "3"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "5", "1"),
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1", "1"),
}
NAMES = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
         "Block Size", "Grid Size", "Device", "CC"]


def line(cells):
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


def kernel(name, column, block, number):
    return line([number, "4242", "python3.12", "127.0.0.1", name, "1", "7", block, "(132, 1, 1)",
                 "0", "9.0", *(row[column] for row in TABLE.values())])


CSV = ("==PROF== Connected to process 4242 (/usr/bin/python3.12)\n"
       '==PROF== Profiling "attention_kernel" - 1: 0%....50%....100% - 9 passes\n'
       + line([*NAMES, *TABLE]) + line([""] * len(NAMES) + [row[0] for row in TABLE.values()])
       + kernel("unnamed>::" + ORDER, 1, "(1024, 1, 1)", 0) + kernel(ATTENTION, 2, "(384, 1, 1)", 1)
       + "==PROF== Disconnected from process 4242\n")
CALL = {"row": "sm90_attention_d128_q128_k128_s2", "machine_code": "0" * 16, "useful_flops": 1e12,
        "gpu": "NVIDIA H200"}
NCU = """#!{python}
import json, sys
if "--version" in sys.argv:
    print("NVIDIA (R) Nsight Compute Command Line Profiler")
    print("Version 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit(0)
given = dict(zip(sys.argv[1:], sys.argv[2:]))
log = open(given["--log-file"], "w")
open({seen!r}, "a").write(json.dumps(sys.argv[1:]) + "\\n")
for name in {unknown!r}:
    if any(one.split(".")[0] == name for one in given["--metrics"].split(",")):
        log.write("==ERROR== Failed to find metric regex:^" + name
                  + "\\\\.(sum|min|max|avg|pct|ratio|max_rate)$\\n")
        sys.exit(1)
log.write({text!r})
print("a word of a library")
print(json.dumps({call!r}))
sys.exit({status})
"""


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """A machine with an H200 and an ncu that says what it is told to say."""
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho NVIDIA H200\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def make(text=CSV, status=0, unknown=(), call=CALL):
        program = tmp_path / "bin" / "ncu"
        program.write_text(NCU.format(python=sys.executable, text=text, status=status,
                                      unknown=tuple(unknown), call=call,
                                      seen=str(tmp_path / "seen")))
        program.chmod(0o755)
        return tmp_path

    return make


def run(folder, *more, case="attention --q-length 16384 --causal"):
    return ncu_profile.main([case, "--out", str(folder / "profiles"), "--commit", "0123abc", *more])


STEM = "h200-attention-b1-h16-s16384-d128-causal-bf16"


def test_the_extract_is_that_of_the_longest_kernel(ncu, capsys):
    folder = ncu()
    assert run(folder) == 0, capsys.readouterr().err
    profile = json.loads((folder / "profiles" / f"{STEM}.json").read_text())
    assert profile["kernel"] == ATTENTION and profile["row"] == "sm90_attention_d128_q128_k128_s2"
    assert profile["machine_code"] == "0" * 16
    assert profile["duration_us"] == pytest.approx(1311.744)
    assert profile["useful_tflops"] == pytest.approx(1 / 1311.744e-6)
    assert profile["clock_mhz"] == pytest.approx(1755.0, abs=1e-3)
    assert profile["limiter"] == "tensor cores"
    assert profile["speed_of_light"] == {"sm": 74.5, "tensor": 71.25, "l1": 40, "l2": 38.5,
                                         "dram": 9.5, "shared": None, "issue": None}
    assert profile["stalls"] == [{"reason": "gmma", "percent": 60.0},
                                 {"reason": "selected", "percent": 20.0},
                                 {"reason": "long_scoreboard", "percent": 20.0}]
    assert profile["launch"] == {"blocks": 132, "threads": 384, "registers": 168, "waves": 1,
                                 "shared_bytes": pytest.approx(229376), "occupancy": 18.7,
                                 "occupancy_limit": None}
    assert profile["shared_memory"] == {"wavefronts": 105410794, "bank_conflicts": 1387413}
    assert profile["traffic"] == {"l2_bytes": pytest.approx(1.024e9), "l2_hit": 85.5,
                                  "dram_read_bytes": 402748928, "dram_write_bytes": None}
    assert profile["other_kernels"] == [{"kernel": ORDER, "duration_us": pytest.approx(3.104)}]
    # n/a, and what ncu did not list.
    assert {"instructions", "dram_write", "wgmma"} <= set(profile["missing"])
    assert profile["ncu"] == "ncu 2025.3.1.0" and profile["clocks"] == "none"
    text = (folder / "profiles" / f"{STEM}.txt").read_text()
    for words in ("1,312 us at 1,755 MHz (clocks: free)", "tensor 71.25%", "gmma 60%",
                  "1,387,413 bank conflicts", "229,376 bytes shared", "hits 85.5%",
                  "also launched   order_kernel(Walk)"):
        assert words in text, words


def test_ncu_profiles_one_call_of_ours_and_leaves_the_clocks_alone(ncu):
    folder = ncu()
    assert run(folder) == 0 and run(folder, "--clocks", "base") == 0
    free, locked = map(json.loads, (folder / "seen").read_text().splitlines())
    given = dict(itertools.pairwise(free))
    assert given["--clock-control"] == "none" and given["--profile-from-start"] == "off"
    assert given["--page"] == "raw" and given["--kernel-name-base"] == "demangled"
    assert given["--kernel-name"] == "regex:.*tessera::cuda::.*"
    assert set(profiles.counters()) == set(given["--metrics"].split(","))
    assert free[-3:-1] == ["-m", "tessera.bench.one_call"]
    assert json.loads(free[-1])["params"]["s"] == 16384
    assert "base" in locked
    profile = json.loads((folder / "profiles" / f"{STEM}.json").read_text())
    assert profile["clocks"] == "base" and "locked to base" in profiles.text_of(profile)


def test_counters_that_ncu_does_not_know_are_left_out(ncu, capsys):
    folder = ncu(unknown=("gpu__dram_throughput", "sm__inst_executed_pipe_tensor_op_gmma"))
    assert run(folder) == 0
    said = capsys.readouterr().out
    assert "without gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed: not known" in said
    asked = [dict(itertools.pairwise(words))["--metrics"].split(",")
             for words in map(json.loads, (folder / "seen").read_text().splitlines())]
    assert [len(names) for names in asked] == [len(asked[0]), len(asked[0]) - 1, len(asked[0]) - 2]
    assert "gpu__time_duration.sum" in asked[-1]


def test_a_complaint_of_a_whole_name_leaves_the_others_of_its_counter():
    base = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
    counters = [base, base + ".pct_of_peak_sustained_elapsed", "lts__t_bytes.sum"]
    complaint = "==ERROR== Failed to find metric regex:^{}$"
    whole = complaint.format(counters[1].replace(".", "\\."))
    assert ncu_profile.unknown_counters(whole, counters) == [counters[1]]
    stem = complaint.format(base.partition(".")[0] + "\\.(sum|avg)")
    assert ncu_profile.unknown_counters(stem, counters) == counters[:2]
    assert ncu_profile.unknown_counters("==PROF== all metrics: lts__t_bytes.sum", counters) == []


@pytest.mark.parametrize("text, status, complaint", [
    ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
     "Performance Counters on the target device 0.\n", 1, "run as root"),
    ("==PROF== Disconnected\n==WARNING== No kernels were profiled.\n", 0,
     "ncu saw no kernel that matches regex:"),
    ("==ERROR== The application returned an error code (1).\n", 1, "exit status 1"),
    ("", 0, "ncu wrote no table"),
    (CSV.replace('"9.0","3,104"', '"9.0"'), 0, "columns, got"),
    (CSV.replace('"3,104"', '"n/a"').replace('"1,311,744.00"', '"n/a"'), 0,
     "ncu gave no kernel's duration")])
def test_what_ncu_refuses_is_said_and_nothing_is_written(ncu, capsys, text, status, complaint):
    folder = ncu(text, status)
    assert run(folder) == 2
    assert complaint in capsys.readouterr().err
    assert not (folder / "profiles").exists()


def test_without_ncu_or_gpu_or_case_it_says_so(ncu, capsys, monkeypatch):
    folder = ncu()
    assert run(folder, "--ncu", "no-such-ncu") == 2
    assert "no no-such-ncu on PATH" in capsys.readouterr().err
    assert run(folder, case="attention --dim 64") == 2
    assert "CASE: attention: the following arguments are required" in capsys.readouterr().err
    (folder / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert run(folder) == 2
    assert "no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("unit, scale", [
    ("ns", 1e-9), ("usecond", 1e-6), ("ms", 1e-3), ("s", 1), ("Mbyte", 1e6), ("byte", 1),
    ("Kbyte/block", 1e3), ("Gbyte/s", 1e9), ("cycle/nsecond", 1e9), ("Ghz", 1e9), ("%", 1),
    ("", 1), ("inst", 1), ("Tbyte/second", 1e12)])
def test_units_come_to_one(unit, scale):
    assert profiles.value_of("1,250.5", unit) == pytest.approx(1250.5 * scale)


@pytest.mark.parametrize("text", ["n/a", "", "nan", "(!) n/a"])
def test_what_is_no_number_is_missing(text):
    assert profiles.value_of(text, "%") is None


def test_far_from_every_peak_latency_limits():
    far = {"tensor": 40.0, "l1": 59.9, "l2": None, "dram": 10.0}
    assert profiles.limiter(far) == "latency"
    assert profiles.limiter({**far, "dram": 60.0}) == "memory"
    assert profiles.limiter(dict.fromkeys(far)) is None


def test_committed_profiles_are_checked(ncu, capsys, monkeypatch):
    folder = ncu()
    assert run(folder) == 0
    path = folder / "profiles" / f"{STEM}.json"

    def check(*options):
        monkeypatch.setattr(sys, "argv", ["check_results", *options, str(path)])
        status = check_results.main()
        return status, capsys.readouterr().out

    status, told = check()
    assert status == 0 and f"{path}: stale" in told
    assert check("--fresh")[0] == 1
    profile = json.loads(path.read_text())
    current = machine_code.code_of(machine_code.committed(ROOT), profile["row"], "bf16")
    path.write_text(json.dumps({**profile, "machine_code": current}))
    status, told = check("--fresh")
    assert status == 0 and "stale" not in told
    path.write_text(json.dumps({**profile, "date": "2000-01-01T00:00:00Z"}))
    assert "the text beside it is not what it gives" in check()[1]
    path.write_text(json.dumps({**profile, "limiter": 3}))
    assert check() [0] == 1
    path.write_text(json.dumps(profile))
    path.with_suffix(".txt").unlink()
    assert check()[0] == 1


def test_a_case_is_a_text_or_a_place_in_a_file(tmp_path):
    case = parse_case("attention --q-length 4096 --causal --dim 64 --dtype f16 --sequences 3 "
                      "--lengths 0.5")
    assert case == make_case("attention", {"s": 4096, "causal": True, "d": 64, "dtype": "f16",
                                           "sequences": 3, "lengths": 0.5})
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"cases": [{"op": "matmul", "params": {"m": 8, "n": 8, "k": 8},
                                           "vary": [[{"m": 8}, {"m": 16}]]}]}))
    assert parse_case(f"{path}:2").params["m"] == 16
    assert parse_case(f"{path}:matmul 16x8x8 bf16").params["m"] == 16
    assert parse_case(f"{path}:16x").params["m"] == 16


@pytest.mark.parametrize("text, complaint", [
    ("", "op: expected one of"), ("attention", "attention: .* required: --q-length"),
    ("attention s=4096", "expected options .*tessera.bench attention --help.*, got 's=4096'"),
    ("attention --q-length 8 --depth 3", "unrecognized arguments: --depth 3"),
    ("attention --q-length big", "--q-length: invalid int value: 'big'"),
    ("attention --q-length 8 --lengths 1", "--lengths applies to packed sequences"),
    ("matmul --m 8 --n 8 --k 8 --block 2", "unrecognized arguments: --block 2"),
    ("no/such.json:1", "no/such.json"), ("{}:0", "from 1 to 2, got 0"), ("{}:3", "from 1 to 2"),
    ("{}:matmul", "2 of 2 have"), ("{}:", "0 of 2 have"), ("{}:sddmm", "0 of 2 have")])
def test_a_case_that_is_none_is_refused(tmp_path, text, complaint):
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"cases": [{"op": "matmul", "params": {"n": 8, "k": 8},
                                           "vary": [[{"m": 8}, {"m": 16}]]}]}))
    with pytest.raises((CaseError, Unreadable), match=complaint):
        parse_case(text.format(path))


def test_the_call_between_the_marks_is_the_second_one(monkeypatch):
    pytest.importorskip("numpy")
    calls, marks = [], []

    class Profiler:
        def cudaProfilerStart(self):
            marks.append(len(calls))

        def cudaProfilerStop(self):
            marks.append(len(calls))

    monkeypatch.setattr(one_call, "prepare_ours", lambda problem: one_call_prepared(calls))

    def one_call_prepared(calls):
        calls.append("warm-up")
        return type("Prepared", (), {"extra": {"row": "cpu_matmul"},
                                     "run": staticmethod(calls.append)})

    case = make_case("matmul", {"m": 8, "n": 8, "k": 8, "dtype": "f32"})
    said = one_call.call_once(case, Profiler(), lambda: None, "cpu")
    assert said == {"row": "cpu_matmul", "machine_code": None, "useful_flops": 1024}
    assert calls == ["warm-up", 0] and marks == [1, 2]
