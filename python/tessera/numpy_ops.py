"""The operations on NumPy arrays: outputs are allocated, arrays handed to the exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera import _ffi
from tessera.shapes import attention_shapes, matmul_shape, sddmm_shape
from tessera.tensors import is_numpy

Array = np.ndarray

_PLAIN_KINDS = "fiubc"  # float64 and complex too: the exports refuse them by name


def exported(x: Any, where: str) -> Any:
    """An argument as the exports take it; `where` names it. NumPy's own DLPack export knows neither
    read-only arrays nor the dtypes of ml_dtypes; those go as a view that lives as long as the
    call."""
    if type(x) is not np.ndarray and not is_numpy(where, x):
        if hasattr(x, "__dlpack__"):
            raise TypeError(f"{where}: expected NumPy arrays throughout, got a {type(x).__name__}")
        return x
    if x.dtype.kind in _PLAIN_KINDS and x.flags.writeable and x.dtype.isnative:
        return x
    if not x.dtype.isnative or x.dtype.kind in "OSUMm":
        native = np.dtype(np.float32) if x.dtype.isnative else x.dtype.newbyteorder("=")
        raise TypeError(f"{where}: expected an array of native numbers, got {x.dtype!r}; convert "
                        f"it first: x.astype('{native.name}')")
    size = x.dtype.itemsize
    if any(stride % size for stride in x.strides):
        raise TypeError(f"{where}: expected strides that count whole elements, got {x.strides} "
                        f"bytes of {x.dtype.name}")
    strides = [stride // size for stride in x.strides]
    address = x.__array_interface__["data"][0]
    return _ffi.host_view(address, _ffi.dtype(x.dtype.name), _ffi.Shape(x.shape),
                          _ffi.Shape(strides))


def written(x: Any, where: str) -> Any:
    """The same for an array that the operation writes."""
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(f"{where}: expected an array that can be written, got a read-only one")
    return exported(x, where)


def _names(op: str, names: str) -> tuple[str, ...]:
    return tuple(f"{op}: {name}" for name in names.split())


def _operand_names(op: str) -> tuple[str, ...]:
    return _names(op, "a a.row_offsets a.col_indices a.rows a.cols a.transposed "
                      "b b.row_offsets b.col_indices b.rows b.cols b.transposed")


def _exported_operands(names: tuple[str, ...], a: tuple, b: tuple) -> tuple:
    return tuple(map(exported, (*a, *b), names))


# Names of the arguments of the exports, in their order.
_INPUTS = _names("attention", "q k v")
_OPTIONS = _names("attention", "bhld scale softcap causal window_left window_right q_offsets "
                  "kv_offsets kv_begin kv_end q_position kv_position page_table max_q_length "
                  "max_kv_length sinks mask.block_q mask.block_kv mask.full_counts "
                  "mask.full_indices mask.partial_counts mask.partial_indices mask.bit_tile "
                  "mask.bits threads backend kernel")
_MATMUL = _operand_names("matmul")
_EPILOGUE = _names("matmul", "c bias group_offsets alpha beta bias_axis activation group_axis "
                   "threads backend kernel")
_SDDMM = _operand_names("sddmm")
_SPGEMM = _operand_names("spgemm")


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
    arguments = (*map(exported, (q, k, v), _INPUTS), written(out, "attention: out"),
                 written(lse, "attention: lse"), *map(exported, options, _OPTIONS))
    return out, lse, arguments


def attention(q: Array, k: Array, v: Array, out: Any, lse: Any, want_lse: bool,
              options: tuple) -> tuple[Any, Any]:
    out, lse, arguments = attention_arguments(q, k, v, out, lse, want_lse, options)
    _ffi.attention(*arguments)
    return out, lse


def merge_states(outs: list, lses: list, out: Any, lse: Any, sinks: Any, bhld: bool,
                 execution: tuple) -> tuple[Any, Any]:
    if out is None:
        out = _result(outs[0], outs[0].shape)
    if lse is None:
        lse = np.empty(lses[0].shape, np.float32)
    _ffi.merge_states(written(out, "merge_states: out"), written(lse, "merge_states: lse"),
                      exported(sinks, "merge_states: sinks"), bhld, len(outs),
                      *(exported(x, "merge_states: outs") for x in outs),
                      *(exported(x, "merge_states: lses") for x in lses), *execution)
    return out, lse


def matmul_arguments(a: tuple, b: tuple, out: Any, out_dtype: Any,
                     options: tuple) -> tuple[Any, tuple]:
    if out is None:
        out = _result(a[0], matmul_shape(a, b, options), out_dtype)
    arguments = (*_exported_operands(_MATMUL, a, b), written(out, "matmul: out"),
                 *map(exported, options, _EPILOGUE))
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
        if options[1] != 0 and is_numpy("sddmm: pattern.values", pattern[0]):  # beta
            out[...] = pattern[0]
    arguments = (*_exported_operands(_SDDMM, a, b), written(out, "sddmm: out.values"),
                 exported(row_offsets, "sddmm: pattern.row_offsets"),
                 exported(col_indices, "sddmm: pattern.col_indices"), rows, cols, *options)
    return out, arguments


def sddmm(a: tuple, b: tuple, pattern: tuple, out: Any, out_dtype: Any, options: tuple) -> Any:
    out, arguments = sddmm_arguments(a, b, pattern, out, out_dtype, options)
    _ffi.sddmm(*arguments)
    return out


def spgemm_arguments(a: tuple, b: tuple, options: tuple) -> tuple:
    return (*_exported_operands(_SPGEMM, a, b), *options)


def spgemm_symbolic(a: tuple, b: tuple, block: tuple[int, int], shape: tuple[int, int],
                    out_dtype: Any, options: tuple) -> tuple[tuple, Callable[[], None]]:
    """The result's arrays, and what computes them: as often as the operands' values change."""
    arguments = spgemm_arguments(a, b, options)
    stored, fill = _ffi.spgemm(*arguments)
    values = _result(a[0], (stored, *block), out_dtype)
    row_offsets = np.empty(shape[0] // block[0] + 1, np.int32)
    col_indices = np.empty(stored, np.int32)
    out = exported(values, "spgemm: out")

    def numeric(operands: tuple = arguments) -> None:  # which live as long as this does
        fill(out, row_offsets, col_indices, *shape)

    return (values, row_offsets, col_indices), numeric


def spgemm(*arguments: Any) -> tuple:
    arrays, numeric = spgemm_symbolic(*arguments)
    numeric()
    return arrays


def list_blocks(blocks: Array, capacity: int) -> tuple[Array, Array]:
    counts, indices = _lists(blocks.shape[:-1], capacity)
    _ffi.list_blocks(exported(blocks, "list_blocks: blocks"), counts, indices)
    return counts, indices


def top_k_blocks(scores: Array, k: int, capacity: int) -> tuple[Array, Array]:
    counts, indices = _lists(scores.shape[:-1], capacity)
    _ffi.top_k_blocks(exported(scores, "top_k_blocks: scores"), k, counts, indices)
    return counts, indices


def transpose_lists(counts: Array, indices: Array, cols: int,
                    capacity: int) -> tuple[Array, Array, Array]:
    out, rows = _lists((*counts.shape[:2], cols), capacity)
    entries = np.zeros_like(rows)
    _ffi.transpose_lists(exported(counts, "transpose_lists: counts"),
                         exported(indices, "transpose_lists: indices"), out, rows, entries)
    return out, rows, entries


def _lists(sets: tuple[int, ...], capacity: int) -> tuple[Array, Array]:
    return np.zeros(sets, np.int32), np.zeros((*sets, capacity), np.int32)
