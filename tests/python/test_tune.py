"""python -m tessera.tune: the problems, the chosen kernel, and the tuning file."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera.bench.cases import make_case
from tessera.bench.measure import DeviceLost, Settings
from tessera.bench.peers.base import Unavailable
from tessera.bench.timing import Figures, Prepared
from tessera.tune import cli, show, trial
from tessera.tune.file import Refused, TuningFile
from tessera.tune.shapes import several
from tessera.tune.trial import Trial, Tried

DEVICE = "CPU: test"
MODEL, OTHER = "sm90_matmul_m128_n256_k64_s4", "sm90_matmul_m128_n128_k64_s5"
THIRD = "sm90_skinny_m256_n16_k64_s24"
PRODUCT = make_case("matmul", {"m": 64, "n": 32, "k": 48, "dtype": "f32"})
SIGNATURE = "matmul f32[64x48] * f32[48x32] -> f32 on cpu"
RESULTS = Path(__file__).parents[2] / "bench" / "results" / "tuning"
QUICK = ["--device", "cpu", "--seconds", "0.01", "--quiet"]


# ---- Problems ----------------------------------------------------------------------------------


def test_an_option_may_have_several_values():
    assert several(int)("64,128,64") == (64, 128)
    assert several(int)("1024:8192") == (1024, 2048, 4096, 8192)
    assert several(int)("3:13") == (3, 6, 12)
    assert several(int)("256:1024:256,7") == (256, 512, 768, 1024, 7)
    assert several(float)("0.1,.25") == (0.1, 0.25)


@pytest.mark.parametrize("text", ["8:4", "0:4", "1:2:3:4", "1:2:0", "1:", "", "1,", "x", "-4:4",
                                  "1:1000000000000:1"])
def test_invalid_values_are_refused(text):
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        several(int)(text)


def problems(*words):
    arguments = cli.build_parser().parse_args([*words])
    return [case.label for case in cli.wanted_cases(arguments, "cuda")[0]]


def test_every_combination_is_a_problem():
    assert problems("attention", "--q-length", "64:128", "--dim", "32,64", "--causal") == [
        f"attention B1 H16 S{s} D{d} causal bf16" for s in (64, 128) for d in (32, 64)]
    assert problems("bsr_matmul", "--m", "64", "--n", "8", "--k", "64", "--block", "16,32",
                    "--density", ".5,.25", "--dtype", "f16") == [
        f"bsr_matmul 64x8x64 random block {block} density {density} f16"
        for block in (16, 32) for density in (0.5, 0.25)]


@pytest.mark.parametrize("words, message", [
    ([], "an OP, or --workload"),
    (["matmul", "--workload", "x"], "an OP, or --workload"),
    (["matmul", "--m", "64"], "matmul: n is missing"),
    (["matmul", "--m", "1", "--n", "1", "--k", "1", "--q-length", "5"],
     "matmul: --q-length does not apply"),
    (["sddmm", "--m", "1", "--n", "1", "--k", "1", "--block", "1", "--density", "1",
      "--transpose-b"],
     "sddmm: --transpose-b applies to matmul, bsr_matmul"),
    (["matmul", "--m", "1", "--n", "1", "--k", "1", "--sparse", "a"], "applies to bsr_matmul"),
    (["matmul", "--m", "1:1000:1", "--n", "1:1000:1", "--k", "1"], "at most 10000 problems"),
    (["matmul", "--m", "1", "--n", "1", "--k", "1", "--rows", "("], "--rows: .*regular expression"),
    (["--workload", "/no/such/file"], "^tessera.tune: /no/such/file: No such file"),
    (["--workload", __file__], f"{re.escape(__file__)}: not a whole JSON file"),
    (["matmul", "--m", "1", "--n", "1", "--k", "1"], "--output: "),
])
def test_bad_input_is_one_line_that_names_it(words, message, capsys):
    assert cli.main([*words, "--device", "cpu"]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1, error


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "long"])
def test_invalid_measuring_times_are_refused(seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["matmul", "--m", "64", "--n", "64", "--k", "64", "--seconds", seconds])
    assert ended.value.code == cli.BAD_INPUT and "--seconds: " in capsys.readouterr().err


def test_each_case_of_workloads_is_a_problem_once_if_it_chooses_a_kernel(tmp_path):
    size = {"m": 64, "n": 32, "k": 48, "dtype": "f32"}
    lists = {"s": 64, "pattern": "random", "density": 0.5, "block_q": 16}
    path = tmp_path / "work.json"
    path.write_text(json.dumps({"cases": [{"op": "matmul", "params": size},
                                          {"op": "list_blocks", "params": lists}]}))
    arguments = cli.build_parser().parse_args(["--workload", str(path), "--workload", str(path)])
    cases, others = cli.wanted_cases(arguments, "cpu")
    assert [case.label for case in cases] == [PRODUCT.label] and others == 2


# ---- The chosen kernel -------------------------------------------------------------------------


def tried(row, ms, spread=0.0, **more):
    return Tried(row, predicted_ms=1.0, ms=ms, spread=spread, tflops=ms and 1 / ms, **more)


@pytest.mark.parametrize("model, other, winner", [
    ((1.0, 0.0), (0.9, 0.0), OTHER),
    ((1.0, 0.0), (1.1, 0.0), MODEL),
    ((1.0, 0.05), (0.9, 0.0), OTHER),
    ((1.0, 0.06), (0.9, 0.06), OTHER),  # 10% faster; half of the sum of the spreads is 0.06
    ((1.0, 0.11), (0.9, 0.11), MODEL),
    ((1.0, 0.2), (0.9, 0.0), MODEL),
    ((None, None), (3.0, 0.5), OTHER),
    ((1.0, 0.0), (None, None), MODEL),
    ((None, None), (None, None), None),
])
def test_another_row_wins_only_if_it_is_faster_beyond_the_spreads(model, other, winner):
    made = Trial(PRODUCT, SIGNATURE, MODEL, [tried(MODEL, *model), tried(OTHER, *other)])
    assert made.winner == winner


@pytest.fixture
def rows(monkeypatch):
    """Three kernels instead of the CPU's one. Times are invented, results are computed."""
    times = {MODEL: 1.0, OTHER: 0.5, THIRD: 2.0}
    factors = dict.fromkeys(times, 1)

    def candidate(row, predicted):
        return {"kernel": row, "accepted": predicted is not None, "predicted_ms": predicted}

    def explanation(problem):
        # The first one is the tuning file's. The cost model's choice has the lowest prediction.
        return {"problem": SIGNATURE.replace("64x", f"{problem.params['m']}x"), "candidates": [
            candidate(THIRD, 3.0), candidate(MODEL, 1.0), candidate(OTHER, 2.0),
            candidate("sm90_bsr_m64_n64_k64_s4", None)]}

    def prepare(problem, row):
        if isinstance(factors[row], Exception):
            raise factors[row]
        one = problem.sets[0]
        return Prepared(lambda i: one["a"] @ one["b"] * np.float32(factors[row]))

    monkeypatch.setattr(trial, "explanation", explanation)
    monkeypatch.setattr(trial, "prepare_ours", prepare)
    monkeypatch.setattr(trial, "take_turns", lambda timer, ready, *rest: {
        row: Figures(times=[times[row]] * 5) for row in ready})
    return factors


