"""The operations on NumPy arrays: outputs are allocated, arrays handed to the exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera import _ffi
from tessera.shapes import attention_shapes, matmul_shape, sddmm_shape

Array = np.ndarray

_PLAIN_KINDS = "fiubc"  # float64 and complex too: the exports refuse them by name


def exported(x: Any, op: str) -> Any:
    """An argument as the exports take it. NumPy's own DLPack export knows neither read-only arrays
    nor the dtypes of ml_dtypes; those go as a view that lives as long as the call."""
    if not isinstance(x, np.ndarray):
        if hasattr(x, "__dlpack__"):
            raise TypeError(f"{op}: expected NumPy arrays throughout, got a {type(x).__name__} too")
        return x
    if x.dtype.kind in _PLAIN_KINDS and x.flags.writeable and x.dtype.isnative:
        return x
    if not x.dtype.isnative or x.dtype.kind in "OSUMm":
        raise TypeError(f"{op}: expected native float32, float16, bfloat16, float8_e4m3fn or "
                        f"integers, got {x.dtype!r}")
    size = x.dtype.itemsize
    if any(stride % size for stride in x.strides):
        raise TypeError(f"{op}: expected strides that count whole elements, got {x.strides} bytes "
                        f"of {x.dtype.name}")
    strides = [stride // size for stride in x.strides]
    address = x.__array_interface__["data"][0]
    return _ffi.host_view(address, _ffi.dtype(x.dtype.name), _ffi.Shape(x.shape),
                          _ffi.Shape(strides))


def written(x: Any, op: str, name: str) -> Any:
    """The same for an array that the operation writes."""
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(f"{op}: {name}: expected an array that can be written, got a read-only "
                         "one")
    return exported(x, op)


def _result(like: Array, shape: tuple[int, ...], dtype: Any = None) -> Array:
    if dtype is None and like.dtype.name == "float8_e4m3fn":  # goes in, not out
        from ml_dtypes import bfloat16 as dtype
    return np.empty(shape, like.dtype if dtype is None else dtype)


def attention_arguments(q: Array, k: Array, v: Array, out: Any, lse: Any, want_lse: bool,
                        options: tuple) -> tuple[Any, Any, tuple]:
    shape, lse_shape = attention_shapes(q, v, options)
    if out is None:
        out = _result(q, shape)
    if lse is None and want_lse:
        lse = np.empty(lse_shape, np.float32)
    op = "attention"
    arguments = (*(exported(x, op) for x in (q, k, v)), written(out, op, "out"),
                 written(lse, op, "lse"), *(exported(x, op) for x in options))
    return out, lse, arguments


def attention(q: Array, k: Array, v: Array, out: Any, lse: Any, want_lse: bool,
              options: tuple) -> tuple[Any, Any]:
    out, lse, arguments = attention_arguments(q, k, v, out, lse, want_lse, options)
    _ffi.attention(*arguments)
    return out, lse


def merge_states(outs: list, lses: list, out: Any, lse: Any, sinks: Any, bhld: bool,
                 execution: tuple) -> tuple[Any, Any]:
    op = "merge_states"
    if out is None:
        out = _result(outs[0], outs[0].shape)
    if lse is None:
        lse = np.empty(lses[0].shape, np.float32)
    _ffi.merge_states(written(out, op, "out"), written(lse, op, "lse"), exported(sinks, op), bhld,
                      len(outs), *(exported(x, op) for x in (*outs, *lses)), *execution)
    return out, lse


def matmul_arguments(a: tuple, b: tuple, out: Any, out_dtype: Any,
                     options: tuple) -> tuple[Any, tuple]:
    if out is None:
        out = _result(a[0], matmul_shape(a, b, options), out_dtype)
    op = "matmul"
    arguments = (*(exported(x, op) for x in (*a, *b)), written(out, op, "out"),
                 *(exported(x, op) for x in options))
    return out, arguments


def matmul(a: tuple, b: tuple, out: Any, out_dtype: Any, options: tuple) -> Any:
    out, arguments = matmul_arguments(a, b, out, out_dtype, options)
    _ffi.matmul(*arguments)
    return out


def sddmm_arguments(a: tuple, b: tuple, pattern: tuple, out: Any, out_dtype: Any,
                    options: tuple) -> tuple[Any, tuple]:
    _, row_offsets, col_indices, rows, cols = pattern
    if out is None:
        out = _result(a[0], sddmm_shape(a, b, pattern), out_dtype)
        if options[1] != 0:  # beta
            out[...] = pattern[0]
    op = "sddmm"
    arguments = (*(exported(x, op) for x in (*a, *b)), written(out, op, "out: values"),
                 exported(row_offsets, op), exported(col_indices, op), rows, cols, *options)
    return out, arguments


def sddmm(a: tuple, b: tuple, pattern: tuple, out: Any, out_dtype: Any, options: tuple) -> Any:
    out, arguments = sddmm_arguments(a, b, pattern, out, out_dtype, options)
    _ffi.sddmm(*arguments)
    return out


def spgemm_arguments(a: tuple, b: tuple, options: tuple) -> tuple:
    return tuple(exported(x, "spgemm") for x in (*a, *b, *options))


def spgemm_symbolic(a: tuple, b: tuple, block: tuple[int, int], shape: tuple[int, int],
                    out_dtype: Any, options: tuple) -> tuple[tuple, Callable[[], None]]:
    """The result's arrays, and what computes them: as often as the operands' values change."""
    arguments = spgemm_arguments(a, b, options)
    stored, fill = _ffi.spgemm(*arguments)
    values = _result(a[0], (stored, *block), out_dtype)
    row_offsets = np.empty(shape[0] // block[0] + 1, np.int32)
    col_indices = np.empty(stored, np.int32)
    out = exported(values, "spgemm")

    def numeric(operands: tuple = arguments) -> None:  # which live as long as this does
        fill(out, row_offsets, col_indices, *shape)

    return (values, row_offsets, col_indices), numeric


def spgemm(*arguments: Any) -> tuple:
    arrays, numeric = spgemm_symbolic(*arguments)
    numeric()
    return arrays


def list_blocks(blocks: Array, capacity: int) -> tuple[Array, Array]:
    counts, indices = _lists(blocks.shape[:-1], capacity)
    _ffi.list_blocks(exported(blocks, "list_blocks"), counts, indices)
    return counts, indices


def top_k_blocks(scores: Array, k: int, capacity: int) -> tuple[Array, Array]:
    counts, indices = _lists(scores.shape[:-1], capacity)
    _ffi.top_k_blocks(exported(scores, "top_k_blocks"), k, counts, indices)
    return counts, indices


def transpose_lists(counts: Array, indices: Array, cols: int,
                    capacity: int) -> tuple[Array, Array, Array]:
    out, rows = _lists((*counts.shape[:2], cols), capacity)
    entries, op = np.zeros_like(rows), "transpose_lists"
    _ffi.transpose_lists(exported(counts, op), exported(indices, op), out, rows, entries)
    return out, rows, entries


def _lists(sets: tuple[int, ...], capacity: int) -> tuple[Array, Array]:
    return np.zeros(sets, np.int32), np.zeros((*sets, capacity), np.int32)
