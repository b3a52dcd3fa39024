"""Block-sparse and dense matrix products and attention, for NumPy arrays and PyTorch tensors.

>>> import numpy as np, tessera
>>> q = np.ones((1, 128, 4, 64), np.float32)
>>> tessera.attention(q, q, q, causal=True).shape
(1, 128, 4, 64)
"""

from __future__ import annotations

import sys

from tessera import _ffi, paged, patterns
from tessera.attention import attention, merge_states
from tessera.block_mask import BlockMask
from tessera.bsr import BsrMatrix
from tessera.explain import Explanation, explain
from tessera.files import read_matrix_market
from tessera.narrow import quantize
from tessera.plan import Plan, plan
from tessera.products import bsr_matmul, linear, matmul, sddmm, spgemm

__version__: str = _ffi.version()

__all__ = [
    "BlockMask", "BsrMatrix", "Explanation", "Plan", "attention", "bsr_matmul",
    "cuda_device_count", "explain", "get_cmake_dir", "linear", "matmul", "merge_states", "paged",
    "patterns", "plan", "quantize", "read_matrix_market", "sddmm", "spgemm",
]


def get_cmake_dir() -> str:
    """Where `find_package(tessera)` finds the C++ library of this package:
    ``cmake -Dtessera_DIR=$(python -c "import tessera; print(tessera.get_cmake_dir())")``."""
    return str(_ffi.package_folder / "lib" / "cmake" / "tessera")


def cuda_device_count() -> int:
    """GPUs that the driver shows; 0 in a build without CUDA."""
    return _ffi.cuda_device_count()


if sys.modules.get("torch") is not None:
    from tessera import torch_ops as _torch_ops  # noqa: F401  registers torch.ops.tessera


def __getattr__(name: str) -> object:
    # tessera.nn needs torch, which an import of tessera never does.
    if name in ("compat", "integrations", "nn"):
        import importlib

        return importlib.import_module(f"tessera.{name}")
    raise AttributeError(f"module 'tessera' has no attribute {name!r}")
