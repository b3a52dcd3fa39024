"""The build backend of the Python package: scikit-build-core, with one decision before it.

The GPU backends are built where nvcc is found. ``TESSERA_CUDA`` decides instead where it is given:
``pip install . --config-settings=cmake.define.TESSERA_CUDA=OFF`` (or ``ON``). A GPU build also
requires CUTLASS's headers. The package's version ends in ``+cpu`` or, for CUDA 13.0, in ``+cu130``,
so that the last line that pip prints says what was built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as _base

CUTLASS = "nvidia-cutlass==4.2.0.0"
OLDEST_CUDA = (12, 8)
_DEFINE = "cmake.define.TESSERA_CUDA"
_LOCAL_VERSION = "TESSERA_LOCAL_VERSION"
_FALSE = ("", "0", "off", "no", "false", "n")

Settings = dict[str, Any] | None


def find_nvcc() -> str | None:
    """nvcc, where cmake/TesseraCuda.cmake looks for it."""
    if os.environ.get("CUDACXX"):
        return os.environ["CUDACXX"]
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    bins = [f"{root}/bin" for root in roots if root]
    path = os.pathsep.join([*bins, os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    return shutil.which("nvcc", path=path)


def cuda_version(nvcc: str | None) -> tuple[int, int] | None:
    if nvcc is None:
        return None
    try:
        said = subprocess.run([nvcc, "--version"], check=False, capture_output=True,
                              text=True).stdout
    except OSError:
        return None
    found = re.search(r"release (\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def asked_for(settings: Settings) -> bool | None:
    """Whether the caller wants the GPU backends; None where nothing was said."""
    value = (settings or {}).get(_DEFINE)
    if value is None:
        given = re.findall(r"-DTESSERA_CUDA(?::BOOL)?=(\S*)", os.environ.get("CMAKE_ARGS", ""))
        value = given[-1] if given else None
    return None if value is None else str(value).lower() not in _FALSE


def decide(settings: Settings) -> tuple[bool, str]:
    """Whether to build the GPU backends, and the reason in words."""
    version = cuda_version(find_nvcc())
    name = "no nvcc" if version is None else f"CUDA {version[0]}.{version[1]}"
    asked = asked_for(settings)
    if asked is not None:
        return asked, f"TESSERA_CUDA={'ON' if asked else 'OFF'}, {name}"
    if version is not None and version < OLDEST_CUDA:
        return False, f"{name} is older than {OLDEST_CUDA[0]}.{OLDEST_CUDA[1]}"
    return version is not None, name


def configure(settings: Settings) -> dict[str, Any]:
    """The settings with the decision in them; the local version goes to `dynamic_metadata`."""
    cuda, reason = decide(settings)
    version = cuda_version(find_nvcc())
    local = f"cu{version[0]}{version[1]}" if cuda and version else "cuda" if cuda else "cpu"
    os.environ[_LOCAL_VERSION] = local
    backends = "the CPU and GPU backends" if cuda else "the CPU backend alone"
    print(f"tessera: building {backends} ({reason})", file=sys.stderr, flush=True)
    return {**(settings or {}), _DEFINE: "ON" if cuda else "OFF"}


def dynamic_metadata(field: str, settings: dict[str, Any] | None = None) -> str:
    """The version of the public header, with what the build holds behind it (not in an sdist)."""
    header = Path("include/tessera/version.hpp").read_text(encoding="utf-8")
    version = re.search(r'TESSERA_VERSION_STRING "([^"]+)"', header)
    if field != "version" or version is None:
        raise RuntimeError(f"tessera_build: no {field} in include/tessera/version.hpp")
    local = os.environ.get(_LOCAL_VERSION)
    return f"{version[1]}+{local}" if local else version[1]


def _requires(requires: list[str], settings: Settings) -> list[str]:
    return [*requires, CUTLASS] if decide(settings)[0] else requires


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return _requires(_base.get_requires_for_build_wheel(config_settings), config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return _requires(_base.get_requires_for_build_editable(config_settings), config_settings)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return _base.get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(directory: str, config_settings: Settings = None) -> str:
    return _base.prepare_metadata_for_build_wheel(directory, configure(config_settings))


def prepare_metadata_for_build_editable(directory: str, config_settings: Settings = None) -> str:
    return _base.prepare_metadata_for_build_editable(directory, configure(config_settings))


def build_wheel(directory: str, config_settings: Settings = None,
                metadata_directory: str | None = None) -> str:
    return _base.build_wheel(directory, configure(config_settings), metadata_directory)


def build_editable(directory: str, config_settings: Settings = None,
                   metadata_directory: str | None = None) -> str:
    return _base.build_editable(directory, configure(config_settings), metadata_directory)


def build_sdist(directory: str, config_settings: Settings = None) -> str:
    return _base.build_sdist(directory, config_settings)
