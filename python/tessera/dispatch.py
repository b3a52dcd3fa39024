"""Which module runs operations on an argument: that of NumPy arrays or that of PyTorch tensors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tessera import numpy_ops
from tessera.tensors import check_tensor, is_torch

# By type; PyTorch's are entered when the first tensor comes, as tessera never imports torch itself.
# Calls look here first, as a function call takes a tenth of a microsecond.
module_of: dict[type, ModuleType] = {np.ndarray: numpy_ops}


def operations(where: str, x: Any) -> ModuleType:
    """The module that runs operations on x's kind of tensor."""
    return module_of.get(type(x)) or _find(where, x)


def _find(where: str, x: Any) -> ModuleType:
    check_tensor(where, x)
    if not is_torch(x):
        return numpy_ops
    from tessera import torch_ops

    for kind in torch_ops.PLAIN_TYPES:
        module_of[kind] = torch_ops
    return torch_ops
