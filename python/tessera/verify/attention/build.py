"""Tensors of a drawn problem: views into larger buffers. All that must not be read is NaN."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import tessera

from ..calls import Call
from ..memory import NAN_BITS, Buffer, words
from ..numbers import DTYPES, LARGEST
from .draw import Blocks, Drawn
from .oracle import FULL, PARTIAL, Cells, seen

# Fills a row of lists after its last entry.
NOTHING = (1 << 31) - 1
# Values in FP8 that have factors are random normal numbers times this, and the factors over this.
SPREAD_OF_FP8 = 80.0


def strides_of(shape: tuple[int, ...], heads_first: bool, padding: tuple[int, ...],
               itemsize: int) -> tuple[int, ...]:
    """Strides of [.., length, heads, dim]; every pitch is a multiple of 16 bytes."""
    rank = len(shape)
    order = list(range(rank))
    if heads_first:
        order[rank - 3], order[rank - 2] = order[rank - 2], order[rank - 3]
    strides, step = [0] * rank, 1
    per_16_bytes = 16 // itemsize
    for place, at in enumerate(reversed(order)):
        strides[at] = step
        step *= max(1, shape[at])
        step += padding[place] * per_16_bytes if place < len(padding) else 0
    return tuple(strides)


def strides_by_keys(shape: tuple[int, ...], heads_first: bool,
                    padding: tuple[int, ...]) -> tuple[int, ...]:
    """The same in FP8 with contiguous keys, in lines of multiples of 16 bytes."""
    *outer, length, heads, dim = shape
    lines = (*outer, heads, dim, -(-length // 16) * 16)
    *outer, of_heads, of_dim, of_length = strides_of(lines, heads_first, padding, 1)
    return (*outer, of_length, of_heads, of_dim)


def sequence(tensor: Tensor, offsets: list[int] | None, batch: int) -> Tensor:
    """[length, heads, dim] of one sequence."""
    return tensor[batch] if offsets is None else tensor[offsets[batch] : offsets[batch + 1]]


def offsets_of(lengths: list[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


@dataclass
class Built:
    drawn: Drawn
    q: Tensor  # [batch, length, heads, dim] or [total, heads, dim], whatever the layout
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    cells: Cells | None
    mask: Any
    lists: dict[str, Any]  # options that are lists, with a number per sequence or one more
    q_offsets: list[int] | None
    kv_offsets: list[int] | None
    stretch: int  # elements of a score matrix that are checked at a time
    pools: tuple[Tensor, Tensor] | None = None  # k and v in pages, in place of the dense ones
    scales: dict[str, Tensor] = field(default_factory=dict)  # options of FP8, such as q_scale
    factors: dict[str, Tensor] = field(default_factory=dict)  # those of each row of q, k and v

    def stretches(self, batch: int) -> Iterator[tuple[int, int]]:
        """Ranges (first, last) of queries, in whole tiles of 64."""
        length, keys = self.drawn.q_lengths[batch], max(1, self.drawn.kv_lengths[batch])
        step = max(1, self.stretch // (self.drawn.heads * keys * 64)) * 64
        for first in range(0, length, step):
            yield first, min(length, first + step)

    def outputs(self) -> tuple[Buffer, Buffer | None]:
        d = self.drawn
        shape = (*self.q.shape[:-1], d.dim_v)
        dtype = DTYPES[d.out_dtype]
        strides = strides_of(shape, d.heads_first["out"], d.padding["out"], dtype.itemsize)
        out = Buffer(shape, strides, dtype, self.q.device)
        if not d.lse:
            return out, None
        shape = (*shape[:-3], shape[-2], shape[-3])
        strides = strides_of((*shape, 1), False, (0, *d.padding["out"][1:]), 4)[:-1]
        return out, Buffer(shape, strides, torch.float32, self.q.device)

    def call(self, out: Buffer, lse: Buffer | None) -> Call:
        d = self.drawn

        def given(tensor: Tensor) -> Tensor:
            return tensor.transpose(-3, -2) if d.layout == "bhld" else tensor

        k, v = self.pools or (self.k, self.v)
        return "attention", (given(self.q), given(k), given(v)), {
            "out": given(out.tensor), "lse": None if lse is None else lse.tensor,
            "return_lse": lse is not None, "layout": d.layout, "causal": d.causal,
            "window_left": d.window_left, "window_right": d.window_right, "mask": self.mask,
            "batch_invariant": d.batch_invariant,
            "scale": d.scale, "softcap": d.softcap, "sinks": self.sinks,
            "max_q_length": d.max_q_length, "max_kv_length": d.max_kv_length, **self.scales,
            **self.lists}

    def run(self, out: Buffer, lse: Buffer | None, kernel: str | None = None,
            backend: str | None = None) -> None:
        _, (q, k, v), options = self.call(out, lse)
        options |= {"kernel": kernel, "backend": backend}
        tessera.attention(q, k, v, **options)


def build(d: Drawn, device: Any, stretch: int) -> Built:
    generator = torch.Generator(device).manual_seed(d.seed)
    index = torch.int32 if d.index == "i32" else torch.int64
    q_offsets = offsets_of(d.q_lengths) if d.packed_q else None
    kv_offsets = offsets_of(d.kv_lengths) if d.packed_kv else None
    q_lead = (d.batch, d.q_lengths[0]) if q_offsets is None else (q_offsets[-1] + d.q_tail,)
    kv_lead = (d.batch, d.kv_lengths[0]) if kv_offsets is None else (kv_offsets[-1] + d.tail,)

    def values(name: str, *shape: int) -> Tensor:
        dtype = DTYPES[d.dtype]
        order = d.heads_first[name], d.padding[name]
        strides = (strides_by_keys(shape, *order) if name == "v" and d.v_by_keys
                   else strides_of(shape, *order, dtype.itemsize))
        tensor = Buffer(shape, strides, dtype, device).tensor
        made = torch.randn(shape, generator=generator, device=device)
        if d.factors.get(name, "none") != "none":
            made.mul_(SPREAD_OF_FP8).clamp_(-LARGEST[d.dtype], LARGEST[d.dtype])
        return tensor.copy_(made)

    q = values("q", *q_lead, d.heads, d.dim)
    k = values("k", *kv_lead, d.kv_heads, d.dim)
    v = values("v", *kv_lead, d.kv_heads, d.dim_v)
    sinks = None
    if d.sinks is not None:
        sinks = 2 * torch.randn(d.heads, generator=generator, device=device)
        sinks = sinks.to(DTYPES[d.sinks])
    cells, mask = (None, None) if d.mask is None else _mask(d, d.mask, generator, device, index)
    numbers = {"q_offsets": q_offsets, "kv_offsets": kv_offsets, "kv_begin": d.kv_begin,
               "kv_end": d.kv_end, "q_position": d.q_position, "kv_position": d.kv_position}
    lists = {name: torch.tensor(one, dtype=index, device=device)
             for name, one in numbers.items() if one is not None}
    built = Built(d, q, k, v, sinks, cells, mask, lists, q_offsets, kv_offsets, stretch)
    _spoil_what_is_not_needed(built)
    if d.page:
        _put_into_pages(built, generator, index)
    _make_factors(built, generator)
    return built


def _make_factors(built: Built, generator: torch.Generator) -> None:
    """The factors of q, k and v in FP8 as `attention` takes them, and those of each row."""
    pools = dict(zip("kv", built.pools or (), strict=False))
    for name, form in built.drawn.factors.items():
        if form == "none":
            continue
        dense, pool = getattr(built, name), pools.get(name)
        shape = dense.shape if pool is None else pool.shape
        scale = _random_factors(form, shape, generator, dense.device)
        each = _factor_of_rows(scale, shape)
        if pool is not None:  # from pages to sequences
            used = built.lists["page_table"][:, : -(-dense.shape[1] // shape[1])].long()
            each = each[used].flatten(1, 2)[:, : dense.shape[1]]
            if scale.dim() > 1:
                unused = torch.ones(shape[0], dtype=torch.bool, device=scale.device)
                unused[used] = False
                scale[unused] = torch.nan
        built.scales[f"{name}_scale"], built.factors[name] = scale, each


def _random_factors(form: str, shape: tuple[int, ...], generator: torch.Generator,
                    device: Any) -> Tensor:
    """Of a tensor [.., length, heads, dim]. The memory around them is NaN."""
    *outer, length, heads, _ = shape
    sizes = {"tensor": (1,), "head": (heads,), "outer": (*outer, heads)}.get(form)
    if sizes is None:
        sizes = (*outer, heads, -(-length // int(form)))
    strides = strides_of((1, *sizes), False, (1,), 4)[1:]
    scale = Buffer(sizes, strides, torch.float32, device).tensor
    made = torch.randn(sizes, generator=generator, device=device)
    return scale.copy_(made.div_(2).exp_().div_(SPREAD_OF_FP8))


def _factor_of_rows(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[.., length, heads] of a tensor [.., length, heads, dim]."""
    *outer, length, heads, _ = shape
    if scale.dim() == len(shape) - 1:  # for some rows each
        rows = 128 if scale.shape[-1] == -(-length // 128) else 64
        return scale.repeat_interleave(rows, -1)[..., :length].transpose(-1, -2)
    if scale.dim() > 1:
        scale = scale[:, None]
    return scale.expand(*outer, length, heads)


def _put_into_pages(built: Built, generator: torch.Generator, index: torch.dtype) -> None:
    """Copies keys and values into pages in a random order. Unused pages, and the rest of the last
    page of a sequence, are NaN; unused entries of the table name no page."""
    d, device = built.drawn, built.k.device
    used = -(-d.kv_lengths[0] // d.page)
    pages = d.batch * used + d.more_pages
    order = torch.randperm(pages, generator=generator, device=device)
    table = torch.full((d.batch, used + d.more_pages), -1, dtype=torch.int32, device=device)
    table[:, :used] = order[: d.batch * used].reshape(d.batch, used)
    pools = []
    for name, dense in (("k", built.k), ("v", built.v)):
        shape = (pages, d.page, *dense.shape[2:])
        strides = strides_of(shape, d.heads_first[name], d.padding[name], dense.element_size())
        pool = Buffer(shape, strides, dense.dtype, device).tensor
        for entry in range(used):
            rows = dense[:, entry * d.page : (entry + 1) * d.page]
            words(pool)[table[:, entry].long(), : rows.shape[1]] = words(rows)
        pools.append(pool)
    built.pools = pools[0], pools[1]
    built.lists["page_table"] = table
    if d.kv_end is None:
        built.lists["kv_end"] = torch.tensor(d.kv_lengths, dtype=index, device=device)


def _spoil_what_is_not_needed(built: Built) -> None:
    """Writes NaN to keys and values that no query of their head may see, and to some queries that
    see no key. Keys that only bits hide keep their numbers, as their block is read."""
    d = built.drawn
    all_q, all_k, all_v = (words(x) for x in (built.q, built.k, built.v))
    if built.kv_offsets is not None:
        all_k[built.kv_offsets[-1] :] = NAN_BITS
        all_v[built.kv_offsets[-1] :] = NAN_BITS
    if built.q_offsets is not None:
        all_q[built.q_offsets[-1] :] = NAN_BITS
    for b in range(d.batch):
        q = sequence(all_q, built.q_offsets, b)
        k, v = (sequence(x, built.kv_offsets, b) for x in (all_k, all_v))
        met = torch.zeros(k.shape[0], d.kv_heads, dtype=torch.bool, device=k.device)
        for first, last in built.stretches(b):
            visible = seen(d, built.cells, b, first, last, q.device, with_bits=False)
            keys = visible.any(1).expand(d.heads, -1)
            met |= keys.unflatten(0, (d.kv_heads, -1)).any(1).T
            if d.nan_queries:
                sees = visible.any(2).expand(d.heads, -1).T
                q[first:last].masked_fill_(~sees[:, :, None], NAN_BITS)
        k.masked_fill_(~met[:, :, None], NAN_BITS)
        v.masked_fill_(~met[:, :, None], NAN_BITS)


# ---- Block masks -------------------------------------------------------------------------------


def _mask(d: Drawn, mask: Blocks, generator: torch.Generator, device: Any,
          index: torch.dtype) -> tuple[Cells, tessera.BlockMask]:
    rows, columns = -(-d.q_bound // mask.block_q), -(-d.kv_bound // mask.block_kv)
    shape = (mask.batch, mask.heads, rows, columns)

    def uniform(*sizes: int) -> Tensor:
        return torch.rand(sizes, generator=generator, device=device)

    stored = uniform(*shape) < mask.density
    stored &= (uniform(*shape[:3]) >= mask.empty_rows)[..., None]
    partial = stored & (uniform(*shape) < mask.partial)
    kinds = (stored.int() * FULL - partial.int() * (FULL - PARTIAL)).to(torch.uint8)
    tile = torch.randint(max(1, mask.tiles), shape, generator=generator, device=device)
    tiles = None
    if mask.tiles:
        tiles = uniform(mask.tiles, mask.block_q, mask.block_kv)
        tiles = tiles < torch.linspace(0.5, 1, mask.tiles, device=device)[:, None, None]
        if mask.tiles > 1:
            tiles[0] = False
    order = uniform(*shape)
    full_lists: tuple[Any, Any] = _lists(kinds == FULL, order, index)
    partial_lists: tuple[Any, Any] = (None, None)
    bit_tile = bits = None
    if mask.partial > 0:
        partial_lists = _lists(partial, order, index)
        if tiles is not None:
            bits = _packed(tiles)
            safe = partial_lists[1].long().clamp(max=max(0, columns - 1))
            bit_tile = (torch.take_along_dim(tile, safe, -1) if columns else safe).to(index)
    if mask.partial == 1.0 and d.seed % 2:
        full_lists = (None, None)
    return Cells(kinds, tile, tiles), tessera.BlockMask(
        d.q_bound, d.kv_bound, mask.block_q, mask.block_kv, *full_lists, *partial_lists, bit_tile,
        bits)


def _lists(chosen: Tensor, order: Tensor, index: torch.dtype) -> tuple[Tensor, Tensor]:
    """Counts, and the chosen columns of each row in random order."""
    counts = chosen.sum(-1)
    capacity = int(counts.max()) if counts.numel() else 0
    entries = torch.where(chosen, order, 2.0).argsort(-1)[..., :capacity]
    slots = torch.arange(entries.shape[-1], device=chosen.device)
    entries = torch.where(slots < counts[..., None], entries, NOTHING)
    return counts.to(index), entries.to(index).contiguous()


def _packed(tiles: Tensor) -> Tensor:
    """Element j of a row is bit j % 8 of byte j // 8."""
    weights = 2 ** torch.arange(8, device=tiles.device)
    tiles = torch.nn.functional.pad(tiles, (0, -tiles.shape[-1] % 8))
    grouped = tiles.reshape(*tiles.shape[:-1], -1, 8).long()
    return (grouped * weights).sum(-1).to(torch.uint8)
