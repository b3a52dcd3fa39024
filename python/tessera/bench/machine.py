"""The machine of a measurement."""

import contextlib
import importlib
import os
import platform
import sys
from typing import Any

from .cases import CaseError
from .files import timestamp
from .nvml import Nvml
from .tree import commit, find_tree


def installed(package: str) -> Any:
    """The module; None where it is not installed or cannot be loaded."""
    try:
        return importlib.import_module(package)
    except (ImportError, OSError, AttributeError):
        return None


def torch_with_gpu() -> Any:
    """The torch module where it sees a GPU, else None."""
    torch = installed("torch")
    return torch if torch and torch.cuda.is_available() else None


def chosen_device(given):
    """The given device, or by default a GPU if there is one."""
    here = torch_with_gpu()
    if given == "cuda" and not here:
        raise CaseError(f"--device cuda: {why_no_gpu()}")
    return given or ("cuda" if here else "cpu")


def why_no_gpu() -> str:
    """The reason where torch_with_gpu gives None."""
    if installed("torch"):
        return "PyTorch sees no GPU here"
    return f"{sys.executable} has no PyTorch: pip install torch"


def gpu_facts():
    """(facts, NVML handle) of the current GPU."""
    torch = torch_with_gpu()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    meter = Nvml(getattr(properties, "uuid", None))
    return {
        "name": properties.name,
        "compute_capability": properties.major * 10 + properties.minor,
        "units": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", 0),
        "driver": meter.driver(),
        "power_limit_w": meter.power_limit_w(),
    }, meter


def cpu_facts():
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":", 1)[1].strip() for line in file
                     if line.startswith("model name")), name)
    return {"name": name, "threads": len(os.sched_getaffinity(0))}


def toolkit():
    found: dict[str, str | None] = {"python": platform.python_version()}
    if torch := installed("torch"):
        found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    if tessera := installed("tessera"):
        found["tessera"] = tessera.__version__
    return found


def header(device, gpu, tree=None, at_commit=None):
    """The part of a result file that describes the machine, the version and the date."""
    tree = find_tree(tree)
    return {
        "schema": 1,
        "date": timestamp(),
        "gpu": gpu if device == "cuda" else None,
        "cpu": cpu_facts(),
        "toolkit": toolkit(),
        "commit": at_commit or (commit(tree) if tree else None),
        "ceilings": {},
        "host": [],
        "tests": [],
        "cases": [],
    }
