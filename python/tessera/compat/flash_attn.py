"""flash-attn's functions with its arguments, layouts and meanings, on `tessera.attention`.

Arguments stand in the order of flash-attn 2. Those that flash-attn 3 and 4 add are keywords.
Results are always deterministic, gradients with `deterministic=True`. `num_splits`, `pack_gqa` and
`sm_margin` are accepted and change nothing. What the library does not support is refused by its
name.

>>> import torch
>>> from tessera.compat.flash_attn import flash_attn_func
>>> q = torch.randn(2, 64, 8, 32)
>>> k, v = torch.randn(2, 2, 64, 2, 32)
>>> flash_attn_func(q, k, v, causal=True, window_size=(16, 0)).shape
torch.Size([2, 64, 8, 32])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.attention import attention
from tessera.paged import Cache, append
from tessera.tensors import type_name

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
]

# Arguments that choose how flash-attn computes, not what.
_WITHOUT_EFFECT = ("num_splits", "pack_gqa", "sm_margin", "scheduler_metadata",
                   "rotary_interleaved")
# Arguments that have to keep their defaults, None or 0, and what to do instead.
_UNSUPPORTED = {
    "dropout_p": "there is no dropout inside attention: apply it to the output (flash-attn 3 and 4 "
                 "have no dropout_p: give what follows v by name, as in softmax_scale=)",
    "alibi_slopes": "additive biases are not supported: give q and k eight more columns, as the "
                    "FAQ of the documentation shows",
    "attention_chunk": "a tessera.BlockMask for tessera.attention states chunks",
    "qv": "there is no second product of queries with values",
    "q_descale": "FP8 queries are not supported",
    "k_descale": "pass k_scale to tessera.attention: for all keys, per head, or per page and head",
    "v_descale": "pass v_scale to tessera.attention: for all values, per head, or per page and "
                 "head",
    "rotary_cos": "rotate q and k before the call",
    "rotary_sin": "rotate q and k before the call",
    "rotary_seqlens": "rotate q and k before the call",
    "seqused_q": "end the sequences by cu_seqlens_q",
    "cu_seqlens_k_new": "append packed keys to the cache before the call",
}


def _check(function: str, **given: Any) -> None:
    """Refuses arguments that are not supported, unless they have their defaults."""
    for name, value in given.items():
        if name in _WITHOUT_EFFECT or value is None:
            continue
        if name not in _UNSUPPORTED:
            raise TypeError(f"{function}: unexpected keyword argument {name!r}")
        is_number = isinstance(value, (int, float))
        if not is_number or value != 0:
            raise NotImplementedError(
                f"{function}: {name}: expected {0 if is_number else None}, got "
                f"{value if is_number else type_name(value)}; {_UNSUPPORTED[name]}")


def _window(function: str, window_size: Any) -> tuple[int | None, int | None]:
    """The two sides of a window; a negative one has no limit."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"{function}: window_size: expected a pair (left, right), got "
                         f"{window_size!r}")
    left, right = (None if side is None or side < 0 else int(side) for side in window_size)
    return left, right


def _attend(function: str, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None,
            causal: bool, window_size: Any, softcap: float, return_attn_probs: bool,
            return_lse: bool, **lists: Any) -> Any:
    left, right = _window(function, window_size)
    result = attention(q, k, v, causal=causal, window_left=left, window_right=right,
                       scale=softmax_scale, softcap=softcap,
                       return_lse=return_attn_probs or return_lse, **lists)
    # flash-attn 2 returns an empty tensor of probabilities where there is no dropout.
    return (*result, q.new_empty(0)) if return_attn_probs else result