def attempt(pattern=""):
    return trial.try_rows(PRODUCT, Settings(), "burst", re.compile(pattern))


def test_every_kernel_that_supports_a_problem_is_timed(rows):
    made = attempt()
    assert [(one.row, one.ms, one.predicted_ms) for one in made.rows] == [
        (MODEL, 1.0, 1.0), (OTHER, 0.5, 2.0), (THIRD, 2.0, 3.0)]
    assert (made.model, made.winner, made.signature) == (MODEL, OTHER, SIGNATURE)


def test_a_pattern_selects_kernels_beside_the_cost_model_s(rows):
    assert [one.row for one in attempt("skinny|nothing").rows] == [MODEL, THIRD]
    assert [one.row for one in attempt("nothing").rows] == [MODEL]


@pytest.mark.parametrize("failure, reason", [
    (1 + 5e-5, "WrongResult: error .*, budget"), (-1, "WrongResult: relative difference"),
    (float("nan"), "WrongResult: .*not finite"), (Unavailable("not here"), "not here"),
    (RuntimeError("this build holds no kernel"), "RuntimeError: this build holds no kernel")])
def test_a_kernel_that_is_wrong_or_fails_is_not_timed(rows, failure, reason):
    rows[OTHER] = failure
    made = attempt()
    assert re.match(reason, made.of(OTHER).reason) and made.of(OTHER).ms is None
    assert made.winner == MODEL
    text = show.table([made])
    assert made.of(OTHER).reason in text and re.search(rf"{MODEL} .*cost model's, <- taken", text)


def test_without_a_kernel_the_reasons_are_the_library_s(monkeypatch):
    answer = tessera.explain(tessera.matmul, np.zeros((4, 4), "f4"), np.zeros((4, 4), "f4"),
                             backend="sm90")
    monkeypatch.setattr(trial, "explanation", lambda problem: answer)
    with pytest.raises(Unavailable, match=r"execution\.backend requires sm90"):
        attempt()


