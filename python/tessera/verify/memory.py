"""Tensors inside buffers of NaN, in which a stray read or write shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GUARD_BYTES = 256  # before and after each tensor
AROUND = "memory around it was written"
NAN_BITS = -1  # as an integer: NaN in every float dtype
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def words(tensor: Tensor) -> Tensor:
    """The bits of a tensor as integers, for what PyTorch does not do in FP8."""
    return tensor.view(_WORDS[tensor.element_size()])


class Buffer:
    """A tensor inside a buffer of 0xff bytes, which are NaN in every float dtype. The tensor begins
    `offset` elements past a multiple of 256 bytes."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype,
                 device: Any, offset: int = 0):
        guard = GUARD_BYTES // dtype.itemsize
        reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1
        count = 2 * guard + offset + (reach if 0 not in shape else 0)
        self.words = torch.full((count,), NAN_BITS, dtype=_WORDS[dtype.itemsize], device=device)
        self.placed = (shape, strides, guard + offset)
        self.tensor = self.words.view(dtype).as_strided(*self.placed)

    def stray(self) -> Tensor:
        """Whether memory around the tensor has changed."""
        changed = self.words != NAN_BITS
        changed.as_strided(*self.placed).fill_(False)
        return changed.any()


    def bits(self) -> list[Tensor]:
        return [self.words]


class Made:
    """A result that the library has allocated: a tensor, or the values and lists of a matrix."""

    tensor: Tensor
    lists: tuple[Tensor, ...] = ()

    def take(self, result: Any) -> None:
        if isinstance(result, Tensor):
            self.tensor = result
        else:
            self.tensor, self.lists = result.values, (result.row_offsets, result.col_indices)

    def stray(self) -> Tensor:
        return torch.zeros((), dtype=torch.bool, device=self.tensor.device)

    def bits(self) -> list[Tensor]:
        return [self.tensor.contiguous().view(_WORDS[self.tensor.dtype.itemsize]), *self.lists]


def same_bits(one: Buffer | Made | None, other: Buffer | Made | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(map(torch.equal, one.bits(), other.bits()))
