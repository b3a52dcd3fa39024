"""Attention and the merging of its partial results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera import _ffi
from tessera._signatures import MERGE_STATES
from tessera.block_mask import BlockMask
from tessera.dispatch import module_of, operations
from tessera.inputs import attention_inputs, check_mask, is_bhld
from tessera.keywords import shown_as


def _signature(
    q: Any, k: Any, v: Any, *,
    causal: bool = False,
    window_left: int | None = None, window_right: int | None = None,
    mask: BlockMask | None = None,
    scale: float | None = None, softcap: float = 0.0, sinks: Any = None,
    k_scale: Any = None, v_scale: Any = None, q_scale: Any = None,
    layout: str = "blhd",
    out: Any = None, lse: Any = None, return_lse: bool = False,
    q_offsets: Any = None, kv_offsets: Any = None,
    kv_begin: Any = None, kv_end: Any = None,
    q_position: Any = None, kv_position: Any = None,
    page_table: Any = None, max_q_length: int = 0, max_kv_length: int = 0,
    batch_invariant: bool = False, deterministic: bool = True,
    threads: int = 0, backend: str | None = None, kernel: str | None = None,
) -> Any:
    """What type checkers, IDEs and `inspect` show of `attention`."""


@shown_as(_signature)
def attention(
    q: Any, k: Any, v: Any, _: Any = ...,
    causal: bool = False,
    window_left: int | None = None, window_right: int | None = None,
    mask: BlockMask | None = None,
    scale: float | None = None, softcap: float = 0.0, sinks: Any = None,
    k_scale: Any = None, v_scale: Any = None, q_scale: Any = None,
    layout: str = "blhd",
    out: Any = None, lse: Any = None, return_lse: bool = False,
    q_offsets: Any = None, kv_offsets: Any = None,
    kv_begin: Any = None, kv_end: Any = None,
    q_position: Any = None, kv_position: Any = None,
    page_table: Any = None, max_q_length: int = 0, max_kv_length: int = 0,
    batch_invariant: bool = False, deterministic: bool = True,
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

    FP8: k and v in float8_e4m3fn beside a wider q (caches), or q as well, with results in bfloat16
    unless ``out`` says otherwise. They are multiplied by ``q_scale``, ``k_scale`` and ``v_scale``,
    float32 as `quantize` (per tensor, head or page, or for 64 or 128 rows) and `paged.append` write
    them. On the CPU and on Hopper, without gradients.

    Query i stands at ``q_position + i``, key j at ``kv_position + j`` (per sequence; by default the
    last query and the last key stand together). ``causal`` hides later keys, ``window_left`` and
    ``window_right`` those farther away (None and -1 are no limit), ``kv_begin`` and ``kv_end``
    those outside the range, and ``mask`` every block that it does not hold; it may have lists for
    each head or for each head of keys. Its rows and columns count within each sequence: with
    offsets it requires, and has to be made for, ``max_q_length`` and ``max_kv_length``. A query
    that sees no key gives zeros, and so do rows of packed queries after the last offset.

    With ``batch_invariant=True`` a sequence's results have the same bits whatever else is in the
    batch, and however large it is, on one kind of device; ``q_length``, or ``max_q_length`` of
    packed queries, has to be the same. On a GPU only the rows of ``sm90_decode`` support it.

    Results and gradients have the same bits every time. With ``deterministic=False`` a GPU may add
    up q's gradient in any order, which takes less time.

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
    if _ is not ...:
        raise TypeError("attention() takes 3 positional arguments: q, k and v; give options by "
                        "name")
    if deterministic is not True and deterministic is not False:
        raise TypeError(f"attention: deterministic: expected True or False, got {deterministic!r}")
    module = module_of.get(type(q)) or operations("attention: q", q)
    # Calls with few options go to the export at once: Python passes more than 15 by name slowly.
    if (q_offsets is None and kv_offsets is None and kv_begin is None and kv_end is None
            and q_position is None and kv_position is None and page_table is None
            and k_scale is None and v_scale is None and q_scale is None and not batch_invariant
            and not threads and backend is None and kernel is None):
        bhld = layout != "blhd" and is_bhld("attention", layout)
        few = not softcap and window_left is window_right is sinks is None
        if few and mask is out is lse is None and not return_lse:
            result = module.plain_attention(q, k, v, bhld, scale, causal)
            if result is not None:
                return result
        elif module.is_plain(q, k, v, out, lse, sinks):
            try:
                if mask is None:
                    results = module.attention_outputs(q, v, bhld, out, lse, return_lse)
                    new_out, new_lse = results
                    if not few or not _ffi.plain_attention(
                            q, k, v, bhld=bhld, scale=scale, causal=causal, out=new_out,
                            lse=new_lse):
                        _ffi.attention(
                            q, k, v, bhld=bhld, scale=scale, softcap=softcap, causal=causal,
                            window_left=window_left, window_right=window_right, sinks=sinks,
                            out=new_out, lse=new_lse)
                    return results if return_lse else new_out
                if few:
                    check_mask(mask, q, k, bhld)
                    results = module.attention_outputs(q, v, bhld, out, lse, return_lse)
                    new_out, new_lse = results
                    _ffi.attention(
                        q, k, v, bhld=bhld, scale=scale, causal=causal, block_q=mask.block_q,
                        block_kv=mask.block_kv, full_counts=mask.full_counts,
                        full_indices=mask.full_indices, partial_counts=mask.partial_counts,
                        partial_indices=mask.partial_indices, bit_tile=mask.bit_tile,
                        bits=mask.bits, out=new_out, lse=new_lse)
                    return results if return_lse else new_out
            except Exception:
                if module.have_memory(q, k, v, out, lse, sinks):
                    raise
    inputs = attention_inputs(
        q, k, v, layout, scale, softcap, causal, window_left, window_right, q_offsets, kv_offsets,
        kv_begin, kv_end, q_position, kv_position, page_table, max_q_length, max_kv_length,
        batch_invariant, deterministic, sinks, k_scale, v_scale, q_scale, mask, threads, backend,
        kernel)
    out, lse = module.attention(inputs, out, lse, return_lse)
    return (out, lse) if return_lse else out


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
    inputs = MERGE_STATES.Inputs(
        tuple(outs), tuple(lses), sinks=sinks, bhld=is_bhld("merge_states", layout),
        threads=threads, backend=backend, kernel_name=kernel)
    first, *_ = outs
    return operations("merge_states: outs", first).merge_states(inputs, out, lse)