# ---- The file ----------------------------------------------------------------------------------


def made_trial(winner=OTHER, signature=SIGNATURE):
    times = {MODEL: 1.0, OTHER: 2.0, winner: 0.5}
    return Trial(PRODUCT, signature, MODEL, [tried(row, ms) for row, ms in times.items()])


def lines_of(path):
    return [line for line in path.read_text().splitlines()[2:] if not line.startswith("#")]


def test_the_library_reads_the_file_and_the_file_grows(tmp_path):
    path = tmp_path / "new folder" / "one.tuning"
    other = SIGNATURE.replace("64x", "65x")
    for signature, winner in ((SIGNATURE, OTHER), (other, THIRD), (SIGNATURE, THIRD)):
        file = TuningFile(path, DEVICE)
        file.add(made_trial(winner, signature))
        file.save()
    tessera._ffi.check_tuning(path.read_text(), DEVICE)
    first, second = lines_of(path)
    assert first.split("\t")[:2] == [THIRD, SIGNATURE] and second.split("\t")[:2] == [THIRD, other]
    assert first.split("\t")[2].startswith(f"500 us, {MODEL} 1000 us, 2")
    assert os.listdir(path.parent) == ["one.tuning"]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.tuning")), ids=lambda path: path.stem)
def test_committed_tuning_files_are_valid(path):
    device = path.read_text().splitlines()[1].removeprefix("device ")
    assert path.stem == re.sub(r"[^A-Za-z0-9]+", "-", device)
    tessera._ffi.check_tuning(path.read_text(), device)
    assert len(lines_of(path)) > 10


def test_problems_of_another_process_are_kept(tmp_path):
    path = tmp_path / "one.tuning"
    mine, theirs = TuningFile(path, DEVICE), TuningFile(path, DEVICE)
    theirs.add(made_trial(signature=SIGNATURE.replace("64x", "65x")))
    theirs.save()
    mine.add(made_trial())
    mine.save()
    assert len(lines_of(path)) == 2


GOOD = f"tessera-tuning 1\ndevice {DEVICE}\n"


@pytest.mark.parametrize("text, reason", [
    (b"", "line 1: expected 'tessera-tuning"), (b"\x7fELF\x00\xff", "line 1: expected printable"),
    (GOOD.replace("1", "2", 1).encode(), "line 1: expected version 1, got '2'"),
    (GOOD.replace(DEVICE, "other").encode(), "line 2: measured on 'other'"),
    (f"{GOOD}sm90_x\t{SIGNATURE}\n".encode(), "line 3: no kernel is called 'sm90_x'"),
])
def test_a_broken_or_foreign_file_is_refused_and_unchanged(tmp_path, text, reason):
    path = tmp_path / "one.tuning"
    path.write_bytes(text)
    with pytest.raises(Refused, match=f"{reason}.*--overwrite"):
        TuningFile(path, DEVICE)
    assert path.read_bytes() == text
    file = TuningFile(path, DEVICE, overwrite=True)
    file.add(made_trial())
    file.save()
    assert len(lines_of(path)) == 1


def test_windows_line_ends_remarks_and_links(tmp_path):
    real, path = tmp_path / "real", tmp_path / "link"
    text = f"{GOOD}# remark\n\n{MODEL}\t{SIGNATURE}\tnote\n"
    real.write_bytes(text.replace("\n", "\r\n").encode())
    path.symlink_to(real)
    file = TuningFile(path, DEVICE)
    file.add(made_trial(signature=SIGNATURE.replace("64x", "65x")))
    file.save()
    assert path.is_symlink() and lines_of(real)[0] == f"{MODEL}\t{SIGNATURE}\tnote"


# ---- The command -------------------------------------------------------------------------------

SIZES = ["matmul", "--m", "64,128", "--n", "32", "--k", "48"]