def _unpacked(function: str, name: str, x: Tensor, axis: int, parts: int) -> tuple[Tensor, ...]:
    rank = axis + 3
    if x.dim() != rank or x.shape[axis] != parts:
        raise ValueError(f"{function}: {name}: expected {parts} at dimension {axis} of {rank}, got "
                         f"{list(x.shape)}")
    return x.unbind(axis)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, *, learnable_sink: Tensor | None = None,
    return_lse: bool = False, **more: Any,
) -> Any:
    """q ``[batch, q_length, heads, dim]``, k and v ``[batch, kv_length, kv_heads, dim]``.

    With different lengths the last query stands beside the last key: ``causal`` and ``window_size``
    count from the bottom right. A query that sees no key gives zeros, and an lse of -inf.

    Returns out; ``return_lse=True``: ``(out, lse)``; ``return_attn_probs=True``: ``(out, lse,
    empty)`` as flash-attn 2 does, with lse ``[batch, heads, q_length]`` in float32.
    ``learnable_sink`` ``[heads]`` is flash-attn 4's: a logit per head in the denominator."""
    name = "flash_attn_func"
    _check(name, dropout_p=dropout_p, alibi_slopes=alibi_slopes, **more)
    return _attend(name, q, k, v, softmax_scale, causal, window_size, softcap, return_attn_probs,
                   return_lse, sinks=learnable_sink, deterministic=deterministic)


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, **more: Any,
) -> Any:
    """`flash_attn_func` with k and v in one tensor, ``[batch, kv_length, 2, kv_heads, dim]``."""
    k, v = _unpacked("flash_attn_kvpacked_func", "kv", kv, 2, 2)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs, **more)


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, **more: Any,
) -> Any:
    """`flash_attn_func` with q, k and v in one tensor, ``[batch, length, 3, heads, dim]``."""
    q, k, v = _unpacked("flash_attn_qkvpacked_func", "qkv", qkv, 2, 3)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs, **more)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Tensor | None = None, *,
    page_table: Tensor | None = None, seqused_k: Tensor | None = None,
    learnable_sink: Tensor | None = None, return_lse: bool = False, **more: Any,
) -> Any:
    """Packed sequences: q ``[total_q, heads, dim]``, k and v ``[total_k, kv_heads, dim]``, of which
    sequence i has the rows from ``cu_seqlens[i]`` to ``cu_seqlens[i + 1]``, or the first
    ``seqused_k[i]`` of them. lse is ``[heads, total_q]``.

    With ``block_table`` (in flash-attn 3 and 4 ``page_table``) ``[batch, pages]`` k and v are
    ``[num_pages, page, kv_heads, dim]``, and the lengths come from ``cu_seqlens_k`` or
    ``seqused_k``."""
    name = "flash_attn_varlen_func"
    _check(name, dropout_p=dropout_p, alibi_slopes=alibi_slopes, **more)
    table = _table(name, block_table, page_table)
    keys: dict[str, Any] = {"kv_offsets": cu_seqlens_k, "kv_end": seqused_k}
    if table is not None:
        if seqused_k is None and cu_seqlens_k is None:
            raise ValueError(f"{name}: cu_seqlens_k: expected offsets, or lengths as seqused_k, "
                             "beside block_table, got None")
        lengths = cu_seqlens_k.diff() if seqused_k is None else seqused_k  # type: ignore[union-attr]
        keys = {"page_table": table, "kv_end": lengths}
    elif cu_seqlens_k is None:
        raise ValueError(f"{name}: cu_seqlens_k: expected offsets, got None")
    return _attend(name, q, k, v, softmax_scale, causal, window_size, softcap, return_attn_probs,
                   return_lse, sinks=learnable_sink, deterministic=deterministic,
                   q_offsets=cu_seqlens_q, max_q_length=int(max_seqlen_q),
                   max_kv_length=int(max_seqlen_k), **keys)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, **more: Any,
) -> Any:
    """`flash_attn_varlen_func` with k and v in one tensor, ``[total_k, 2, kv_heads, dim]``."""
    k, v = _unpacked("flash_attn_varlen_kvpacked_func", "kv", kv, 1, 2)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                  dropout_p, softmax_scale, causal, window_size, softcap,
                                  alibi_slopes, deterministic, return_attn_probs, **more)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, **more: Any,
) -> Any:
    """`flash_attn_varlen_func` with q, k and v in one tensor, ``[total, 3, heads, dim]``."""
    q, k, v = _unpacked("flash_attn_varlen_qkvpacked_func", "qkv", qkv, 1, 3)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                  dropout_p, softmax_scale, causal, window_size, softcap,
                                  alibi_slopes, deterministic, return_attn_probs, **more)


