"""Attention and the merging of its partial results."""

from __future__ import annotations

from typing import Any, Sequence

from tessera.block_mask import BlockMask
from tessera.tensors import operations, type_name

_BHLD = {"blhd": False, "bhld": True}
_NO_MASK = (0, 0, None, None, None, None, None, None)


def _bhld(op: str, layout: str) -> bool:
    try:
        return _BHLD[layout]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: layout: expected 'blhd' or 'bhld', got {layout!r}") from None


def attention(
    q: Any, k: Any, v: Any, *,
    causal: bool = False,
    window_left: int | None = None, window_right: int | None = None,
    mask: BlockMask | None = None,
    scale: float | None = None, softcap: float = 0.0, sinks: Any = None,
    layout: str = "blhd",
    out: Any = None, lse: Any = None, return_lse: bool = False,
    q_offsets: Any = None, kv_offsets: Any = None,
    kv_begin: Any = None, kv_end: Any = None,
    q_position: Any = None, kv_position: Any = None,
    page_table: Any = None, max_q_length: int = 0, max_kv_length: int = 0,
    threads: int = 0, backend: str | None = None, kernel: str | None = None,
) -> Any:
    """softmax(scale * q k^T, masked) v for every batch and head.

    The default layout is "blhd", FlashAttention's: q ``[batch, q_length, heads, dim]``, k and v
    ``[batch, kv_length, kv_heads, dim]``, with heads a multiple of kv_heads. Arrays ``[batch,
    heads, length, dim]``, as PyTorch's scaled_dot_product_attention and FlexAttention take them,
    need ``layout="bhld"``: no shape tells one layout from the other, so that a wrong layout is not
    noticed.

    Any strides. Packed sequences: ``[total, heads, dim]`` with ``q_offsets``, ``kv_offsets``.
    Pages: k and v ``[pages, page, kv_heads, dim]`` with ``page_table`` and ``kv_end``.

    Query i stands at ``q_position + i``, key j at ``kv_position + j`` (per sequence; by default the
    last query and the last key stand together). ``causal`` hides later keys, ``window_left`` and
    ``window_right`` those farther away (None and -1 are no limit), ``kv_begin`` and ``kv_end``
    those outside the range, and ``mask`` every block that it does not hold; it may have lists for
    each head or for each head of keys. Its rows and columns count within each sequence: with offsets
    it requires, and has to be made for, ``max_q_length`` and ``max_kv_length``. A query that sees no
    key gives zeros, and so do rows of packed queries after the last offset.

    Returns out, or ``(out, lse)`` with ``return_lse=True``: the natural logarithm of the softmax's
    denominator, float32 ``[batch, heads, q_length]``. ``out=`` and ``lse=`` are written in place.
    ``backend`` and ``kernel`` force a backend, or a kernel by its name in `explain`; gradients
    choose theirs.

    >>> import numpy as np, tessera
    >>> rng = np.random.default_rng(0)
    >>> q = rng.standard_normal((1, 256, 8, 64), dtype=np.float32)
    >>> k, v = rng.standard_normal((2, 1, 256, 2, 64), dtype=np.float32)
    >>> tessera.attention(q, k, v, causal=True).shape
    (1, 256, 8, 64)
    >>> mask = tessera.BlockMask.window(256, 256, left=64, right=0, block=64)
    >>> out, lse = tessera.attention(q, k, v, mask=mask, return_lse=True)
    >>> lse.shape
    (1, 8, 256)
    """
    options = attention_options(
        q, k, layout, scale, softcap, causal, window_left, window_right, q_offsets, kv_offsets,
        kv_begin, kv_end, q_position, kv_position, page_table, max_q_length, max_kv_length, sinks,
        mask, threads, backend, kernel)
    if type(k) is not type(q) or type(v) is not type(q):
        operations("attention: k", k), operations("attention: v", v)  # refuse what is no tensor
    result = operations("attention: q", q).attention(q, k, v, out, lse, return_lse, options)
    return result if return_lse else result[0]


