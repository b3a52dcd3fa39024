"""The ceilings of a card: how kernels are timed, where figures are written, and bad arguments."""

import ctypes
import sys
import time
import types
from pathlib import Path

import pytest
from invented import GPU

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


def kernels(launch=lambda *arguments: 0):
    """A library whose kernels call `launch`: (name, data, sms, repeats) -> status."""
    def one(name, dtype="", data=0, out=0, amount=0.0):
        def call(data, out, sms, repeats, stream):
            return launch(name, data, sms, repeats)

        return ceilings.Kernel(name.encode(), dtype.encode(), data, out, amount,
                               ceilings.Kernel.Launch(call))

    return {"tensor": {"tensor_bf16_n256": one("tensor_bf16_n256", "bf16", 512, 8, 1e9)},
            "l2": {"l2_to_shared": one("l2_to_shared", "bf16", 512, 0, 1e3)},
            "memory": {"hbm_read": one("hbm_read", "bf16", 512, 4, 1e6)},
            "launch": {name: one(name) for name in ("launch", "overlapped_launch", "delay")}}


@pytest.fixture
def card(monkeypatch):
    """A machine with an H200, of which only NVML, the kernels and PyTorch's own ceilings are
    stand-ins."""
    facts = {**GPU, "name": "NVIDIA H200", "power_limit_w": 700.0}
    monkeypatch.setattr(ceilings, "gpu_facts", lambda: (dict(facts), None))
    monkeypatch.setattr(ceilings, "CudaTimer", lambda sets, meter: None)
    monkeypatch.setattr(ceilings, "load", lambda library, tree: kernels())
    monkeypatch.setattr(ceilings, "Card", lambda timer: types.SimpleNamespace(
        steps=lambda library, seconds: {name: lambda name=name: {name: FIGURES[name]}
                                        for name in FIGURES}))
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda timer, seconds: dict(OF_TORCH))
    monkeypatch.setattr(cli, "torch_with_gpu", lambda: True)
    return facts


def run(*words):
    return cli.main(["ceilings", "--tree", str(ROOT), *map(str, words)])