@torch.no_grad()
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None, num_splits: int = 0, return_softmax_lse: bool = False, *,
    page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None, learnable_sink: Tensor | None = None, **more: Any,
) -> Any:
    """Attention over a cache of keys and values; records no gradient.

    The cache is ``[batch, capacity, kv_heads, dim]``, or ``[num_pages, page, kv_heads, dim]`` with
    ``block_table`` (in flash-attn 3 ``page_table``), int32 ``[batch, pages]``. Sequence i holds
    ``cache_seqlens[i]`` keys. ``k`` and ``v`` ``[batch, new, kv_heads, dim]`` are written behind
    them, in place, and seen by the queries; cache_seqlens itself stays as it is.
    ``cache_batch_idx`` names the row of a contiguous cache that a sequence has, ``cache_leftpad``
    the first key of it that counts. Queries are ``[batch, q_length, heads, dim]``, or packed with
    ``cu_seqlens_q`` and ``max_seqlen_q``."""
    name = "flash_attn_with_kvcache"
    _check(name, rotary_cos=rotary_cos, rotary_sin=rotary_sin, alibi_slopes=alibi_slopes, **more)
    table = _table(name, block_table, page_table)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    paged = table is not None
    if cache_batch_idx is not None:
        if paged:
            raise ValueError(f"{name}: cache_batch_idx: expected None beside block_table")
        table = cache_batch_idx.to(torch.int32).unsqueeze(1)
    elif table is None and (k is not None or cu_seqlens_q is not None):
        table = torch.arange(batch, dtype=torch.int32, device=q.device).unsqueeze(1)
    # A row of a contiguous cache is one long page.
    lengths = _lengths(name, cache_seqlens, batch, k_cache, k, paged, q.device)
    if k is not None and v is not None:
        append(k, v, Cache(k_cache, v_cache, table, lengths))
        lengths = lengths + k.shape[1]
    elif k is not None or v is not None:
        raise ValueError(f"{name}: v: expected k and v, or neither")
    lists: dict[str, Any] = {"kv_end": lengths, "kv_begin": cache_leftpad}
    if paged or cache_batch_idx is not None or cu_seqlens_q is not None:
        lists["page_table"] = table
    if cu_seqlens_q is not None:
        lists.update(q_offsets=cu_seqlens_q, max_q_length=int(max_seqlen_q or 0))
    return _attend(name, q, k_cache, v_cache, softmax_scale, causal, window_size, softcap, False,
                   return_softmax_lse, sinks=learnable_sink, **lists)


def _table(function: str, block_table: Tensor | None, page_table: Tensor | None) -> Tensor | None:
    if block_table is not None and page_table is not None:
        raise ValueError(f"{function}: page_table: expected block_table or page_table, got both")
    return page_table if block_table is None else block_table


def _lengths(function: str, given: int | Tensor | None, batch: int, cache: Tensor,
             new: Tensor | None, paged: bool, device: torch.device) -> Tensor:
    """The keys of each sequence in the cache, int32 [batch]."""
    if isinstance(given, Tensor):
        return given
    if given is None:
        if new is not None or paged:
            raise ValueError(f"{function}: cache_seqlens: expected the lengths of the sequences "
                             f"beside {'block_table' if paged else 'k'}, got None")
        given = cache.shape[1]
    return torch.full((batch,), given, dtype=torch.int32, device=device)
