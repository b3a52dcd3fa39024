"""What NumPy arrays and PyTorch tensors have in common here: which of the two came, and the few
array operations that the pattern classes need, once for both."""

from __future__ import annotations

import operator
import sys
from types import ModuleType
from typing import Any

import numpy as np


def is_torch(x: Any) -> bool:
    """Whether x is a PyTorch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_numpy(where: str, x: Any) -> bool:
    """Whether x is a NumPy array. Refuses masked arrays, whose mask no operation reads."""
    if not isinstance(x, np.ndarray):
        return False
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{where}: expected an array without a mask, got a masked array; "
                        "x.filled(value) makes one")
    return True


def type_name(x: Any) -> str:
    """With its module, but for built-in types."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def version_of(x: Any) -> tuple[int, ...]:
    """What changes when a PyTorch tensor is written in place or gets other memory. Writes through
    ``x.data`` are not seen, nor those to NumPy arrays and to tensors of torch.inference_mode()."""
    if isinstance(x, np.ndarray):
        return ()
    return x.data_ptr(), 0 if x.is_inference() else x._version


def check_dense(where: str, x: Any) -> None:
    """Refuses PyTorch's sparse tensors."""
    if "sparse" in str(x.layout):
        raise TypeError(
            f"{where}: expected a dense tensor, got {x.layout}; x.to_dense() makes one, and "
            "products take BsrMatrix.from_torch(x), for a BSR tensor x (x.to_sparse_bsr(block))")


def integer(where: str, x: Any, expected: str = "an integer") -> int:
    """x as an int: NumPy's integers too, no bool. A compiler's symbolic integer stays one."""
    if isinstance(x, int) and not isinstance(x, bool):
        return x
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.SymInt):
        return x
    value: Any = None if isinstance(x, bool) else x
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{where}: expected {expected}, got {x!r}") from None


def check_tensor(where: str, x: Any) -> None:
    """Refuses what is neither a NumPy array nor a dense PyTorch tensor."""
    if type(x) is np.ndarray or is_numpy(where, x):
        return
    if not is_torch(x):
        raise TypeError(f"{where}: expected a NumPy array or a PyTorch tensor, got "
                        f"{type(x).__name__}")
    check_dense(where, x)


def namespace(where: str, x: Any) -> ModuleType:
    """numpy or torch."""
    if is_numpy(where, x):
        return np
    if is_torch(x):
        return sys.modules["torch"]
    raise TypeError(f"{where}: expected a NumPy array or a PyTorch tensor, got {type(x).__name__}")


