"""Attention for Hugging Face transformers.

    import tessera.integrations.transformers
    tessera.integrations.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tessera")

Causality, sliding windows and padding become ranges and positions; whatever else a model masks
becomes a block mask, once per forward pass. Continuous batching (`model.generate_batch`) reads its
cache in pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
    sliding_window_overlay,
)

from tessera.attention import attention
from tessera.block_mask import BlockMask
from tessera.integrations import continuous_batching

NAME = "tessera"


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees, as options of `tessera.attention`: what the mask function hands to
    the attention function. Where `generate` makes masks ahead of the model, it treats them as
    four-dimensional tensors."""

    causal: bool = False
    window_left: int | None = None
    kv_begin: Tensor | None = None
    kv_end: Tensor | None = None
    q_position: Tensor | None = None
    mask: BlockMask | None = None

    ndim = 4

    def contiguous(self) -> Visibility:
        return self


def register() -> None:
    """Adds "tessera" to the attention implementations of transformers. For continuous batching both
    "tessera" and "paged|tessera" name it."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    continuous_batching.admit(NAME)


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0,
                   kv_offset: int = 0, mask_function: Callable[..., Any] = causal_mask_function,
                   attention_mask: Tensor | Visibility | None = None, device: Any = "cpu",
                   **_: Any) -> Visibility:
    """The mask function of transformers' interface."""
    if isinstance(attention_mask, Visibility):
        return attention_mask
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    rule = _positions(mask_function)
    used = _used_range(padding, kv_length, kv_offset)
    if rule is None or used is None:
        if padding is not None:
            mask_function = and_masks(mask_function, padding_mask_function(padding))

        def shifted(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return mask_function(b, h, q + q_offset, kv + kv_offset)

        block = (min(128, max(1, q_length)), 128)
        return Visibility(mask=BlockMask.from_mask_mod(shifted, q_length, kv_length, block,
                                                       batch=batch_size, device=device))
    causal, window_left = rule
    q_position = None
    if causal:
        q_position = torch.zeros(batch_size, dtype=torch.int32, device=device)
        q_position += q_offset - kv_offset
    return Visibility(causal, window_left, *used, q_position)


def _positions(mask_function: Callable[..., Any]) -> tuple[bool, int | None] | None:
    """(causal, window_left) where the function is one of transformers' own that positions say."""
    if mask_function is causal_mask_function:
        return True, None
    if mask_function is bidirectional_mask_function:
        return False, None
    # A window and causality are joined by and_masks; both parts are in its closure.
    if getattr(mask_function, "__code__", None) is not _AND_CODE:
        return None
    closure = mask_function.__closure__
    parts: Any = closure[0].cell_contents if closure else ()
    if len(parts) != 2 or parts[1] is not causal_mask_function:
        return None
    if getattr(parts[0], "__code__", None) is not _WINDOW_CODE:
        return None
    return True, parts[0].__closure__[0].cell_contents - 1


_AND_CODE = and_masks(causal_mask_function).__code__
_WINDOW_CODE = sliding_window_overlay(1).__code__


def _used_range(padding: Tensor | None, kv_length: int,
                kv_offset: int) -> tuple[Tensor | None, Tensor | None] | None:
    """kv_begin and kv_end where each row of the padding mask is one run; None where it is not."""
    if padding is None:
        return None, None
    used = padding[:, kv_offset : kv_offset + kv_length].bool()
    indices = torch.arange(used.shape[1], device=used.device)
    count = used.sum(-1)
    begin = torch.where(used, indices, used.shape[1]).amin(-1)
    end = torch.where(used, indices + 1, 0).amax(-1)
    if bool(((end - begin).clamp(min=0) != count).any()):
        return None
    begin = torch.minimum(begin, end)
    return begin.to(torch.int32), end.to(torch.int32)


# What transformers says of packed sequences and of pages.
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "block_table",
           "k_cache", "v_cache")


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Any, dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, sliding_window: int | None = None,
                      softcap: float | None = None, s_aux: Tensor | None = None,
                      **options: Any) -> tuple[Tensor, None]:
    """The attention function of transformers' interface."""
    if dropout:
        raise NotImplementedError(f"tessera: dropout: expected 0, got {dropout}; there is no "
                                  "dropout inside attention here: set attention_dropout=0.0")
    if options.get("position_bias") is not None:
        raise NotImplementedError("tessera: position_bias: expected none; scores take no additive "
                                  "bias here: use attn_implementation='flex_attention'")
    if isinstance(attention_mask, Visibility):
        seen = attention_mask
    elif attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        window = sliding_window - 1 if causal and sliding_window is not None else None
        if options.get("cu_seq_lens_q") is not None:
            sequences = {name: options[name] for name in _PACKED if name in options}
            return continuous_batching.packed_attention(
                query, key, value, scale=scaling, softcap=softcap or 0.0, sinks=s_aux,
                causal=bool(causal), window_left=window, **sequences), None
        seen = Visibility(causal=bool(causal), window_left=window)
    elif isinstance(attention_mask, Tensor) and attention_mask.dtype == torch.bool:
        seen = Visibility(mask=BlockMask.from_dense(attention_mask[..., : key.shape[2]]))
    else:
        raise NotImplementedError("tessera: attention_mask: expected a 2-D padding mask or a "
                                  "boolean 4-D one; scores take no additive mask here")
    out = attention(query, key, value, layout="bhld", scale=scaling, softcap=softcap or 0.0,
                    sinks=s_aux, causal=seen.causal, window_left=seen.window_left,
                    kv_begin=seen.kv_begin, kv_end=seen.kv_end, q_position=seen.q_position,
                    mask=seen.mask)
    return out.transpose(1, 2).contiguous(), None
