"""The arguments of the public functions as signatures state them: masks and block-sparse matrices
taken apart, names of layouts and axes read."""

from __future__ import annotations

from typing import Any

from tessera._signatures import ATTENTION, LINEAR, MASK, MATMUL, SDDMM, SPGEMM, Operand
from tessera.block_mask import BlockMask
from tessera.bsr import BsrMatrix
from tessera.tensors import check_tensor, type_name

_BHLD = {"blhd": False, "bhld": True}


def is_bhld(op: str, layout: str) -> bool:
    try:
        return _BHLD[layout]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: layout: expected 'blhd' or 'bhld', got {layout!r}") from None


def attention_inputs(
    q: Any, k: Any, v: Any, layout: str, scale: Any, softcap: float, causal: bool, window_left: Any,
    window_right: Any, q_offsets: Any, kv_offsets: Any, kv_begin: Any, kv_end: Any,
    q_position: Any, kv_position: Any, page_table: Any, max_q_length: int, max_kv_length: int,
    batch_invariant: bool, deterministic: bool, sinks: Any, k_scale: Any, v_scale: Any,
    q_scale: Any, mask: Any, threads: int, backend: Any, kernel: Any,
) -> Any:
    """The arguments of `attention` as its signature states them."""
    check_tensor("attention: k", k)
    check_tensor("attention: v", v)
    bhld = is_bhld("attention", layout)
    lists = {}
    if mask is not None:
        check_mask(mask, q, k, bhld, q_offsets, kv_offsets, page_table, max_q_length, max_kv_length)
        lists = {name: getattr(mask, name) for name in MASK.fields}
    return ATTENTION.Inputs(
        q, k, v, bhld=bhld, scale=scale, softcap=softcap, causal=causal,
        window_left=window_left, window_right=window_right, q_offsets=q_offsets,
        kv_offsets=kv_offsets, kv_begin=kv_begin, kv_end=kv_end, q_position=q_position,
        kv_position=kv_position, page_table=page_table, max_q_length=max_q_length,
        max_kv_length=max_kv_length, batch_invariant=batch_invariant, deterministic=deterministic,
        sinks=sinks, k_scale=k_scale, v_scale=v_scale, q_scale=q_scale, threads=threads,
        backend=backend, kernel_name=kernel, **lists)


def check_mask(mask: BlockMask, q: Any, k: Any, bhld: bool, q_offsets: Any = None,
               kv_offsets: Any = None, page_table: Any = None, max_q_length: int = 0,
               max_kv_length: int = 0) -> None:
    """Checks the lengths that a mask was made for: its lists do not say them."""
    if not isinstance(mask, BlockMask):
        raise TypeError("attention: mask: expected a tessera.BlockMask, got "
                        f"{type_name(mask)}; BlockMask.from_dense takes booleans, "
                        "BlockMask.from_mask_mod a function, BlockMask.from_flex "
                        "FlexAttention's mask")
    check_tensor("attention: k", k)
    ranks = (3 if q_offsets is not None else 4, 3 if kv_offsets is not None else 4)
    if (len(q.shape), len(k.shape)) != ranks:
        return  # the library names what is wrong
    at = -2 if bhld else -3
    q_length = _longest("max_q_length", max_q_length, q.shape[at], q_offsets)
    kv_length = _longest("max_kv_length", max_kv_length, k.shape[at], kv_offsets)
    if page_table is not None:
        kv_length = max_kv_length or page_table.shape[-1] * k.shape[at]
    if q_length != mask.q_length or kv_length != mask.kv_length:
        dense = q_offsets is None and kv_offsets is None and page_table is None
        mask.check_lengths("attention: mask", q_length, kv_length,
                           "" if dense else " in the longest sequence")


def _longest(name: str, given: int, length: int, offsets: Any) -> int:
    """The length that a mask has to have along one side."""
    if offsets is None:
        return length
    if not given and length and offsets.shape[0] > 2:
        raise ValueError(f"attention: {name}: expected the length of the longest sequence, as mask "
                         f"applies to each sequence by itself, got {given} (not known)")
    return given or length


