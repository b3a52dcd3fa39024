"""The card's ceilings: a stand-in for the program, what becomes of its figures, what is refused."""

import json
import sys
import types
from pathlib import Path

import pytest

from tessera.bench import ceilings, cli, machine, results, schema, suite
from tessera.bench.files import write_json
from tessera.bench.measure import Settings
from tessera.bench.progress import Progress
from tessera.report import card_tables, markdown

ROOT = Path(__file__).parents[2]
FIGURES = {"tensor_bf16_n256_tflops": 895.0, "tensor_bf16_n256_mhz": 1755.0,
           "tensor_bf16_n256_sustained_tflops": 640.0, "tensor_bf16_n256_sustained_watts": 690.0,
           "tensor_e4m3_n256_tflops": 1500.0, "tensor_bf16_n64_rs_tflops": 970.0,
           "l2_to_shared_tbs": 7.66, "hbm_read_tbs": 4.46, "launch_us": 1.25}
OF_TORCH = {"copy_tbs": 4.25, "cublas_bf16": 700.0, "cublas_bf16_sustained": 650.0}
PROGRAM = """#!{python}
import sys
import types
print("[1/2] tensor_bf16_n256", file=sys.stderr)
print("a word of warning", file=sys.stderr)
print("[2/2] launch", file=sys.stderr, flush=True)
print({text!r})
print(" ".join(sys.argv[1:]), file=open({log!r}, "w"))
sys.exit({status})
"""


@pytest.fixture
def program(tmp_path):
    printed = json.dumps(FIGURES)

    def make(text=printed, status=0):
        path = tmp_path / "ceilings"
        path.write_text(PROGRAM.format(python=sys.executable, text=text, status=status,
                                       log=str(tmp_path / "arguments")))
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def card(monkeypatch):
    """A machine with an H200, of which only NVML and PyTorch's own ceilings are stand-ins."""
    facts = {"name": "NVIDIA H200", "compute_capability": 90, "units": 132, "l2_bytes": 62914560,
             "memory_bytes": 150109880320, "driver": "580", "power_limit_w": 700.0}
    monkeypatch.setattr(ceilings, "gpu_facts", lambda: (dict(facts), None))
    monkeypatch.setattr(ceilings, "CudaTimer", lambda sets, meter: None)
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda timer, seconds: dict(OF_TORCH))
    monkeypatch.setattr(cli, "torch_with_gpu", lambda: True)
    return facts


def run(*words):
    return cli.main(["ceilings", "--tree", str(ROOT), *map(str, words)])


