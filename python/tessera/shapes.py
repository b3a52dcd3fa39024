"""Shapes of results, for whatever has a `shape`: arrays, tensors, and the symbolic tensors of a
compiler. Wrong operands get some shape here; the library's own checks name what is wrong."""

from __future__ import annotations

from typing import Any

# Positions in the options of attention, stated in attention.py.
BHLD, SINKS = 0, 15


def attention_shapes(q: Any, v: Any, options: tuple) -> tuple[tuple, tuple]:
    """Of out and lse."""
    lead, dims = tuple(q.shape)[:-1], v.shape
    out = (*lead, dims[-1] if len(dims) else 0)
    if len(out) < 3:
        return out, ()
    heads, length = (out[-3], out[-2]) if options[BHLD] else (out[-2], out[-3])
    return out, (*out[:-3], heads, length)


def _sides(operand: tuple) -> tuple:
    """Rows, columns and batch (None: has none) of an operand as it is read."""
    values, row_offsets, _, rows, cols, transposed = operand
    if row_offsets is None:
        shape = values.shape if len(values.shape) >= 2 else (1, 1)
        rows, cols = shape[-2], shape[-1]
        batch = shape[0] if len(shape) == 3 else None
    else:
        batch = values.shape[0] if len(values.shape) == 4 else None
        if len(row_offsets.shape) == 2:
            batch = row_offsets.shape[0]
    return (cols, rows, batch) if transposed else (rows, cols, batch)


def _batch(a: Any, b: Any) -> tuple:
    if a is None or (b is not None and a == 1):
        a = b
    return () if a is None else (a,)


def matmul_shape(a: tuple, b: tuple, options: tuple) -> tuple:
    rows, _, a_batch = _sides(a)
    _, cols, b_batch = _sides(b)
    group_offsets, group_inner = options[2], options[7]
    if group_offsets is None:
        return (*_batch(a_batch, b_batch), rows, cols)
    return (group_offsets.shape[0] - 1, rows, cols) if group_inner else (rows, cols)


def sddmm_shape(a: tuple, b: tuple, pattern: tuple) -> tuple:
    """Of the values."""
    values, row_offsets = pattern[0], pattern[1]
    if len(row_offsets.shape) == 2:
        return tuple(values.shape)
    return (*_batch(_sides(a)[2], _sides(b)[2]), *values.shape[-3:])