def arange(n: int, like: Any) -> Any:
    """0 .. n - 1 as i32, where `like` is."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.arange(n, dtype=torch.int32, device=like.device)
    return np.arange(n, dtype=np.int32)


def to_int32(x: Any) -> Any:
    return x.to(sys.modules["torch"].int32) if is_torch(x) else x.astype(np.int32)


def to_bool(x: Any) -> Any:
    return x.bool() if is_torch(x) else x.astype(bool)


def is_integral(x: Any) -> bool:
    """Whether x holds booleans or integers."""
    if is_torch(x):
        return not (x.is_floating_point() or x.is_complex())
    return x.dtype.kind in "biu"


def check_set(where: str, x: Any, instead: str) -> None:
    """Refuses what does not say of each element whether it is set."""
    if not is_integral(x):
        raise ValueError(f"{where}: expected booleans or integers, got {x.dtype} {list(x.shape)}; "
                         f"scores > threshold makes booleans{instead}")


def is_real(x: Any) -> bool:
    """Whether x holds booleans, integers or floating-point numbers."""
    return not x.is_complex() if is_torch(x) else x.dtype.kind not in "cOSUMm"


def to_float(x: Any) -> Any:
    """As float32 where it is neither that nor a 16-bit float."""
    name = str(x.dtype).removeprefix("torch.")
    if name in ("float32", "float16", "bfloat16"):
        return x
    return x.float() if is_torch(x) else x.astype(np.float32)


def zeros(shape: tuple[int, ...], like: Any, dtype: Any = None) -> Any:
    """Zeros where `like` is, of its dtype or another."""
    if is_torch(like):
        return like.new_zeros(shape, dtype=dtype or like.dtype)
    return np.zeros(shape, dtype or like.dtype)


def int32(values: Any, like: Any) -> Any:
    """A NumPy array of integers as i32, where `like` is."""
    values = np.ascontiguousarray(values, dtype=np.int32)
    if is_torch(like):
        return sys.modules["torch"].from_numpy(values).to(like.device)
    return values


def nonzero(x: Any) -> tuple[Any, ...]:
    """Indices of the set elements of a boolean array, one array a dimension, in row order."""
    return x.nonzero(as_tuple=True) if is_torch(x) else np.nonzero(x)


def stable_argsort(x: Any, descending: bool = False) -> Any:
    """Along the last dimension; equal elements keep their order."""
    if is_torch(x):
        return x.argsort(dim=-1, descending=descending, stable=True)
    return np.argsort(-x if descending else x, axis=-1, kind="stable")


def bincount(x: Any, length: int) -> Any:
    return x.bincount(minlength=length) if is_torch(x) else np.bincount(x, minlength=length)


def take_along_last(x: Any, indices: Any) -> Any:
    return x.gather(-1, indices) if is_torch(x) else np.take_along_axis(x, indices, -1)


def concatenate(parts: list[Any]) -> Any:
    return sys.modules["torch"].cat(parts) if is_torch(parts[0]) else np.concatenate(parts)


def offsets_of(counts: Any) -> Any:
    """[0, counts[0], counts[0] + counts[1], ...] as i32."""
    offsets = zeros((counts.shape[0] + 1,), to_int32(counts))
    offsets[1:] = counts.cumsum(0)
    return offsets


def row_of_each(offsets: Any) -> Any:
    """For stored entries in row order, the row of each."""
    counts = offsets[1:] - offsets[:-1]
    rows = arange(counts.shape[0], offsets)
    return rows.repeat_interleave(counts) if is_torch(offsets) else np.repeat(rows, counts)


def pad(x: Any, rows: int, cols: int, value: bool) -> Any:
    """The last two dimensions of a boolean array extended to rows x cols."""
    if x.shape[-2:] == (rows, cols):
        return x
    shape = (*x.shape[:-2], rows, cols)
    padded = x.new_full(shape, value) if is_torch(x) else np.full(shape, value, x.dtype)
    padded[..., : x.shape[-2], : x.shape[-1]] = x
    return padded


def pack_bits(x: Any) -> Any:
    """Booleans along the last dimension as bytes: element j is bit j % 8 of byte j // 8."""
    if not is_torch(x):
        return np.packbits(x, axis=-1, bitorder="little")
    torch = sys.modules["torch"]
    width = -(-x.shape[-1] // 8)
    bits = x.new_zeros((*x.shape[:-1], 8 * width), dtype=torch.uint8)
    bits[..., : x.shape[-1]] = x
    weights = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=x.device)
    return (bits.unflatten(-1, (width, 8)) * weights).sum(-1, dtype=torch.uint8)


def unpack_bits(x: Any, length: int) -> Any:
    if not is_torch(x):
        return np.unpackbits(x, axis=-1, count=length, bitorder="little").astype(bool)
    torch = sys.modules["torch"]
    shifts = torch.arange(8, dtype=torch.uint8, device=x.device)
    return ((x.unsqueeze(-1) >> shifts) & 1).flatten(-2)[..., :length].bool()


def unique_rows(x: Any) -> tuple[Any, Any]:
    """The distinct rows of a 2-D array, and for each row which of them it is."""
    if is_torch(x):
        return sys.modules["torch"].unique(x, dim=0, return_inverse=True)
    rows, inverse = np.unique(x, axis=0, return_inverse=True)
    return rows, inverse.reshape(-1)