def test_the_next_process_uses_the_file(tmp_path, capsys):
    path = tmp_path / "one.tuning"
    assert cli.main([*SIZES, *QUICK, "--output", str(path)]) == cli.DONE
    out, err = capsys.readouterr()
    assert out.count("cpu_matmul_m64_n384_k512") == 2 and "<- taken" in out
    assert f"2 problems written to {path}" in err
    program = ("import numpy as np, tessera; a, b = (np.zeros(s, np.float32) for s in "
               "((128, 48), (48, 32))); print(tessera.explain(tessera.matmul, a, b)['chosen_by'])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env={**os.environ, "TESSERA_TUNING": str(path)}, check=True)
    assert done.stdout == "tuning file\n"


@pytest.mark.parametrize("words", [
    ["attention", "--q-length", "64", "--heads", "2", "--dim", "16", "--block-q", "16",
     "--density", ".5"],
    ["bsr_matmul", "--m", "64", "--n", "32", "--k", "64", "--block", "16", "--density", ".5"],
    ["sddmm", "--m", "64", "--n", "32", "--k", "64", "--block", "16", "--density", ".5"],
    ["spgemm", "--m", "64", "--n", "32", "--k", "64", "--block", "16", "--density", ".5"]])
def test_every_operation_can_be_tuned(tmp_path, words):
    path = tmp_path / "one.tuning"
    assert cli.main([*words, *QUICK, "--output", str(path)]) == cli.DONE
    (line,) = lines_of(path)
    family = words[0].removeprefix("bsr_")
    assert line.startswith("cpu_attention_q128_k192\tattention f32" if family == "attention"
                           else f"cpu_{family}_m64_n384_k512\t")


def test_a_dry_run_writes_nothing_and_json_has_everything(tmp_path, rows, capsys):
    path = tmp_path / "one.tuning"
    assert cli.main([*SIZES, *QUICK, "--output", str(path), "--dry-run", "--json"]) == cli.DONE
    assert not path.exists()
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert [one["winner"] for one in answer["problems"]] == [OTHER, OTHER]
    assert [one["ms"] for one in answer["problems"][0]["rows"]] == [1.0, 0.5, 2.0]
    assert answer["file"] is None and "nothing is written (--dry-run)" in err


def test_the_file_is_checked_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "try_rows", lambda *rest: pytest.fail("measured"))
    path, folder = tmp_path / "one.tuning", tmp_path / "folder"
    path.write_text("broken")
    folder.mkdir()
    for output, told in ((path, "line 1: "), (folder, "Is a directory"),
                         (path / "one.tuning", "Not a directory")):
        assert cli.main([*SIZES, *QUICK, "--output", str(output)]) == cli.BAD_INPUT
        assert told in capsys.readouterr().err and path.read_text() == "broken"


@pytest.mark.parametrize("error, outcome, words", [
    (KeyboardInterrupt(), cli.STOPPED, "stopped after 1 of 2 problems; 1 problem written to"),
    (DeviceLost(OTHER, "gone"), cli.FAILED, "tried 1 of 2 problems; 1 problem written to"),
    (ValueError("odd"), cli.FAILED, "tried 1 of 2 problems; 1 problem written to")])
def test_an_early_end_keeps_the_measured_problems(tmp_path, rows, monkeypatch, capsys, error,
                                                  outcome, words):
    path, true = tmp_path / "one.tuning", trial.try_rows

    def second_fails(case, *rest):
        if case.params["m"] == 128:
            raise error
        return true(case, *rest)

    monkeypatch.setattr(cli, "try_rows", second_fails)
    assert cli.main([*SIZES, *QUICK, "--output", str(path), "--json"]) == outcome
    out, err = capsys.readouterr()
    assert words in err and len(lines_of(path)) == 1
    told = json.loads(out)
    assert [one["winner"] for one in told["problems"]] == [OTHER]
    assert told.get("interrupted", False) == (outcome == cli.STOPPED)


def test_problems_without_times_are_not_written(tmp_path, rows, capsys):
    path = tmp_path / "one.tuning"
    for row in rows:
        rows[row] = RuntimeError("broken")
    assert cli.main([*SIZES, *QUICK, "--output", str(path)]) == cli.FAILED
    assert not path.exists() and "is as it was" in capsys.readouterr().err


def test_device_and_file_are_the_library_s_own():
    device, path = trial.device_and_file("cpu")
    assert device.startswith("CPU: ") and path == ""


def test_the_part_that_runs_on_a_gpu(monkeypatch):
    """In every state, on PyTorch's CPU instead of a GPU."""
    gpu_path = pytest.importorskip("test_bench_gpu_path", reason="PyTorch is not installed")
    settings = gpu_path.gpu.__wrapped__(monkeypatch)
    settings.seconds = 0.05
    case = make_case("bsr_matmul", {**gpu_path.PRODUCT, "dtype": "bf16"})
    for state in ("burst", "sustained", "graph"):
        made = trial.try_rows(case, settings, state, re.compile(""))
        (one,) = made.rows
        assert one.row == "cpu_matmul_m64_n384_k512" and one.ms > 0
        assert made.winner == made.model == "cpu_matmul_m64_n384_k512"