def attention_options(
    q: Any, k: Any, layout: str, scale: Any, softcap: float, causal: bool, window_left: Any,
    window_right: Any, q_offsets: Any, kv_offsets: Any, kv_begin: Any, kv_end: Any,
    q_position: Any, kv_position: Any, page_table: Any, max_q_length: int, max_kv_length: int,
    sinks: Any, mask: Any, threads: int, backend: Any, kernel: Any,
) -> tuple:
    """What follows the tensors in a call of the exports; `shapes` knows positions in it."""
    if mask is None:
        lists = _NO_MASK
    else:
        lists = _mask_arrays(mask, q, k, layout, q_offsets, kv_offsets, page_table, max_q_length,
                             max_kv_length)
    return (_bhld("attention", layout), scale, softcap, causal, window_left, window_right,
            q_offsets, kv_offsets, kv_begin, kv_end, q_position, kv_position, page_table,
            max_q_length, max_kv_length, sinks, *lists, threads, backend, kernel)


def _mask_arrays(mask: BlockMask, q: Any, k: Any, layout: str, q_offsets: Any, kv_offsets: Any,
                 page_table: Any, max_q_length: int, max_kv_length: int) -> tuple:
    if not isinstance(mask, BlockMask):
        raise TypeError("attention: mask: expected a tessera.BlockMask, got "
                        f"{type_name(mask)}; BlockMask.from_dense takes booleans, "
                        "BlockMask.from_mask_mod a function, BlockMask.from_flex "
                        "FlexAttention's mask")
    ranks = (3 if q_offsets is not None else 4, 3 if kv_offsets is not None else 4)
    if (len(q.shape), len(k.shape)) != ranks:
        return mask.arrays  # the library names what is wrong
    at = -2 if layout == "bhld" else -3
    lengths = (_longest("max_q_length", max_q_length, q.shape[at], q_offsets),
               _longest("max_kv_length", max_kv_length, k.shape[at], kv_offsets))
    if page_table is not None:
        lengths = (lengths[0], max_kv_length or page_table.shape[-1] * k.shape[at])
    dense = q_offsets is None and kv_offsets is None and page_table is None
    mask.check_lengths("attention: mask", *lengths, "" if dense else " in the longest sequence")
    return mask.arrays


def _longest(name: str, given: int, length: int, offsets: Any) -> int:
    """The length that a mask has to have along one side."""
    if offsets is None:
        return length
    if not given and length and offsets.shape[0] > 2:
        raise ValueError(f"attention: {name}: expected the length of the longest sequence, as mask "
                         f"applies to each sequence by itself, got {given} (not known)")
    return given or length


def merge_states(outs: Sequence[Any], lses: Sequence[Any], *, sinks: Any = None, out: Any = None,
                 lse: Any = None, layout: str = "blhd", threads: int = 0,
                 backend: str | None = None, kernel: str | None = None) -> tuple[Any, Any]:
    """Combines results of attention over disjoint sets of keys: lists of outs and of lses, with one
    tensor for each set. Returns ``(out, lse)``.

    The parts are computed without sinks; give them here, once. ``out`` may be one of ``outs``, and
    ``lse`` one of ``lses``.

    >>> import numpy as np, tessera
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 32, 2, 16), dtype=np.float32)
    >>> parts = [tessera.attention(q, k[:, s], v[:, s], return_lse=True)
    ...          for s in (slice(0, 20), slice(20, 32))]
    >>> out, lse = tessera.merge_states(*zip(*parts))
    >>> bool(np.allclose(out, tessera.attention(q, k, v), atol=1e-6))
    True
    """
    for name, parts in (("outs", outs), ("lses", lses)):
        if hasattr(parts, "shape"):
            raise TypeError(f"merge_states: {name}: expected a list of tensors, one for each part, "
                            f"got a single {type(parts).__name__}")
    outs, lses = list(outs), list(lses)
    if not outs or len(outs) != len(lses):
        raise ValueError(f"merge_states: lses: expected one for each of outs, at least one, got "
                         f"{len(lses)} for {len(outs)}")
    return operations("merge_states: outs", outs[0]).merge_states(
        outs, lses, out, lse, sinks, _bhld("merge_states", layout), (threads, backend, kernel))