def operand(x: Any, transposed: bool = False, scale: Any = None) -> Operand:
    """A dense or block-sparse operand as signatures state it, with the factors of FP8."""
    if isinstance(x, BsrMatrix):
        return Operand(x.values, x.row_offsets, x.col_indices, x.rows, x.cols,
                       transposed != x.transposed, scale)
    return Operand(x, None, None, 0, 0, transposed, scale)


def is_second(name: str, value: str, first: str, second: str) -> bool:
    """Which of its two values an argument of matmul has."""
    if value not in (first, second):
        raise ValueError(f"matmul: {name}: expected {first!r} or {second!r}, got {value!r}")
    return value == second


def matmul_inputs(a: Any, b: Any, transpose_a: bool, transpose_b: bool, a_scale: Any, b_scale: Any,
                  bias: Any, bias_axis: str, activation: str, alpha: float, beta: float, c: Any,
                  group_offsets: Any, group_axis: str, out: Any, threads: int, backend: Any,
                  kernel: Any) -> Any:
    """The arguments of `matmul` as its signature states them."""
    check_beta(beta, c, out)
    first, second = operand(a, transpose_a, a_scale), operand(b, transpose_b, b_scale)
    check_tensor("matmul: b", second.values)
    return MATMUL.Inputs(
        *first, *second, c=c, bias=bias, group_offsets=group_offsets, alpha=alpha, beta=beta,
        bias_rows=is_second("bias_axis", bias_axis, "column", "row"), activation=activation,
        group_inner=is_second("group_axis", group_axis, "rows", "inner"), threads=threads,
        backend=backend, kernel_name=kernel)


def check_beta(beta: float, c: Any, out: Any) -> None:
    if beta != 0 and c is None and out is None:
        raise ValueError("matmul: beta: needs c, or out with former contents, got neither")


def linear_inputs(x: Any, weight: Any, x_scale: Any, weight_scale: Any, bias: Any, activation: str,
                  threads: int, backend: Any, kernel: Any) -> Any:
    """The arguments of `linear` as its signature states them."""
    matrix = operand(weight, scale=weight_scale)
    check_tensor("linear: weight", matrix.values)
    return LINEAR.Inputs(x, *matrix, x_scale=x_scale, bias=bias, activation=activation,
                         threads=threads, backend=backend, kernel_name=kernel)


def sddmm_inputs(a: Any, b: Any, pattern: Any, transpose_a: bool, transpose_b: bool, alpha: float,
                 beta: float, threads: int, backend: Any, kernel: Any) -> Any:
    """The arguments of `sddmm` as its signature states them."""
    if not isinstance(pattern, BsrMatrix) or pattern.transposed:
        raise TypeError("sddmm: pattern: expected a BsrMatrix that is not a transposed view "
                        "(transpose() stores one)")
    return SDDMM.Inputs(
        *operand(a, transpose_a), *operand(b, transpose_b), values=pattern.values,
        row_offsets=pattern.row_offsets, col_indices=pattern.col_indices, rows=pattern.rows,
        cols=pattern.cols, alpha=alpha, beta=beta, threads=threads, backend=backend,
        kernel_name=kernel)


def spgemm_inputs(a: Any, b: Any, transpose_a: bool, transpose_b: bool, alpha: float, threads: int,
                  backend: Any, kernel: Any) -> Any:
    """The arguments of `spgemm` as its signature states them."""
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, BsrMatrix):
            raise TypeError(f"spgemm: {name}: expected a BsrMatrix, got {type(x).__name__}; "
                            "bsr_matmul takes one dense operand")
    return SPGEMM.Inputs(*operand(a, transpose_a), *operand(b, transpose_b), alpha=alpha,
                         threads=threads, backend=backend, kernel_name=kernel)
