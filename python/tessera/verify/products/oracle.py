"""A second implementation of products, in float64, from the numbers that were drawn. It reads no
list that the library reads.

The budget of an element is what float32 may lose in sums of any order: (terms + 2) units of the
sum of |a||b|, where stored elements count as terms; four units more of each summand where alpha,
beta or a bias take part; and what an activation computed in float32 loses.

Tensor cores cut off what does not fit beside the largest product, so their units are twice as
large, and they do not normalise subnormal operands: an f16 counts as 2^-14 at least.

Factors of FP8 are four roundings more. Tensor cores keep 13 bits of FP8 products below the largest
of 32 and of the sum so far. That costs up to 2^-12.3 of the sum of |a||b| for normal values
(measured; emulated 2^-11.8): the budget is 2^-10. Sums without cancellation, and values of many
magnitudes, lose up to 2^-8.8 (emulated): 2^-8."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..numbers import FP8_UNIT, UNIT
from .build import Built, group_ranges
from .draw import FP8

LARGEST_SLOPE = 1.13  # of the smooth activations
SMALLEST_NORMAL = 2.0**-14  # of f16
FACTOR_UNITS = 4  # of FP8
UNEVEN_VALUES, UNEVEN = ("wide", "positive"), 4
GELU_UNITS = 24  # on GPUs log2(erfc) is a polynomial that is off by up to 4e-6


@dataclass
class Sums:
    """Sums of products, sums of their magnitudes, and the numbers of their terms."""

    value: Tensor
    size: Tensor
    terms: Tensor


@dataclass
class Truth:
    value: Tensor  # f64, of the result's shape
    slack: Tensor  # the largest error before the result is rounded
    lists: tuple[Tensor, Tensor] | None = None  # of spgemm's result


def truth_of(built: Built) -> Truth:
    d = built.drawn
    if d.groups is not None:
        return _grouped(built)
    sums = _sums(built)
    if d.op == "spgemm":
        return _at_reached_blocks(built, sums)
    if built.pattern is not None:
        return _at_pattern(built, sums)
    parts = (sums.value, sums.size, sums.terms)
    sums = Sums(*(x.expand(built.shape) if d.batch else x.reshape(built.shape) for x in parts))
    return _finish(built, sums, _bias(built))


def _by_tensor_cores(built: Built) -> bool:
    return built.drawn.dtype != "f32" and built.a.values.is_cuda


def _sums(built: Built, a_part: Any = slice(None), b_part: Any = slice(None)) -> Sums:
    """[batch, m, n] of whole operands, or of a part of each."""
    a, b = built.a, built.b

    def magnitude(x: Tensor) -> Tensor:
        if built.drawn.dtype != "f16" or not _by_tensor_cores(built):
            return x.abs()
        return x.abs().clamp(min=SMALLEST_NORMAL).masked_fill_(x == 0, 0)

    left, right = a.values[a_part], b.values[b_part]
    stored = [None if x.stored is None else x.stored[part] for x, part in ((a, a_part),
                                                                           (b, b_part))]
    lost = None
    if built.drawn.dtype == FP8:
        lost = _meets_nan(left, right, *stored)
        left, right = left.nan_to_num(), right.nan_to_num()
    value, size = left @ right, magnitude(left) @ magnitude(right)
    if lost is not None:
        value = value.masked_fill(lost, torch.nan)
    if a.stored is not None and b.stored is not None:
        terms = a.stored[a_part].double() @ b.stored[b_part].double()
    elif a.stored is not None:
        terms = a.stored[a_part].sum(-1, keepdim=True).expand(value.shape)
    elif b.stored is not None:
        terms = b.stored[b_part].sum(-2, keepdim=True).expand(value.shape)
    else:
        terms = torch.full_like(value[..., :1], left.shape[-1]).expand(value.shape)
    return Sums(value, size, terms.double())


def _meets_nan(left: Tensor, right: Tensor, left_stored: Tensor | None,
               right_stored: Tensor | None) -> Tensor:
    """Which sums have a term with a factor of NaN."""

    def counted(x: Tensor, stored: Tensor | None) -> Tensor:
        return torch.ones_like(x) if stored is None else stored.double()

    return (left.isnan().double() @ counted(right, right_stored)
            + counted(left, left_stored) @ right.isnan().double()) > 0


def _fp8_unit(built: Built) -> float:
    """What sums of FP8 lose beside f32, relative to the sum of |a||b|."""
    if not _by_tensor_cores(built):
        return FACTOR_UNITS * UNIT
    uneven = {built.drawn.a.values, built.drawn.b.values} & set(UNEVEN_VALUES)
    return FP8_UNIT * (UNEVEN if uneven else 1) + FACTOR_UNITS * UNIT


def _bias(built: Built) -> Tensor | None:
    """To be added to [.., m, n]; of a vector, to [n]."""
    d, bias = built.drawn, built.bias
    if bias is None:
        return None
    bias = bias.double()
    if d.bias_rows:
        bias = bias[..., None]
    elif bias.dim() == 2:
        bias = bias[:, None, :]
    return bias if (d.bias_batch and d.batch) or not d.bias_batch else bias[0]


def _finish(built: Built, sums: Sums, bias: Tensor | None, former: Tensor | None = None) -> Truth:
    d = built.drawn
    former = built.former if former is None else former
    value, size = d.alpha * sums.value, abs(d.alpha) * sums.size
    slack = (sums.terms + 2) * UNIT * size * (2 if _by_tensor_cores(built) else 1)
    if d.dtype == FP8:
        slack = slack + _fp8_unit(built) * size
    added = torch.zeros_like(value)
    if d.beta and former is not None:
        former = d.beta * former.double()
        value, added = value + former, added + former.abs()
    if bias is not None:
        value, added = value + bias, added + bias.abs()
    if d.alpha != 1 or d.beta or bias is not None:
        slack = slack + 4 * UNIT * (size + added)
    if d.activation not in ("none", "relu"):
        # In float32 they compute 1 + erf, 1 + tanh or 1 + exp, where cancellation leaves an error
        # of a few ulps of the argument.
        units = GELU_UNITS if d.activation == "gelu" and value.is_cuda else 16
        slack = LARGEST_SLOPE * slack + units * UNIT * value.abs()
    return Truth(_activated(d.activation, value), slack)


def _activated(activation: str, x: Tensor) -> Tensor:
    if activation == "relu":
        return x.clamp(min=0)
    if activation == "gelu":
        return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))
    if activation == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * torch.sigmoid(2 * inner)  # (1 + tanh(y)) / 2
    return x * torch.sigmoid(x) if activation == "silu" else x


def _grouped(built: Built) -> Truth:
    d, a, b = built.drawn, built.a, built.b
    shape = built.shape
    value = torch.zeros(shape, dtype=torch.float64, device=a.values.device)
    slack = torch.zeros_like(value)  # rows of no group are zeros
    for group, (begin, end) in enumerate(group_ranges(d)):
        bias = built.bias
        if bias is not None:
            bias = (bias[group] if d.bias_batch else bias).double()
            if d.bias_rows:
                bias = (bias if d.inner else bias[begin:end])[:, None]
        if d.inner:
            part = _sums(built, (0, slice(None), slice(begin, end)), (0, slice(begin, end)))
            place: Any = group
        else:
            matrix = group if b.values.shape[0] > 1 else 0
            part = _sums(built, (0, slice(begin, end)), matrix)
            place = slice(begin, end)
        former = None if built.former is None else built.former[place]
        one = _finish(built, part, bias, former)
        value[place], slack[place] = one.value, one.slack
    return Truth(value, slack)


def _blocks_of(x: Tensor, rows: int, cols: int) -> Tensor:
    """Matrices as [batch, block rows, block columns, rows, cols]."""
    batch, height, width = x.shape
    return x.reshape(batch, height // rows, rows, width // cols, cols).transpose(2, 3)


def _at_blocks(sums: Sums, mask: Tensor, rows: int, cols: int) -> Sums:
    """At the blocks of [sets, block rows, block columns], in row order."""
    batch = max(mask.shape[0], sums.value.shape[0])
    mask = mask.expand(batch, -1, -1)
    return Sums(*(_blocks_of(x.expand(batch, -1, -1), rows, cols)[mask]
                  for x in (sums.value, sums.size, sums.terms)))


def _at_pattern(built: Built, sums: Sums) -> Truth:
    pattern = built.drawn.pattern
    assert pattern is not None and built.pattern is not None
    found = _at_blocks(sums, built.pattern, pattern.rows, pattern.cols)
    return _finish(built, Sums(*(x.reshape(built.shape) for x in (found.value, found.size,
                                                                  found.terms))), None)


def _at_reached_blocks(built: Built, sums: Sums) -> Truth:
    """The blocks that a pair of stored blocks reaches."""
    d = built.drawn
    assert d.a.blocks is not None and d.b.blocks is not None
    rows = d.a.blocks.cols if d.a.transposed else d.a.blocks.rows
    cols = d.b.blocks.rows if d.b.transposed else d.b.blocks.cols
    reached = _blocks_of(sums.terms, rows, cols).amax((-2, -1)) > 0
    truth = _finish(built, _at_blocks(sums, reached, rows, cols), None)
    offsets = torch.nn.functional.pad(reached[0].sum(-1).cumsum(0), (1, 0))
    return Truth(truth.value, truth.slack, (offsets, reached[0].nonzero()[:, -1]))
