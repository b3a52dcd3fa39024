"""Which blocks of keys each block of queries attends to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera import patterns, tensors
from tessera.block_lists import index_grids, like_on, lists_of, map_of, one_per_block
from tessera.bsr import block_shape
from tessera.dispatch import operations

MaskMod = Callable[[Any, Any, Any, Any], Any]

# Elements of a mask that are looked at together.
_CHUNK = 1 << 24
# Differences of positions, and the ends of the last blocks, are int32.
_MAX_LENGTH = 1 << 30


@dataclass(frozen=True, eq=False)
class BlockMask:
    """Which (query block, key block) pairs attention visits: full blocks whole, partial ones under
    a bit each element. Pairs in neither list cost nothing.

    Lists are FlexAttention's: counts ``[batch|1, heads, rows]``, indices with one dimension more;
    heads: attention's, its kv_heads (one list for a group of query heads) or 1. All NumPy arrays or
    all PyTorch tensors; `to` moves them. Build one with the ``from_`` functions or with `window`,
    `causal`, `bigbird`; causality, windows and key ranges given to `attention` apply on top.

    >>> import numpy as np, tessera
    >>> mask = tessera.BlockMask.causal(512, 512, block=128)
    >>> mask
    BlockMask(512 x 512, blocks 128 x 128, batch 1, heads 1, density 0.625)
    >>> bool((mask.to_dense()[0, 0] == np.tril(np.ones((512, 512), bool))).all())
    True
    """

    q_length: int
    kv_length: int
    block_q: int
    block_kv: int
    full_counts: Any
    full_indices: Any
    partial_counts: Any = None
    partial_indices: Any = None
    bit_tile: Any = None
    bits: Any = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """In the order of the exports."""
        return (self.block_q, self.block_kv, self.full_counts, self.full_indices,
                self.partial_counts, self.partial_indices, self.bit_tile, self.bits)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return -(-self.q_length // self.block_q), -(-self.kv_length // self.block_kv)

    def check_lengths(self, where: str, q_length: int, kv_length: int, note: str = "") -> None:
        if (q_length, kv_length) != (self.q_length, self.kv_length):
            raise ValueError(f"{where}: made for {self.q_length} queries and {self.kv_length} "
                             f"keys, got {q_length} and {kv_length}{note}")

    def block_map(self) -> Any:
        """u8 ``[batch|1, heads|1, rows, cols]``: 0 empty, 1 partial, 2 full."""
        blocks = tensors.to_int32(map_of(self.full_counts, self.full_indices, self.grid)) * 2
        if self.partial_counts is not None:
            blocks = blocks + map_of(self.partial_counts, self.partial_indices, self.grid)
        return blocks

    @property
    def density(self) -> float:
        """The share of blocks that attention visits."""
        blocks = self.block_map() != 0
        count = int(np.prod(blocks.shape))
        return float(blocks.sum()) / count if count else 0.0

    def __repr__(self) -> str:
        batch, heads = self.full_counts.shape[:2]
        return (f"BlockMask({self.q_length} x {self.kv_length}, blocks {self.block_q} x "
                f"{self.block_kv}, batch {batch}, heads {heads}, density {self.density:.3g})")

    def to_dense(self) -> Any:
        """Booleans ``[batch|1, heads|1, q_length, kv_length]``."""
        rows, cols = self.grid
        bq, bkv = self.block_q, self.block_kv
        blocks = self.block_map()
        shape = (*blocks.shape, bq, bkv)
        dense = tensors.to_bool(tensors.zeros(shape, blocks))
        dense[blocks == 2] = True
        if self.partial_counts is not None:
            tiles = self._tile_of_block()
            at = tensors.nonzero(blocks == 1)
            dense[at] = True if tiles is None else tensors.unpack_bits(self.bits, bkv)[tiles[at]]
        dense = dense.swapaxes(-3, -2).reshape(*blocks.shape[:2], rows * bq, cols * bkv)
        return dense[..., : self.q_length, : self.kv_length]

    def _tile_of_block(self) -> Any:
        """[batch, heads, rows, cols]: the bit tile of each partial block."""
        if self.bit_tile is None:
            return None
        tiles = tensors.zeros((*self.partial_counts.shape, self.grid[1]), self.bit_tile)
        slots = tensors.arange(self.partial_indices.shape[-1], self.partial_counts)
        b, h, r, slot = tensors.nonzero(slots < self.partial_counts[..., None])
        tiles[b, h, r, self.partial_indices[b, h, r, slot]] = self.bit_tile[b, h, r, slot]
        return tiles

    def lists_by_column(
        self, capacity: int | None = None,
    ) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any] | None]:
        """The full and the partial blocks (None where there are none) listed by column, as backward
        passes walk them: ``(counts, rows, entries)`` each, with counts ``[batch|1, heads|1,
        cols]``, ascending rows in one dimension more, and which entry of its row's list each block
        is, to find its bit tile. ``capacity`` is the room in each list, by default for all rows; a
        column that needs more keeps its first rows.

        >>> import numpy as np, tessera
        >>> mask = tessera.BlockMask.from_blocks(np.eye(4) == 1, 256, 256, 64)
        >>> (counts, rows, entries), _ = mask.lists_by_column()
        >>> counts.tolist(), rows.shape
        ([[[1, 1, 1, 1]]], (1, 1, 4, 4))
        """
        rows, cols = self.grid
        capacity = max(1, rows) if capacity is None else capacity

        def by_column(counts: Any, indices: Any) -> Any:
            if counts is None:
                return None
            return operations("lists_by_column: mask", counts).transpose_lists(
                counts, indices, cols, capacity)

        return (by_column(self.full_counts, self.full_indices),
                by_column(self.partial_counts, self.partial_indices))

    def plot(self, batch: int = 0, head: int = 0, ax: Any = None) -> Any:
        """The blocks as a matplotlib image: full dark, partial lighter, empty white."""
        import matplotlib.pyplot as plt

        ax = ax or plt.gca()
        blocks = self.block_map()[batch, head]
        if tensors.is_torch(blocks):
            blocks = blocks.cpu().numpy()
        ax.imshow(blocks, cmap="Blues", vmin=0, vmax=2, interpolation="nearest")
        ax.set_xlabel(f"key block ({self.block_kv} keys)")
        ax.set_ylabel(f"query block ({self.block_q} queries)")
        return ax

    def to(self, device: Any) -> BlockMask:
        """As PyTorch tensors on a device."""
        import torch

        moved = (x if x is None else torch.as_tensor(x).to(device) for x in self.arrays[2:])
        return BlockMask(self.q_length, self.kv_length, self.block_q, self.block_kv, *moved)

    # ---- Constructors --------------------------------------------------------------------------

    @staticmethod
    def from_dense(elements: Any, block: int | tuple[int, int] = 128) -> BlockMask:
        """From booleans ``[q_length, kv_length]`` or ``[batch|1, heads|1, q_length, kv_length]``,
        True where a query sees a key.

        >>> import numpy as np, tessera
        >>> tessera.BlockMask.from_dense(np.tril(np.ones((256, 256), bool)), block=64).density
        0.625
        """
        tensors.namespace("from_dense: elements", elements)
        if len(elements.shape) == 2:
            elements = elements[None, None]
        if len(elements.shape) != 4 or str(elements.dtype).removeprefix("torch.") != "bool":
            raise ValueError("from_dense: elements: expected booleans [q_length, kv_length] or "
                             "[batch|1, heads|1, q_length, kv_length], got "
                             f"{elements.dtype} {list(elements.shape)}")
        q_length, kv_length = elements.shape[-2:]
        device = elements.device if tensors.is_torch(elements) else None
        return BlockMask.from_mask_mod(lambda b, h, q, kv: elements[b, h, q, kv], q_length,
                                       kv_length, block, batch=elements.shape[0],
                                       heads=elements.shape[1], device=device)

    @staticmethod
    def from_mask_mod(mask_mod: MaskMod, q_length: int, kv_length: int,
                      block: int | tuple[int, int] = 128, *, batch: int = 1, heads: int = 1,
                      device: Any = None) -> BlockMask:
        """From a function of index arrays that broadcast: ``mask_mod(b, h, q, kv)`` is True where a
        query sees a key, as FlexAttention's. ``device`` gives PyTorch tensors there.

        >>> import tessera
        >>> tessera.BlockMask.from_mask_mod(lambda b, h, q, kv: abs(q - kv) <= 32, 256, 256, 64)
        BlockMask(256 x 256, blocks 64 x 64, batch 1, heads 1, density 0.625)
        """
        q_length, kv_length, bq, bkv = _sizes("from_mask_mod", q_length, kv_length, block)
        batch = tensors.integer("from_mask_mod: batch", batch)
        heads = tensors.integer("from_mask_mod: heads", heads)
        for name, count in (("batch", batch), ("heads", heads)):
            if count < 0:
                raise ValueError(f"from_mask_mod: {name}: expected 0 or more, got {count}")
        _check_signature(mask_mod)
        like = like_on(device)
        rows, cols = -(-q_length // bq), -(-kv_length // bkv)
        step = max(1, _CHUNK // max(1, batch * heads * bq * kv_length)) * bq
        full, partial, tiles = [], [], []
        b, h, q, kv = index_grids((batch, heads, q_length, kv_length), like)
        for first in range(0, q_length, step):
            seen = _broadcast(_call(mask_mod, b, h, q[:, :, first : first + step], kv),
                              (batch, heads, min(step, q_length - first), kv_length))
            height = -(-seen.shape[2] // bq)

            def blocks(value: bool) -> Any:
                padded = tensors.pad(seen, height * bq, cols * bkv, value)  # noqa: B023
                grid = padded.reshape(batch, heads, height, bq, cols, bkv)  # noqa: B023
                return grid.swapaxes(3, 4)

            some, every = blocks(False), blocks(True).all(-1).all(-1)
            mixed = some.any(-1).any(-1) & ~every
            full.append(every.swapaxes(0, 2))
            partial.append(mixed.swapaxes(0, 2))
            # In the order of the rows, so that chunks join.
            tiles.append(tensors.pack_bits(some.swapaxes(0, 2)[mixed.swapaxes(0, 2)]))
        if not full:
            empty = tensors.to_bool(tensors.zeros((rows, heads, batch, cols), like))
            return _assemble((q_length, kv_length, bq, bkv), empty.swapaxes(0, 2), None, None)
        full_map, partial_map = (tensors.concatenate(x).swapaxes(0, 2) for x in (full, partial))
        return _assemble((q_length, kv_length, bq, bkv), full_map, partial_map,
                         tensors.concatenate(tiles))

    @staticmethod
    def from_blocks(blocks: Any, q_length: int, kv_length: int,
                    block: int | tuple[int, int] = 128, *,
                    capacity: int | None = None) -> BlockMask:
        """From booleans (or integers: 0 is empty), one per block: ``[rows, cols]`` or ``[batch|1,
        heads|1, rows, cols]``; every set one is full.

        ``capacity`` is the room in each row's list, and a row with more set blocks keeps the first.
        Where it is given, nothing is read back from a GPU, so that the call may be captured in a
        graph; without it the longest row decides.

        >>> import numpy as np, tessera
        >>> tessera.BlockMask.from_blocks(np.tri(4, 4) == 1, 256, 256, 64, capacity=4).density
        0.625
        """
        sizes = _sizes("from_blocks", q_length, kv_length, block)
        blocks = one_per_block("from_blocks: blocks", blocks, sizes)
        tensors.check_set("from_blocks: blocks", blocks, ", and from_top_k takes scores")
        blocks = tensors.to_bool(blocks)
        if capacity is not None:
            capacity = tensors.integer("from_blocks: capacity", capacity)
        if capacity is not None and capacity < 1:
            raise ValueError(f"from_blocks: capacity: expected 1 and more, got {capacity}")
        return BlockMask(*sizes, *lists_of(blocks, capacity))

    @staticmethod
    def from_top_k(scores: Any, k: int, q_length: int, kv_length: int,
                   block: int | tuple[int, int] = 128) -> BlockMask:
        """The k blocks of the largest scores in each row (of equal ones the first): scores ``[rows,
        cols]`` or ``[batch|1, heads|1, rows, cols]``, taken as float32 where they are neither that
        nor a 16-bit float. A score of -inf or NaN is never chosen: mask with it, causally for
        instance. Nothing is read back from a GPU, so that the call may be captured in a graph.

        >>> import numpy as np, tessera
        >>> scores = np.random.default_rng(0).random((1, 4, 8, 8))
        >>> tessera.BlockMask.from_top_k(scores, 2, 1024, 1024, block=128).density
        0.25
        """
        k = tensors.integer("from_top_k: k", k)
        if k < 0:
            raise ValueError(f"from_top_k: k: expected 0 and more, got {k}")
        sizes = _sizes("from_top_k", q_length, kv_length, block)
        scores = one_per_block("from_top_k: scores", scores, sizes)
        if not tensors.is_real(scores):
            raise TypeError(f"from_top_k: scores: expected real numbers, got {scores.dtype}")
        scores = tensors.to_float(scores)
        lists = operations("from_top_k: scores", scores).top_k_blocks(
            scores, k, max(1, min(k, scores.shape[-1])))
        return BlockMask(*sizes, *lists)

    @staticmethod
    def window(q_length: int, kv_length: int, left: int | None = None, right: int | None = None,
               block: int | tuple[int, int] = 128, *, device: Any = None) -> BlockMask:
        """Keys at most ``left`` before and ``right`` after the query; None and -1 are no limit.
        The last query and the last key stand together.

        >>> import tessera
        >>> tessera.BlockMask.window(1024, 1024, left=255, right=0, block=128).density
        0.328125
        """
        return BlockMask._window("window", q_length, kv_length, left, right, block, device)

    @staticmethod
    def _window(where: str, q_length: int, kv_length: int, left: int | None, right: int | None,
                block: int | tuple[int, int], device: Any) -> BlockMask:
        q_length, kv_length, bq, bkv = _sizes(where, q_length, kv_length, block)
        left, right = _limit(f"{where}: left", left), _limit(f"{where}: right", right)
        shift = kv_length - q_length
        low = -(q_length + kv_length) if left is None else -left
        high = q_length + kv_length if right is None else right
        like = like_on(device)
        _, _, rows, cols = index_grids((1, 1, -(-q_length // bq), -(-kv_length // bkv)), like)
        # The smallest and the largest distance within a block, counting what exists of it.
        last_q, last_kv = (rows + 1) * bq - 1, (cols + 1) * bkv - 1
        last_q = last_q - (last_q >= q_length) * (last_q - q_length + 1)
        last_kv = last_kv - (last_kv >= kv_length) * (last_kv - kv_length + 1)
        nearest, farthest = cols * bkv - last_q - shift, last_kv - rows * bq - shift
        some = (farthest >= low) & (nearest <= high)
        every = (nearest >= low) & (farthest <= high)
        return _evaluate((q_length, kv_length, bq, bkv), every, some & ~every,
                         lambda b, h, q, kv: (kv - q - shift >= low) & (kv - q - shift <= high))

    @staticmethod
    def causal(q_length: int, kv_length: int, block: int | tuple[int, int] = 128, *,
               device: Any = None) -> BlockMask:
        """No later key than the query. (``attention(causal=True)`` needs no mask for that.)"""
        return BlockMask._window("causal", q_length, kv_length, None, 0, block, device)

    @staticmethod
    def bigbird(q_length: int, kv_length: int, block: int | tuple[int, int] = 128, *,
                half_width: int = 1, globals: int = 1, random: int = 2, seed: int = 0,
                device: Any = None) -> BlockMask:
        """BigBird, counted in blocks: a window of ``half_width`` to each side, the first
        ``globals`` rows and columns, and ``random`` more in each row.

        >>> import tessera
        >>> mask = tessera.BlockMask.bigbird(4096, 4096, block=128)
        >>> 0.1 < mask.density < 0.3
        True
        """
        q_length, kv_length, bq, bkv = _sizes("bigbird", q_length, kv_length, block)
        counts = (("half_width", half_width), ("globals", globals), ("random", random),
                  ("seed", seed))
        blocks = patterns.bigbird(-(-q_length // bq), -(-kv_length // bkv),
                                  *(tensors.integer(f"bigbird: {name}", x) for name, x in counts))
        mask = BlockMask.from_blocks(blocks, q_length, kv_length, (bq, bkv))
        return mask if device is None else mask.to(device)

    # ---- FlexAttention -------------------------------------------------------------------------

    @staticmethod
    def from_flex(mask: Any) -> BlockMask:
        """From a `torch.nn.attention.flex_attention.BlockMask`; its mask_mod is evaluated on its
        partial blocks, so it has to take index tensors that broadcast."""
        if not hasattr(mask, "BLOCK_SIZE"):
            raise TypeError("from_flex: mask: expected a "
                            "torch.nn.attention.flex_attention.BlockMask, got "
                            f"{tensors.type_name(mask)}")
        bq, bkv = mask.BLOCK_SIZE
        q_length, kv_length = mask.seq_lengths
        grid = (-(-q_length // bq), -(-kv_length // bkv))
        partial = map_of(mask.kv_num_blocks, mask.kv_indices, grid)
        if mask.full_kv_num_blocks is None:
            full = partial & ~partial
        else:
            full = map_of(mask.full_kv_num_blocks, mask.full_kv_indices, grid)
        return _evaluate((q_length, kv_length, bq, bkv), full, partial, mask.mask_mod)

    def to_flex(self) -> Any:
        """A `torch.nn.attention.flex_attention.BlockMask` of the same elements."""
        import torch
        from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

        mask = self if tensors.is_torch(self.full_counts) else self.to("cpu")
        _, cols = mask.grid

        def lists(counts: Any, indices: Any) -> tuple[Any, Any]:
            if counts is None:
                counts = torch.zeros_like(mask.full_counts)
                indices = torch.zeros_like(mask.full_indices)
            padded = indices.new_zeros((*indices.shape[:-1], cols))
            padded[..., : indices.shape[-1]] = indices
            return counts, padded

        tiles = mask._tile_of_block()
        blocks = mask.block_map()
        elements = None if tiles is None else tensors.unpack_bits(mask.bits, mask.block_kv)
        batch, heads = blocks.shape[:2]

        def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
            at = (b % batch, h % heads, q // mask.block_q, kv // mask.block_kv)
            if tiles is None or elements is None:
                return blocks[at] != 0
            return (blocks[at] == 2) | ((blocks[at] == 1) & elements[
                tiles[at], q % mask.block_q, kv % mask.block_kv])

        return FlexBlockMask.from_kv_blocks(
            *lists(mask.partial_counts, mask.partial_indices),
            *lists(mask.full_counts, mask.full_indices), BLOCK_SIZE=(mask.block_q, mask.block_kv),
            mask_mod=mask_mod, seq_lengths=(mask.q_length, mask.kv_length))


def _sizes(where: str, q_length: int, kv_length: int,
           block: int | tuple[int, int]) -> tuple[int, int, int, int]:
    """Lengths and block sizes, checked."""
    q_length = tensors.integer(f"{where}: q_length", q_length)
    kv_length = tensors.integer(f"{where}: kv_length", kv_length)
    for name, length in (("q_length", q_length), ("kv_length", kv_length)):
        if length < 0 or length > _MAX_LENGTH:
            raise ValueError(f"{where}: {name}: expected 0 to {_MAX_LENGTH}, got {length}")
    return (q_length, kv_length, *block_shape(f"{where}: block", block))


def _limit(where: str, limit: int | None) -> int | None:
    """A limit of a window; None where there is none."""
    if limit is None:
        return None
    expected = "None, -1 (both: no limit) or an integer of 0 and more"
    limit = tensors.integer(where, limit, expected)
    if limit < -1:
        raise ValueError(f"{where}: expected {expected}, got {limit}")
    return None if limit == -1 else limit


def _check_signature(mask_mod: Any) -> None:
    expected = "from_mask_mod: mask_mod: expected a function mask_mod(b, h, q, kv), got "
    if not callable(mask_mod):
        raise TypeError(expected + type(mask_mod).__name__)
    try:
        signature = inspect.signature(mask_mod)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(0, 0, 0, 0)
    except TypeError:
        raise TypeError(f"{expected}one of {signature}") from None


def _call(mask_mod: MaskMod, b: Any, h: Any, q: Any, kv: Any) -> Any:
    try:
        return mask_mod(b, h, q, kv)
    except (RuntimeError, ValueError) as error:
        # What NumPy and PyTorch say where an array stands as a condition.
        if "truth value of an array" in str(error) or "Boolean value of Tensor" in str(error):
            raise TypeError("from_mask_mod: mask_mod: use & and | in place of and, or, not and if: "
                            "b, h, q and kv are index arrays") from error
        raise


def _broadcast(x: Any, shape: tuple[Any, ...]) -> Any:
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise TypeError("from_mask_mod: mask_mod: expected booleans computed from the index arrays "
                        f"b, h, q, kv, got {type(x).__name__}")
    namespace = tensors.namespace("from_mask_mod: mask_mod", x)
    if str(x.dtype).removeprefix("torch.") != "bool":
        raise TypeError(f"from_mask_mod: mask_mod: expected booleans, got {x.dtype}")
    try:
        return namespace.broadcast_to(x, shape)
    except (RuntimeError, ValueError):
        raise ValueError("from_mask_mod: mask_mod: expected a result that broadcasts to "
                         f"{list(shape)}, got {list(x.shape)}") from None


def _assemble(sizes: tuple[int, int, int, int], full: Any, partial: Any, tiles: Any) -> BlockMask:
    """sizes: lengths, then block sizes. tiles: bits of the partial blocks, in the order of
    rows, heads, batch, columns."""
    mask = BlockMask(*sizes, *lists_of(full))
    if partial is None or not bool(partial.any()):
        return mask
    counts, indices = lists_of(partial)
    bits, tile = tensors.unique_rows(tiles.reshape(tiles.shape[0], -1))
    tile_of = tensors.zeros(tuple(partial.shape), counts)
    r, h, b, c = tensors.nonzero(partial.swapaxes(0, 2))
    tile_of[b, h, r, c] = tensors.to_int32(tile)
    wide = indices.long() if tensors.is_torch(indices) else indices
    return replace(mask, partial_counts=counts, partial_indices=indices,
                   bit_tile=tensors.take_along_last(tile_of, wide),
                   bits=bits.reshape(-1, *tiles.shape[1:]))


def _evaluate(sizes: tuple[int, int, int, int], full: Any, partial: Any,
              mask_mod: MaskMod) -> BlockMask:
    """Element masks of the partial blocks alone."""
    q_length, kv_length, bq, bkv = sizes
    r, h, b, c = (tensors.to_int32(x)[:, None, None] for x in
                  tensors.nonzero(partial.swapaxes(0, 2)))
    rows = tensors.arange(bq, partial)[None, :, None]
    cols = tensors.arange(bkv, partial)[None, None, :]
    tiles = []
    for first in range(0, r.shape[0], max(1, _CHUNK // (bq * bkv))):
        part = slice(first, first + max(1, _CHUNK // (bq * bkv)))
        q, kv = r[part] * bq + rows, c[part] * bkv + cols
        exists = (q < q_length) & (kv < kv_length)
        # Functions that look indices up must not be asked beyond the end.
        q = q - (q >= q_length) * (q - q_length + 1)
        kv = kv - (kv >= kv_length) * (kv - kv_length + 1)
        tiles.append(tensors.pack_bits(mask_mod(b[part], h[part], q, kv) & exists))
    return _assemble(sizes, full, partial, tensors.concatenate(tiles) if tiles else None)