def test_figures_of_both_are_printed_and_written(card, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run("--json", out, "--seconds", "0.5") == 0
    result = results.read(out)
    assert result["ceilings"] == {**FIGURES, **OF_TORCH}
    assert schema.problems(result, schema.of_results()) == []
    printed = capsys.readouterr()
    assert "| wgmma bf16 64x256x16 | 895 | 1755 | 640 |" in printed.out
    assert "NVIDIA H200, 700 W" in printed.out
    assert "[10/10, 0:00 left] copy and dense product" in printed.err


def test_a_result_of_the_same_card_keeps_its_cases(card, tmp_path):
    out = tmp_path / "out.json"
    former = machine.header("cuda", dict(card), ROOT)
    former["ceilings"] = {"copy_tbs": 1.0}
    former["tests"] = [{"name": "host", "outcome": "passed"}]
    write_json(out, former)
    assert run("--json", out) == 0
    result = results.read(out)
    assert result["tests"] == former["tests"] and result["ceilings"]["copy_tbs"] == 4.25
    former["gpu"]["name"] = "NVIDIA L4"
    write_json(out, former)
    assert run("--json", out) == 2
    assert results.read(out)["ceilings"] == {"copy_tbs": 1.0}


def test_bad_arguments_are_named(card, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(cli, "torch_with_gpu", lambda: True)
    (tmp_path / "text.so").write_text("no library")
    for library in (tmp_path, tmp_path / "text.so", tmp_path / "none.so", "libc.so.6"):
        assert run("--library", library) == 2
        assert "--library: expected the kernels that the target" in capsys.readouterr().err
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


@pytest.fixture
def on_gpu(monkeypatch):
    """The card on PyTorch's CPU; the time of kernels is the time that they sleep."""
    gpu_path = pytest.importorskip("test_bench_gpu_path", reason="PyTorch is not installed")
    settings = gpu_path.gpu.__wrapped__(monkeypatch)
    torch, randn, zeros = gpu_path.torch, gpu_path.torch.randn, gpu_path.torch.zeros
    monkeypatch.setattr(torch, "randn", lambda size, device, dtype: randn(size, dtype=dtype))
    monkeypatch.setattr(torch, "zeros", lambda size, device: zeros(size))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    facts = types.SimpleNamespace(multi_processor_count=2, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(torch.cuda, "current_stream",
                        lambda: types.SimpleNamespace(cuda_stream=None))
    for name, seconds in (("BURST_SECONDS", 2e-3), ("CHUNK_SECONDS", 2e-3),
                          ("WARM_UP_SECONDS", 2e-3)):
        monkeypatch.setattr(ceilings, name, seconds)
    return ceilings.CudaTimer(1, settings.meter), facts


def test_each_kind_of_kernel_is_timed(on_gpu):
    launched = []

    def launch(name, data, sms, repeats):
        launched.append((name, sms))
        if name.startswith("tensor"):  # writes a sum per thread block
            (ctypes.c_float * 4).from_address(outs[0].data_ptr())[:] = [1, 2, 3, 4]
        time.sleep(0 if "launch" in name or name == "delay" else 1e-4 * repeats)
        return 0

    timer, facts = on_gpu
    card, outs = ceilings.Card(timer), []
    work = card.work

    def noted(kernel):
        made = work(kernel)
        outs[:] = [made[1]]
        return made

    card.work = noted
    steps = card.steps(kernels(launch), 0.01)
    figures = {key: one for step in steps.values() for key, one in step().items()}
    assert set(figures) == {f"tensor_bf16_n256_{key}" for key in (
        "tflops", "mhz", "sustained_tflops", "sustained_mhz")} | {
        "l2_to_shared_tbs", "hbm_read_tbs", "launch_us", "graph_launch_us", "overlapped_launch_us"}
    # 1e9 operations on each of 2 SMs in 0.1 ms; a busy machine takes longer.
    assert 0 < figures["tensor_bf16_n256_tflops"] <= 20
    assert 0 < figures["tensor_bf16_n256_sustained_tflops"] <= 20
    assert figures["tensor_bf16_n256_mhz"] == 1500 and figures["launch_us"] < 1e3
    assert {name for name, _ in launched} == {
        "tensor_bf16_n256", "l2_to_shared", "hbm_read", "launch", "overlapped_launch", "delay"}
    facts.major = 8
    assert list(ceilings.Card(timer).steps(kernels(), 1)) == ["hbm_read", "launch", "graph_launch"]


def test_times_of_launches_are_per_launch(on_gpu, monkeypatch):
    timer, _ = on_gpu
    monkeypatch.setattr(type(timer.event()), "elapsed_time", lambda self, end: 4.0)
    steps = ceilings.Card(timer).steps(kernels(), 1)
    assert steps["launch"]() == {"launch_us": 4e3 / ceilings.LAUNCHES}
    assert steps["graph_launch"]() == {
        "graph_launch_us": 4e3 / (ceilings.LAUNCHES * ceilings.REPLAYS)}


def test_broken_kernels_have_no_figures(on_gpu, monkeypatch):
    card = ceilings.Card(on_gpu[0])
    monkeypatch.setattr(card, "repeats_for", lambda run, seconds: 1)
    with pytest.raises(ceilings.CeilingsError, match="n256: sums are zero or not finite"):
        card.steps(kernels(), 0.01)["tensor_bf16_n256"]()
    with pytest.raises(ceilings.CeilingsError, match="hbm_read: the launch failed with CUDA's err"):
        card.steps(kernels(lambda *arguments: 35), 1)["hbm_read"]()


def test_the_kernels_are_looked_for_where_the_preset_builds_them(tmp_path):
    (tmp_path / "src" / "kernels").mkdir(parents=True)
    with pytest.raises(ceilings.CeilingsError, match=f"{tmp_path}/build/cuda/tests/ceilings.so"):
        ceilings.load(tree=tmp_path / "src")
    if not (ROOT / ceilings.LIBRARY).exists():
        pytest.skip("no build of bench/ceilings")
    found = ceilings.load(tree=ROOT)
    assert [len(found[part]) for part in ceilings.PARTS] == [8, 1, 1, 3]


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
def test_results_without_those_figures_have_no_such_table(measured):
    assert card_tables.ceilings({"ceilings": measured}) == []


def test_ceilings_and_tests_without_a_copy_rate():
    assert card_tables.ceilings_and_tests({"ceilings": FIGURES, "tests": []}) == []


def test_a_suite_measures_missing_ceilings(card, monkeypatch):
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

