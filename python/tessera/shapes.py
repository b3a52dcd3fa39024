"""Shapes of results, for whatever has a `shape`: arrays, tensors, and the symbolic tensors of a
compiler. Wrong operands get some shape here; the library's own checks name what is wrong."""

from __future__ import annotations

from typing import Any


def attention_shapes(q: Any, v: Any, bhld: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Of out and lse."""
    lead, dims = tuple(q.shape)[:-1], v.shape
    out = (*lead, dims[-1] if len(dims) else 0)
    if len(out) < 3:
        return out, ()
    heads, length = (out[-3], out[-2]) if bhld else (out[-2], out[-3])
    return out, (*out[:-3], heads, length)


def _sides(values: Any, row_offsets: Any, col_indices: Any, rows: int, cols: int,
           transposed: bool, scale: Any = None) -> tuple[Any, ...]:
    """Rows, columns and batch (None: has none) of an Operand as it is read."""
    shape = values.shape
    if row_offsets is None:
        batch = None
        if len(shape) == 2:
            rows, cols = shape
        elif len(shape) > 2:
            rows, cols = shape[-2], shape[-1]
            batch = shape[0] if len(shape) == 3 else None
        else:
            rows = cols = 1
    else:
        batch = shape[0] if len(shape) == 4 else None
        if len(row_offsets.shape) == 2:
            batch = row_offsets.shape[0]
    return (cols, rows, batch) if transposed else (rows, cols, batch)


def _batch(a: Any, b: Any) -> tuple[Any, ...]:
    if a is None or (b is not None and a == 1):
        a = b
    return () if a is None else (a,)


def matmul_shape(a: tuple[Any, ...], b: tuple[Any, ...], group_offsets: Any,
                 group_inner: bool) -> tuple[Any, ...]:
    """`a` and `b` are Operands, or tuples of their fields."""
    rows, _, a_batch = _sides(*a)
    _, cols, b_batch = _sides(*b)
    if group_offsets is not None:
        return (group_offsets.shape[0] - 1, rows, cols) if group_inner else (rows, cols)
    if a_batch is None and b_batch is None:
        return (rows, cols)
    return (*_batch(a_batch, b_batch), rows, cols)


def outputs_of(weight: Any) -> int:
    """Rows of the Operand that linear multiplies by."""
    rows, _, _ = _sides(*weight)
    return rows


def sddmm_shape(a: Any, b: Any, values: Any, row_offsets: Any) -> tuple[Any, ...]:
    """Of the values."""
    if len(row_offsets.shape) == 2:
        return tuple(values.shape)
    _, _, a_batch = _sides(*a)
    _, _, b_batch = _sides(*b)
    return (*_batch(a_batch, b_batch), *values.shape[-3:])
