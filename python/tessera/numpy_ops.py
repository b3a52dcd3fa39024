"""The operations on NumPy arrays: outputs are allocated, arrays handed to the exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera import _ffi, _signatures
from tessera._signatures import Signature, operands_of, weight_of
from tessera.shapes import attention_shapes, matmul_shape, outputs_of, sddmm_shape
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
    if x.dtype.isbuiltin == 1 and x.dtype.kind in _PLAIN_KINDS and x.flags.writeable:
        return x
    if not x.dtype.isnative or x.dtype.kind in "OSUMm":
        native = np.dtype(np.float32) if x.dtype.isnative else x.dtype.newbyteorder("=")
        raise TypeError(f"{where}: expected an array of native numbers, got {x.dtype!r}; convert "
                        f"it first: x.astype('{native.name}')")
    size = x.dtype.itemsize
    if any(stride % size for stride in x.strides):
        raise TypeError(f"{where}: expected strides that count whole elements, got {x.strides} "
                        f"bytes of {x.dtype.name}")
    strides = tuple(stride // size for stride in x.strides)
    address = x.__array_interface__["data"][0]
    return _ffi.host_view(address, _ffi.dtype(x.dtype.name), _ffi.Shape(x.shape),
                          _ffi.Shape(strides))


def written(x: Any, where: str) -> Any:
    """The same for an array that the operation writes."""
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(f"{where}: expected an array that can be written, got a read-only one")
    return exported(x, where)


def export_arguments(signature: Signature, inputs: tuple[Any, ...], *outputs: Any) -> list[Any]:
    """A call of the signature's export."""
    arguments = [x if x is None or where is None else exported(x, where)
                 for x, where in zip(inputs, signature.input_labels, strict=True)]
    arguments += map(written, outputs, signature.output_labels)
    return arguments


def is_plain(*_: Any) -> bool:
    """Arrays are converted before they go to an export."""
    return False


def plain_attention(*_: Any) -> None:
    """As is_plain says, no call goes straight to an export."""


def check_plain(where: str, *tensors: Any) -> None:
    """NumPy records nothing."""


def new_result(like: Array, shape: tuple[int, ...], dtype: Any = None) -> Array:
    if dtype is None and like.dtype.name in ("float8_e4m3fn", "float8_e5m2"):  # goes in, not out
        from ml_dtypes import bfloat16 as dtype
    return np.empty(shape, like.dtype if dtype is None else dtype)


def attention_outputs(q: Array, v: Array, bhld: bool, out: Any, lse: Any,
                      want_lse: bool) -> tuple[Any, Any]:
    shape, lse_shape = attention_shapes(q, v, bhld)
    if out is None:
        out = new_result(q, shape)
    if lse is None and want_lse:
        lse = np.empty(lse_shape, np.float32)
    return out, lse


def attention(inputs: Any, out: Any, lse: Any, want_lse: bool) -> tuple[Any, Any]:
    out, lse = attention_outputs(inputs.q, inputs.v, inputs.bhld, out, lse, want_lse)
    _ffi.attention(*export_arguments(_signatures.ATTENTION, inputs, out, lse))
    return out, lse


def merge_states(inputs: Any, out: Any, lse: Any) -> tuple[Any, Any]:
    outs, lses = inputs.outs, inputs.lses
    if out is None:
        out = new_result(outs[0], outs[0].shape)
    if lse is None:
        lse = np.empty(lses[0].shape, np.float32)
    inputs = inputs._replace(outs=tuple(exported(x, "merge_states: outs") for x in outs),
                             lses=tuple(exported(x, "merge_states: lses") for x in lses))
    _ffi.merge_states(*export_arguments(_signatures.MERGE_STATES, inputs, out, lse))
    return out, lse


def matmul_output(a: tuple[Any, ...], b: tuple[Any, ...], group_offsets: Any, group_inner: bool,
                  out_dtype: Any) -> Array:
    """`a` and `b` are Operands, or tuples of their fields."""
    values, *_ = a
    return new_result(values, matmul_shape(a, b, group_offsets, group_inner), out_dtype)


def matmul(inputs: Any, out: Any, out_dtype: Any) -> Array:
    if out is None:
        out = matmul_output(*operands_of(inputs), inputs.group_offsets, inputs.group_inner,
                            out_dtype)
    _ffi.matmul(*export_arguments(_signatures.MATMUL, inputs, out))
    return out


def linear_tensors(x: Array, outputs: int, out_dtype: Any,
                   out: Any = None) -> tuple[Array, Array]:
    """x with leading dimensions that lie as one, and the result: `out` if given."""
    if x.ndim != 2 and not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)
    return x, new_result(x, (*x.shape[:-1], outputs), out_dtype) if out is None else out


def linear(inputs: Any, out_dtype: Any) -> Array:
    rows, out = linear_tensors(inputs.x, outputs_of(weight_of(inputs)), out_dtype)
    inputs = inputs._replace(x=rows)
    _ffi.linear(*export_arguments(_signatures.LINEAR, inputs, out))
    return out


def sddmm_output(inputs: Any, out_dtype: Any) -> Array:
    """Room for the values; beta's operand, where there is a beta."""
    shape = sddmm_shape(*operands_of(inputs), inputs.values, inputs.row_offsets)
    out = new_result(inputs.a, shape, out_dtype)
    if inputs.beta != 0 and is_numpy("sddmm: pattern.values", inputs.values):
        out[...] = inputs.values
    return out


def sddmm(inputs: Any, out: Any, out_dtype: Any) -> Array:
    if out is None:
        out = sddmm_output(inputs, out_dtype)
    _ffi.sddmm(*export_arguments(_signatures.SDDMM, inputs, out))
    return out


def spgemm_symbolic(inputs: Any, block: tuple[int, int], shape: tuple[int, int],
                    out_dtype: Any) -> tuple[tuple[Any, ...], Callable[[], None]]:
    """The result's arrays, and what computes them: as often as the operands' values change."""
    arguments = export_arguments(_signatures.SPGEMM, inputs)
    stored, fill = _ffi.spgemm(*arguments)
    rows, cols = shape
    height, width = block
    values = new_result(inputs.a, (stored, height, width), out_dtype)
    row_offsets = np.empty(rows // height + 1, np.int32)
    col_indices = np.empty(stored, np.int32)
    out = exported(values, "spgemm: out")

    def numeric(operands: list[Any] = arguments) -> None:  # which live as long as this does
        fill(out, row_offsets, col_indices, rows, cols)

    return (values, row_offsets, col_indices), numeric


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
