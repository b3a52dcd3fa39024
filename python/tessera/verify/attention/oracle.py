"""A second implementation of attention, in float64, for a range of queries at a time. It has its
own visibility rules, which follow the drawn problem instead of the lists that the library reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..numbers import BITS, DTYPES, FP8_UNIT, UNIT, finite
from .draw import FP8, Drawn

PARTIAL, FULL = 1, 2
TILE_ROWS = 64  # queries that share a budget
FEW_NUMBERS = 256  # fewer results do not show an emulation's largest error
WEIGHED_BASES = 4  # row maxes that are tried where P is multiplied by factors before it is rounded
STEP_KEYS = 128  # keys of which kernels for FP8 multiply P at once
# P in FP8 is multiplied by this before it is rounded, so that its range is used.
UNIT_OF_P = {torch.float8_e4m3fn: 256}


@dataclass
class Cells:
    """The contents of a block mask: the kind of each block, and the bit tile of partial ones."""

    kinds: Tensor  # u8 [batch|1, heads|kv_heads|1, rows, columns]
    tile: Tensor  # i64, the same shape
    tiles: Tensor | None  # bool [tiles, block_q, block_kv]


def seen(d: Drawn, cells: Cells | None, batch: int, first: int, last: int, device: Any,
         with_bits: bool = True) -> Tensor:
    """Booleans [heads|1, last - first, keys]: the keys that queries first to last see."""
    length = d.kv_lengths[batch]
    end = length if d.kv_end is None else d.kv_end[batch]
    begin = 0 if d.kv_begin is None else d.kv_begin[batch]
    kv_position = 0 if d.kv_position is None else d.kv_position[batch]
    q_position = (kv_position + end - d.q_lengths[batch] if d.q_position is None
                  else d.q_position[batch])
    i = torch.arange(first, last, device=device)[:, None]
    j = torch.arange(length, device=device)[None, :]
    distance = (kv_position + j) - (q_position + i)
    visible = ((j >= begin) & (j < end)).expand(distance.shape)
    if d.causal:
        visible = visible & (distance <= 0)
    if d.window_left is not None:
        visible = visible & (distance >= -d.window_left)
    if d.window_right is not None:
        visible = visible & (distance <= d.window_right)
    visible = visible[None]
    if cells is None or d.mask is None:
        return visible
    of = batch if cells.kinds.shape[0] > 1 else 0
    row, column = i // d.mask.block_q, j // d.mask.block_kv
    kinds = _by_head(d, cells.kinds[of])[:, row, column]
    visible = visible & (kinds != 0)
    if with_bits and cells.tiles is not None:
        tile = _by_head(d, cells.tile[of])[:, row, column]
        inside = cells.tiles[tile, i % d.mask.block_q, j % d.mask.block_kv]
        visible = visible & ((kinds == FULL) | inside)
    return visible


def _by_head(d: Drawn, sets: Tensor) -> Tensor:
    """[heads|1, ..]: repeats the values of a KV head for all heads of its group."""
    return sets if sets.shape[0] == 1 else sets.repeat_interleave(d.heads // sets.shape[0], 0)


@dataclass
class Truth:
    """The results for a range of queries. Slacks: errors of an f32 evaluation that an emulation may
    not show by chance."""

    out: Tensor  # f64 [heads, rows, dim_v]
    lse: Tensor  # f64 [heads, rows]
    yardstick: Tensor  # [heads, rows]: largest error of f32 softmax with rounded P and results
    out_slack: Tensor  # [heads, rows]
    lse_slack: Tensor
    empty: Tensor  # bool [heads, rows]: queries that see no key


def attend(d: Drawn, q: Tensor, k: Tensor, v: Tensor, visible: Tensor,
           sinks: Tensor | None, v_factors: Tensor | None = None) -> Truth:
    """q [heads, rows, dim], k and v [kv_heads, keys, ...], visible [heads|1, rows, keys]. Keys
    and values that no query sees are zeros here. `v_factors` [kv_heads, keys]: those of FP8, where
    a head has several; P is multiplied by them before it is rounded."""
    if k.shape[1] == 0:  # one key that no query sees
        k, v = (x.new_zeros(x.shape[0], 1, x.shape[2]) for x in (k, v))
        visible, v_factors = visible.new_zeros(*visible.shape[:2], 1), None
    scale = d.dim**-0.5 if d.scale is None else d.scale
    hidden = ~visible
    weighed = None if v_factors is None else _relative(v_factors, d.heads // d.kv_heads)
    out, lse, weights, total = _softmax(d, q.double(), k.double(), v.double(), hidden, sinks,
                                        scale)
    shares = torch.div(weights, total, out=torch.empty_like(weights, dtype=torch.float32))
    q, k, v = q.float(), k.float(), v.float()

    def errors(rows: slice, raised: float = 0) -> Tensor:
        emulated = _softmax(d, q[:, rows], k, v, hidden[:, rows], sinks, scale,
                            DTYPES[d.dtype], raised, weighed)[0]
        return (emulated.to(DTYPES[d.out_dtype]).double() - out[:, rows]).abs().amax(-1)

    # The rounding of P depends on the row max that is subtracted, which a kernel may choose
    # differently. The last queries of a sequence have few results, on which one choice may have
    # small errors by chance, so several are tried. Factors of values move P as well: their unit
    # depends on which keys a kernel walks together, and where scores are similar, all P of a row
    # are rounded up or all down with it. So several are tried for all queries then.
    yardstick = errors(slice(None))
    last = q.shape[1] % TILE_ROWS

    def try_bases(rows: slice, bases: int) -> None:
        for i in range(1, bases):
            more = errors(rows, raised=i / bases * math.log(2))
            yardstick[:, rows] = torch.maximum(yardstick[:, rows], more)

    if weighed is not None:
        try_bases(slice(None), WEIGHED_BASES)
    if last:
        try_bases(slice(-last, None), -(-FEW_NUMBERS // (last * v.shape[2])))

    # Scores with errors of a few ulps of their summands (twice: numerator and denominator), an exp
    # with an error of a few ulps, and one P that rounds the other way. Tensor cores have few bits
    # for sums of FP8.
    coarse = d.dtype == FP8 and q.is_cuda
    of_scores = FP8_UNIT if coarse else UNIT
    sizes = _grouped(q.abs(), k.abs().mT)
    size = sizes.masked_fill_(hidden, 0).amax(-1).mul_(abs(scale))
    magnitudes = v.abs()
    reach = _grouped(shares, magnitudes).amax(-1)
    largest = magnitudes.amax(-1).repeat_interleave(d.heads // d.kv_heads, 0)[:, None, :]
    term = shares.mul_(largest).amax(-1)
    out_slack = (8 * UNIT + 4 * of_scores * size) * reach + 2.0 ** -BITS[d.dtype] * term
    terms = visible.sum(-1)
    small = finite(lse).abs()
    lse_slack = UNIT * ((d.dim + 8) * size + terms + 16 + 2 * small)
    if coarse:
        lse_slack += of_scores * size
    empty = (terms == 0).expand(lse.shape)
    return Truth(out, lse, yardstick, out_slack.double(), lse_slack.double(), empty)


def _grouped(left: Tensor, right: Tensor) -> Tensor:
    """[heads, rows, x] times [kv_heads, x, y]."""
    groups = right.shape[0]
    product = left.reshape(groups, -1, left.shape[-1]) @ right
    return product.reshape(*left.shape[:2], right.shape[-1])


def _relative(factors: Tensor, group: int) -> Tensor:
    """Factors of keys [kv_heads, keys] as fractions of the largest of each 128, for all heads
    [heads, 1, keys]."""
    keys = factors.shape[-1]
    usable = torch.nan_to_num(factors.float(), nan=0.0)
    padded = torch.nn.functional.pad(usable, (0, -keys % STEP_KEYS))
    largest = padded.unflatten(-1, (-1, STEP_KEYS)).amax(-1).repeat_interleave(STEP_KEYS, -1)
    relative = usable / largest[:, :keys]
    relative = torch.where(relative > 0, relative, 1.0)
    return relative.repeat_interleave(group, 0)[:, None]


def _softmax(d: Drawn, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, sinks: Tensor | None,
             scale: float, rounded_to: torch.dtype | None = None,
             raised: float = 0, weighed: Tensor | None = None
             ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, lse, P before normalisation and its sums, in the dtype of q. P is rounded to
    `rounded_to`, times `weighed` [heads, 1, keys]; `raised` is added to the row max that is
    subtracted. Works in place, as scores are large."""
    scores = _grouped(q, k.mT).mul_(scale)
    if d.softcap:
        scores.div_(d.softcap).tanh_().mul_(d.softcap)
    scores.masked_fill_(hidden, -torch.inf)
    top = scores.amax(-1)
    if sinks is not None:
        top = torch.maximum(top, sinks.to(top.dtype)[:, None])
    top = finite(top) + raised
    weights = scores.sub_(top[..., None]).exp_()
    total = weights.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks.to(top.dtype)[:, None] - top)
    lse = top + torch.log(total)
    total = torch.where(total > 0, total, 1)[..., None]
    if rounded_to is not None and rounded_to != torch.float32:
        unit: Tensor | float = UNIT_OF_P.get(rounded_to, 1)
        if weighed is not None:
            unit = weighed * unit
        weights = (weights * unit).to(rounded_to).float() / unit
    return _grouped(weights, v) / total, lse, weights, total
