"""Continuous batching of Hugging Face transformers: packed queries, keys in pages.

transformers writes new keys into its cache and passes all keys of a batch packed, or, where every
request has one query, passes the pages: then tessera writes to them and reads them in place."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tessera.attention import attention
from tessera.paged import Cache, append


@functools.cache
def admit(name: str) -> None:
    """Adds an implementation to those that transformers accepts for continuous batching, which is a
    fixed list there. Versions before 5.24 have other interfaces and stay as they are."""
    try:
        from transformers.generation.continuous_batching import initialization
        from transformers.generation.continuous_batching.cache import (
            ATTN_TYPE_TO_ALLOCATOR,
            group_layers_by_attn_type,
        )
        from transformers.generation.continuous_batching.continuous_api import (
            ContinuousBatchingManager,
        )

        switch = ContinuousBatchingManager.switch_to_cb_friendly_attn
        decide = initialization.ensure_decode_fast_path_is_available
    except (ImportError, AttributeError):
        return

    @functools.wraps(switch)
    def switch_unless_named(self: Any, model: Any, auto_switch_to_flash: bool = True) -> None:
        if model.config._attn_implementation != name:
            switch(self, model, auto_switch_to_flash)

    @functools.wraps(decide)
    def decide_unless_named(config: Any, cb_config: Any, user_requested: bool) -> None:
        in_pages = all(ATTN_TYPE_TO_ALLOCATOR[kind].supports_block_table
                       for kind in group_layers_by_attn_type(config))
        if config._attn_implementation != name or not in_pages or not _reads_pages():
            decide(config, cb_config, user_requested)

    ContinuousBatchingManager.switch_to_cb_friendly_attn = (  # type: ignore[method-assign]
        switch_unless_named)
    initialization.ensure_decode_fast_path_is_available = decide_unless_named


def _reads_pages() -> bool:
    """Attention over pages runs on the CPU and on GPUs since Ampere."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 8


def packed_attention(query: Tensor, key: Tensor, value: Tensor, *, cu_seq_lens_q: Tensor,
                     cu_seq_lens_k: Tensor, max_length_q: int, max_length_k: int,
                     block_table: Tensor | None = None, k_cache: Tensor | None = None,
                     v_cache: Tensor | None = None, **options: Any) -> Tensor:
    """``[1, heads, total, dim]`` tensors of sequences one behind the other; returns ``[1, total,
    heads, dim]``."""
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    if block_table is not None and k_cache is not None and v_cache is not None:
        return _decode(q, k, v, cu_seq_lens_k, block_table, k_cache, v_cache, options).unsqueeze(0)
    # For graphs the lengths are rounded up, beyond the number of rows too.
    max_q_length, max_kv_length = min(max_length_q, len(q)), min(max_length_k, len(k))
    return attention(q, k, v, q_offsets=cu_seq_lens_q, kv_offsets=cu_seq_lens_k,
                     max_q_length=max_q_length, max_kv_length=max_kv_length, **options).unsqueeze(0)


def _decode(q: Tensor, k: Tensor, v: Tensor, cu_seq_lens_k: Tensor, block_table: Tensor,
            k_cache: Tensor, v_cache: Tensor, options: dict[str, Any]) -> Tensor:
    """One query per sequence; cu_seq_lens_k counts its key."""
    batch = block_table.shape[0]
    ends = cu_seq_lens_k.diff()
    # Pages of keys and values alternate in one buffer, and both views have the pages of both. The
    # table has even pages only: every other page gives views that share no memory.
    cache = Cache(k_cache[::2], v_cache[::2], block_table >> 1, (ends - 1).clamp(min=0))
    # Graphs pad a batch with sequences of length 0, whose pages are -1: nothing is written there.
    append(k[:batch].unsqueeze(1), v[:batch].unsqueeze(1), cache)
    out = attention(q[:batch].unsqueeze(1), cache.k, cache.v, page_table=cache.page_table,
                    kv_end=ends, **options).squeeze(1)
    unused = len(q) - batch
    return torch.cat([out, out.new_zeros(unused, *out.shape[1:])]) if unused else out