def test_figures_of_both_are_printed_and_written(card, program, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run("--program", program(), "--json", out, "--seconds", "0.5") == 0
    result = results.read(out)
    assert result["ceilings"] == {**FIGURES, **OF_TORCH}
    assert (tmp_path / "arguments").read_text().split() == ["--seconds", "0.5"]
    assert schema.problems(result, schema.of_results()) == []
    printed = capsys.readouterr()
    assert "| wgmma bf16 64x256x16 | 895 | 1755 | 640 |" in printed.out
    assert "NVIDIA H200, 700 W" in printed.out
    assert "[2/3] launch" in printed.err.replace(", 0:00 left", "")
    assert "a word of warning" in printed.err


def test_a_result_of_the_same_card_keeps_its_cases(card, program, tmp_path):
    out = tmp_path / "out.json"
    former = machine.header("cuda", dict(card), ROOT)
    former["ceilings"] = {"copy_tbs": 1.0}
    former["tests"] = [{"name": "host", "outcome": "passed"}]
    write_json(out, former)
    assert run("--program", program(), "--json", out) == 0
    result = results.read(out)
    assert result["tests"] == former["tests"] and result["ceilings"]["copy_tbs"] == 4.25
    former["gpu"]["name"] = "NVIDIA L4"
    write_json(out, former)
    assert run("--program", program(), "--json", out) == 2
    assert results.read(out)["ceilings"] == {"copy_tbs": 1.0}


@pytest.mark.parametrize("text, status, complaint", [
    ("", 1, "ended with exit status 1"),
    ("rubbish", 0, "expected one JSON object of numbers, got 'rubbish"),
    ("{}", 0, "expected one JSON object of numbers"),
    ('{"a": "b"}', 0, "expected one JSON object of numbers"),
    ('{"a": true}', 0, "expected one JSON object of numbers"),
    ('{"a": NaN}', 0, "expected one JSON object of numbers")])
def test_a_program_that_fails_is_refused(card, program, tmp_path, capsys, text, status, complaint):
    assert run("--program", program(text, status), "--json", tmp_path / "out.json") == 2
    printed = capsys.readouterr().err
    assert complaint in printed and "a word of warning" in printed
    assert not (tmp_path / "out.json").exists()


def test_bad_arguments_are_named(card, tmp_path, capsys, monkeypatch):
    assert run("--program", tmp_path / "none") == 2
    assert "--program: there is no program" in capsys.readouterr().err
    assert run("--program", tmp_path) == 2
    assert run("--seconds", "0") == 2
    assert "--seconds: expected 0.1 to 60, got 0" in capsys.readouterr().err
    monkeypatch.setattr(cli, "torch_with_gpu", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert run() == 2
    assert "ceilings: PyTorch sees no GPU here" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run() == 2
    told = f"ceilings: {sys.executable} has no PyTorch: pip install torch"
    assert told in capsys.readouterr().err


def test_the_program_is_looked_for_where_the_preset_builds_it(tmp_path):
    (tmp_path / "src" / "kernels").mkdir(parents=True)
    with pytest.raises(ceilings.CeilingsError, match="tessera_gpu_tests"):
        ceilings.find_program(tree=tmp_path)
    path = tmp_path / ceilings.PROGRAM
    path.parent.mkdir(parents=True)
    path.write_text("")
    path.chmod(0o755)
    assert ceilings.find_program(tree=tmp_path / "src") == str(path)


def test_the_table_has_a_line_for_each_instruction():
    lines = markdown.lines(card_tables.ceilings({"ceilings": {**FIGURES, **OF_TORCH, "new": 3}}))
    named = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert named == ["tensor cores", "wgmma bf16 64x256x16", "wgmma e4m3 64x256x32",
                     "wgmma bf16 64x64x16, A in registers", "cuBLAS bf16 8192x8192x8192", "what",
                     "L2 to shared memory, TB/s", "memory, read, TB/s",
                     "memory, copied, bytes read and written, TB/s", "a launch in a stream, us",
                     "new"]
    alone = markdown.lines(card_tables.ceilings({"ceilings": {"launch_us": 1.5}}))
    assert [line for line in alone if "1.5" in line] and "tensor" not in "".join(alone)


@pytest.mark.parametrize("measured", [{}, OF_TORCH])
def test_results_without_the_program_s_figures_have_no_such_table(measured):
    assert card_tables.ceilings({"ceilings": measured}) == []


def test_what_a_result_says_of_its_machine_needs_no_copy():
    assert card_tables.ceilings_and_tests({"ceilings": FIGURES, "tests": []}) == []


def test_merging_keeps_what_only_one_part_has(card):
    parts = [machine.header("cuda", dict(card), ROOT) for _ in range(2)]
    parts[0]["ceilings"] = {**FIGURES, "copy_tbs": 1.0}
    parts[1]["ceilings"] = dict(OF_TORCH)
    parts[1]["date"] = "2999-01-01T00:00:00Z"
    merged = results.merge(parts)
    assert merged["ceilings"] == {**FIGURES, **OF_TORCH}
    assert [part["ceilings"] for part in merged["parts"]] == [parts[0]["ceilings"], OF_TORCH]


def test_a_suite_measures_what_the_program_did_not(card, monkeypatch):
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda timer: dict(OF_TORCH))
    monkeypatch.setattr(suite, "CudaTimer", lambda sets, meter: None)
    one = object.__new__(suite.Suite)
    one.settings, one.want_ceilings = Settings(device="cuda"), True
    one.result = {"ceilings": dict(FIGURES)}
    one._ceilings(Progress(1, quiet=True))
    assert one.result["ceilings"] == {**FIGURES, **OF_TORCH}
    one.result["ceilings"]["copy_tbs"] = 1.0  # there already
    one._ceilings(Progress(1, quiet=True))
    assert one.result["ceilings"]["copy_tbs"] == 1.0

