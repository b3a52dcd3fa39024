"""The installed package, and the programs of its documentation."""

import doctest
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import tessera

ROOT = Path(__file__).resolve().parents[2]


def modules():
    """The package's modules, except programs and those whose dependencies may be missing."""
    for module in pkgutil.iter_modules(tessera.__path__):
        if module.name not in ("bench", "integrations", "overhead"):
            yield f"tessera.{module.name}"
    yield "tessera.compat.flash_attn"


def test_version_is_that_of_the_header():
    header = (ROOT / "include/tessera/version.hpp").read_text()
    assert tessera.__version__ == re.search(r'VERSION_STRING "(.+)"', header)[1]


def test_cmake_package_lies_beside_the_library():
    folder = Path(tessera.get_cmake_dir())
    if not folder.exists():
        pytest.skip("tessera runs from its source tree: nothing is installed")
    assert (folder / "tesseraConfig.cmake").exists()
    package = Path(tessera.__file__).parent
    assert (package / "include/tessera/tessera.hpp").exists()
    assert (package / "py.typed").exists()


@pytest.mark.parametrize("name", [*modules(), "tessera"])
def test_examples_in_docstrings(name):
    if name in ("tessera.nn", "tessera.torch_ops", "tessera.torch_grad",
                "tessera.compat.flash_attn"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_public_function_has_an_example():
    for name in tessera.__all__:
        thing = getattr(tessera, name)
        if callable(thing) and name not in ("Explanation", "Plan", "cuda_device_count",
                                            "get_cmake_dir"):
            assert ">>>" in thing.__doc__, name


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(page):
    """(title, program) of each fenced code block marked python."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    for i, block in enumerate(blocks, 1):
        yield pytest.param(block, id=f"{page.relative_to(ROOT).as_posix()} {i}")


def on_this_machine(program):
    """A program for a GPU, changed to run on the CPU without a GPU or a CUDA build."""
    torch = sys.modules.get("torch")
    here = torch is not None and torch.cuda.is_available() and tessera.cuda_device_count()
    return program if here else program.replace('"cuda"', '"cpu"')


@pytest.mark.parametrize("program", [block for page in PAGES for block in python_blocks(page)])
def test_programs_in_the_pages(program, tmp_path, monkeypatch):
    for name in re.findall(r"^\s*(?:import|from) (\w+)", program, re.M):
        pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    # An importable module, in which torch.compile looks up functions.
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    exec(compile(on_this_machine(program), "page", "exec"), page.__dict__)


def test_the_pages_have_programs():
    found = {page.relative_to(ROOT).as_posix() for page in PAGES if [*python_blocks(page)]}
    assert {"README.md", "docs/python.md", "docs/faq.md", "docs/howto/prune_to_bsr.md",
            "docs/howto/sparse_prefill.md", "docs/howto/serve_long_prompts.md",
            "docs/howto/replace_flash_attn.md"} <= found


def test_explain():
    q = np.empty((1, 128, 8, 64), np.float16)
    here = tessera.explain(tessera.attention, q, q, q, causal=True)
    assert here["supported"] and here["plan"]["backend"] == "cpu"
    assert here["problem"] in str(here)
    there = tessera.explain(tessera.attention, q, q, q, device="H100")
    assert "H100" in there["device"]
    assert there["supported"] and there["plan"]["backend"] == "sm90"
    assert all(c["reasons"] for c in there["candidates"] if not c["accepted"])
    mask = tessera.BlockMask.causal(128, 128, block=64)
    assert tessera.explain(tessera.attention, q, q, q, mask=mask, device="h200")["supported"]
    assert not tessera.explain(tessera.attention, q.astype(np.float32), q.astype(np.float32),
                               q.astype(np.float32), device="h100")["supported"]
    a = np.ones((64, 64), np.float32)
    m = tessera.BsrMatrix.from_dense(a, 32)
    for call in ((tessera.matmul, a, a), (tessera.bsr_matmul, m, a), (tessera.linear, a, m),
                 (tessera.sddmm, a, a, m), (tessera.spgemm, m, m)):
        assert tessera.explain(*call)["supported"], call[0]
    with pytest.raises(ValueError, match=r"device: .*h100"):
        tessera.explain(tessera.attention, q, q, q, device="h9000")
    by_name = tessera.explain("attention", q, q, q, causal=True)
    assert by_name == here and str(by_name) == str(here)
    for wrong in ("attend", np.matmul, None, np.ones(2)):
        with pytest.raises(ValueError, match=r"operation: expected one of tessera\.attention"):
            tessera.explain(wrong, q, q, q)


def test_threads_follow_openmp():
    program = ("import numpy as np, tessera; q = np.empty((1, 4096, 4, 64), np.float32); "
               "print(tessera.explain(tessera.attention, q, q, q)['plan']['threads'])")
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True)
    assert done.stdout == "1\n"


def test_explaining_runs_nothing():
    q = np.zeros((1, 4, 2, 8), np.float32)
    out = np.full_like(q, 7)
    tessera.explain(tessera.attention, q, q, q, out=out)
    assert (out == 7).all()


def test_patterns_are_the_same_everywhere():
    from tessera import patterns

    assert patterns.random(3, 8, 0.25, seed=1).sum(1).tolist() == [2, 2, 2]
    assert np.array_equal(patterns.random(9, 9, 0.5, 4), patterns.random(9, 9, 0.5, 4))
    assert patterns.banded(4, 4, 1).sum() == 10
    assert patterns.butterfly(8, 8, 3).sum(1).tolist() == [4] * 8
    assert patterns.block_diagonal(8, 8, 4).sum() == 16
    assert abs(patterns.power_law(64, 64, 0.2, 1.2).mean() - 0.2) < 0.02
    with pytest.raises(ValueError, match="density"):
        patterns.random(4, 4, 2.0)


def test_overhead_report_prints_its_breakdown(monkeypatch, capsys):
    from tessera import overhead

    once = overhead.microseconds
    monkeypatch.setattr(overhead, "microseconds",
                        lambda calls, **options: once(calls, repeats=1, rounds=1, **options))
    assert overhead.main([]) == 0
    text = capsys.readouterr().out
    assert "the export" in text and "beyond the C++ call" in text
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        return  # with a GPU, --json measures
    with pytest.raises(SystemExit) as ended:
        overhead.main(["--json"])
    assert ended.value.code == 2 and "--json: PyTorch sees no GPU here" in capsys.readouterr().err
    on_cpu = overhead.eager_calls
    monkeypatch.setattr(overhead, "torch_with_gpu", lambda: torch)
    monkeypatch.setattr(tessera, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(overhead, "eager_calls", lambda device: on_cpu("cpu"))
    assert overhead.main(["--json"]) == 0
    calls = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["peer"] for one in calls if one["call"] == "linear"] == ["F.linear"]
    assert all(one["us"] > 0 and one["peer_us"] > 0 for one in calls)
