"""PyTorch modules and functions: a block-sparse linear layer, and attention as a drop-in for
`torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from tessera import patterns
from tessera.attention import attention as _attention
from tessera.block_mask import BlockMask
from tessera.bsr import BsrMatrix, block_shape
from tessera.plan import plan
from tessera.products import linear as _linear
from tessera.tensors import row_of_each, type_name, version_of
from tessera.torch_ops import is_plain


class BsrLinear(nn.Module):
    """A linear layer whose weight ``[out_features, in_features]`` stores some of its blocks.

    The stored values train; the pattern is fixed, and travels in the state_dict, so that a layer
    loads a state of any density.

    >>> import torch, tessera
    >>> dense = torch.nn.Linear(128, 64)
    >>> layer = tessera.nn.BsrLinear.from_linear(dense, block=16, density=0.25)
    >>> layer(torch.randn(2, 5, 128)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(self, in_features: int, out_features: int, block: int | tuple[int, int] = 32, *,
                 density: float = 0.25, seed: int = 0, bias: bool = True, device: Any = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        r, c = block_shape("BsrLinear: block", block)
        if out_features % r or in_features % c:
            raise ValueError(f"BsrLinear: block: expected a divisor of {out_features} x "
                             f"{in_features}, got {r} x {c}")
        keep = patterns.random(out_features // r, in_features // c, density, seed)
        rows, cols = keep.nonzero()
        offsets = torch.zeros(keep.shape[0] + 1, dtype=torch.int32)
        offsets[1:] = torch.as_tensor(keep.sum(1)).cumsum(0)
        self.in_features, self.out_features = in_features, out_features
        self.values = nn.Parameter(torch.empty(len(rows), r, c, device=device, dtype=dtype))
        self.register_buffer("row_offsets", offsets.to(device))
        self.register_buffer("col_indices", torch.as_tensor(cols, dtype=torch.int32, device=device))
        self.bias = (nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
                     if bias else None)
        # As nn.Linear, for the inputs that an output really sees.
        bound = 1 / math.sqrt(max(1.0, density * in_features))
        nn.init.uniform_(self.values, -bound, bound)
        self._expand_bytes = 0
        self._expansion = _Expansion()
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    @staticmethod
    def from_linear(layer: nn.Linear, block: int | tuple[int, int] = 32, *,
                    density: float | None = None, keep: Any = None) -> BsrLinear:
        """The blocks of a dense layer: the share ``density`` with the largest sums of squares, or
        those that the boolean tensor ``keep`` names, or all that have a nonzero."""
        weight = layer.weight.detach()
        if density is not None:
            matrix = BsrMatrix.prune(weight, block, density)
        else:
            matrix = BsrMatrix.from_dense(weight, block, keep=keep)
        made = BsrLinear(layer.in_features, layer.out_features, block, density=0.0,
                         bias=layer.bias is not None, device=weight.device, dtype=weight.dtype)
        made._take(matrix)
        if made.bias is not None:
            made.bias.data.copy_(layer.bias.detach())
        return made

    def _take(self, matrix: BsrMatrix) -> None:
        self.values = nn.Parameter(matrix.values.clone(), requires_grad=self.values.requires_grad)
        self.row_offsets, self.col_indices = matrix.row_offsets, matrix.col_indices

    @property
    def weight(self) -> BsrMatrix:
        return BsrMatrix(self.values, self.row_offsets, self.col_indices, self.out_features,
                         self.in_features)

    def expand(self, max_bytes: int | None = None) -> BsrLinear:
        """Allows a dense copy of the weight of up to ``max_bytes`` (None: any; 0: no copy), for
        inference with many rows of x and a weight of small blocks and high density. Returns the
        layer.

        Calls that record no gradient (`torch.no_grad`, `torch.inference_mode`, frozen parameters)
        use the copy where the dense product has the shorter predicted time. Other calls, and those
        under autocast or torch.compile, use the stored blocks. The first call that uses the copy
        makes it; so does the next one after the values or the pattern changed. In results of the
        dense product, an infinity or NaN in x reaches every output of its row.

        >>> import torch, tessera
        >>> layer = tessera.nn.BsrLinear(128, 64, 16, density=0.5).expand()
        >>> with torch.no_grad():
        ...     layer(torch.randn(512, 128)).shape
        torch.Size([512, 64])
        """
        limit = sys.maxsize if max_bytes is None else max_bytes
        if type(limit) is not int:
            raise TypeError("expand: max_bytes: expected an integer or None, got "
                            + type_name(limit))
        if limit < 0:
            raise ValueError(f"expand: max_bytes: expected 0 or more, got {limit}")
        self._expand_bytes = limit
        self._expansion = _Expansion()
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self._expand_bytes and is_plain(x, self.values, self.bias):
            weight = self._expansion.weight_for(x, self.weight, self.bias, self._expand_bytes)
            return _linear(x, weight, self.bias)
        return _linear(x, self.weight, self.bias)

    def _apply(self, *arguments: Any, **options: Any) -> BsrLinear:
        self._expansion = _Expansion()  # the layer may go to another device or dtype
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        r, c = self.values.shape[-2:]
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, block=({r}, {c}), "
                f"density={self.weight.density:.3g}")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A state may hold another number of blocks than this layer.
        values = state_dict.get(prefix + "values")
        columns = state_dict.get(prefix + "col_indices")
        if (isinstance(values, Tensor) and values.dim() == 3 and isinstance(columns, Tensor)
                and values.shape != self.values.shape):
            self.values = nn.Parameter(self.values.new_empty(values.shape),
                                       requires_grad=self.values.requires_grad)
            self.col_indices = self.col_indices.new_empty(columns.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Expansion:
    """The dense copy of a layer's weight, and the inputs for which it is faster."""

    def __init__(self) -> None:
        self._faster: dict[Any, bool] = {}
        self._dense: Tensor | None = None
        self._versions: list[tuple[int, ...]] = []  # of what was copied
        self._source: BsrMatrix | None = None  # kept, so that no other tensor gets its address

    def weight_for(self, x: Tensor, weight: BsrMatrix, bias: Tensor | None, limit: int) -> Any:
        """The dense copy where the dense product is predicted to be faster, else the weight; the
        weight too for an x that cannot be multiplied, which linear refuses."""
        key = (x.shape[:-1].numel(), x.dtype, x.device, weight.stored_blocks)
        faster = self._faster.get(key)
        if faster is None:
            try:
                planned = plan(_linear, x, weight, bias, expand_bytes=limit)
            except (NotImplementedError, TypeError, ValueError):
                return weight
            faster = self._faster[key] = planned.expanded_bytes > 0
        return self._copy_of(weight) if faster else weight

    def _copy_of(self, weight: BsrMatrix) -> Tensor:
        versions = [version_of(x) for x in weight.arrays[:3]]
        if self._dense is None or versions != self._versions:
            self._dense = None  # its memory may serve the new copy
            self._dense, self._versions, self._source = _aligned_copy(weight), versions, weight
        return self._dense

    def __deepcopy__(self, memo: Any) -> _Expansion:
        return _Expansion()

    def __reduce__(self) -> Any:
        return _Expansion, ()


def _aligned_copy(weight: BsrMatrix) -> Tensor:
    """The matrix as a dense one, whose rows begin at multiples of 16 bytes."""
    (r, c), rows, cols = weight.block, weight.rows, weight.cols
    values = weight.values.detach()
    size = values.element_size()
    pitch = -(-cols * size // 16) * 16 // size
    lines = values.new_zeros(rows // r, r, pitch)[..., :cols]
    blocks = lines.unflatten(2, (cols // c, c)).transpose(1, 2)
    blocks[row_of_each(weight.row_offsets), weight.col_indices] = values
    return lines.flatten(0, 1)


def attention(query: Tensor, key: Tensor, value: Tensor,
              attn_mask: Tensor | BlockMask | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None,
              enable_gqa: bool = False) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, same arguments and layout: ``[...,
    heads, length, dim]``.

    A boolean ``attn_mask`` becomes a block mask at every call; build a `tessera.BlockMask` once and
    give that instead where it stays the same. ``is_causal`` aligns the first query with the first
    key, as there. Dropout and float masks are refused.

    >>> import torch, tessera
    >>> q = torch.randn(2, 4, 64, 32)
    >>> ours = tessera.nn.attention(q, q, q, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> torch.allclose(ours, theirs, atol=1e-5)
    True
    """
    if dropout_p:
        raise NotImplementedError(f"nn.attention: dropout_p: expected 0, got {dropout_p}; there is "
                                  "no dropout inside attention here: apply it to the output")
    if query.dim() < 3 or key.dim() != query.dim() or value.dim() != query.dim():
        raise ValueError("nn.attention: query: expected [..., length, dim] of three or more "
                         f"dimensions, as key and value have, got {list(query.shape)}, "
                         f"{list(key.shape)}, {list(value.shape)}")
    if not enable_gqa:
        heads = query.shape[-3]
        for name, x in (("key", key), ("value", value)):
            if x.shape[-3] not in (1, heads):
                raise ValueError(f"nn.attention: {name}: expected {heads} heads as query has, or "
                                 f"one, got {x.shape[-3]}; enable_gqa=True shares them")
        if key.shape[-3] != value.shape[-3]:  # one head stands beside one for each query head
            key, value = (x if x.shape[-3] == heads else x.repeat_interleave(heads, -3)
                          for x in (key, value))
    try:
        lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    except RuntimeError:
        raise ValueError("nn.attention: key: expected leading dimensions that broadcast with those "
                         f"of query and value, got {list(query.shape)}, {list(key.shape)}, "
                         f"{list(value.shape)}") from None
    q, k, v = (_with_one_batch(x, lead) for x in (query, key, value))
    mask = _block_mask(attn_mask, q, k, lead)
    if is_causal and mask is not None:
        raise ValueError("nn.attention: attn_mask: expected none beside is_causal=True")
    q_position = None
    if is_causal and q.shape[-2] != k.shape[-2]:
        q_position = torch.zeros(q.shape[0], dtype=torch.int32, device=q.device)
    out = _attention(q, k, v, causal=is_causal, mask=mask, scale=scale, q_position=q_position,
                     layout="bhld")
    if len(lead) == 1:
        return out
    return out.unflatten(0, lead) if lead else out.squeeze(0)


def _with_one_batch(x: Tensor, lead: tuple[Any, ...]) -> Tensor:
    """x with the leading dimensions `lead` as one; a view where its strides allow one."""
    x = x.expand(*lead, *x.shape[-3:])
    return x.flatten(0, len(lead) - 1) if lead else x.unsqueeze(0)


def _block_mask(mask: Any, q: Tensor, k: Tensor, lead: tuple[Any, ...]) -> BlockMask | None:
    if mask is None or isinstance(mask, BlockMask):
        return mask
    if not isinstance(mask, Tensor):
        raise TypeError("nn.attention: attn_mask: expected a boolean tensor or a "
                        f"tessera.BlockMask, got {type_name(mask)}; "
                        "BlockMask.from_flex takes FlexAttention's mask")
    if mask.dtype != torch.bool:
        raise NotImplementedError(
            f"nn.attention: attn_mask: expected booleans or a tessera.BlockMask, got {mask.dtype}; "
            "scores take no additive mask here: give `mask == 0` where it holds 0 and -inf, and "
            "torch's own function or FlexAttention where it holds biases")
    rows, cols = q.shape[-2], k.shape[-2]
    mask = mask.expand(*mask.shape[:-2], rows, cols)
    if len(lead) != 1:  # one dimension for the batch, or none
        mask = mask.expand(*lead, *mask.shape[-3:]) if mask.dim() > 2 else mask
        mask = mask.reshape(-1, *mask.shape[-3:]) if mask.dim() > 3 else mask
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return BlockMask.from_dense(mask)
