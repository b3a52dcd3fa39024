"""The build backend: whether pip builds the GPU backends, its requirements, and the version."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("scikit_build_core")


@pytest.fixture
def real_backend(monkeypatch):
    """The backend in an environment without settings."""
    spec = importlib.util.spec_from_file_location(
        "tessera_build", ROOT / "python" / "backend" / "tessera_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", "CMAKE_ARGS", "TESSERA_LOCAL_VERSION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    return module


@pytest.fixture
def backend(real_backend, monkeypatch):
    """The backend on a machine without nvcc."""
    monkeypatch.setattr(real_backend, "find_nvcc", lambda: None)
    return real_backend


def nvcc(tmp_path: Path, version: str) -> str:
    path = tmp_path / "nvcc"
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.88'\n")
    path.chmod(0o755)
    return str(path)


def test_without_nvcc_the_cpu_backend_alone(backend):
    assert backend.decide(None) == (False, "no nvcc")
    assert backend.CUTLASS not in backend.get_requires_for_build_wheel(None)
    assert backend.configure({})["cmake.define.TESSERA_CUDA"] == "OFF"
    assert backend.dynamic_metadata("version").endswith("+cpu")


@pytest.mark.parametrize(("version", "built"), [("13.0", True), ("12.8", True), ("12.6", False)])
def test_nvcc_decides_by_default(backend, monkeypatch, tmp_path, capfd, version,
                                                 built):
    monkeypatch.setattr(backend, "find_nvcc", lambda: nvcc(tmp_path, version))
    assert backend.decide(None)[0] is built
    assert (backend.CUTLASS in backend.get_requires_for_build_wheel(None)) is built
    assert backend.configure(None)["cmake.define.TESSERA_CUDA"] == ("ON" if built else "OFF")
    local = f"cu{version.replace('.', '')}" if built else "cpu"
    assert backend.dynamic_metadata("version").endswith(f"+{local}")
    said = capfd.readouterr().err
    assert said.startswith("tessera: building the CPU") and f"CUDA {version}" in said


@pytest.mark.parametrize(("setting", "expected"), [("ON", True), ("OFF", False), ("0", False)])
def test_settings_decide(backend, monkeypatch, tmp_path, setting, expected):
    monkeypatch.setattr(backend, "find_nvcc", lambda: nvcc(tmp_path, "13.0"))
    assert backend.decide({"cmake.define.TESSERA_CUDA": setting})[0] is expected
    monkeypatch.setenv("CMAKE_ARGS", f"-DX=1 -DTESSERA_CUDA:BOOL={setting} -DY=2")
    assert backend.decide(None)[0] is expected


def test_an_sdist_has_the_plain_version(backend):
    assert "+" not in backend.dynamic_metadata("version")


def test_nvcc_is_looked_for_where_cmake_looks(real_backend, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    path = nvcc(tmp_path / "bin", "13.0")
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert real_backend.find_nvcc() == path
    monkeypatch.setenv("CUDACXX", "/elsewhere/nvcc")
    assert real_backend.find_nvcc() == "/elsewhere/nvcc"
