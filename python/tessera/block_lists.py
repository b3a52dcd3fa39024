"""Lists of blocks, and grids of one element a block: what `BlockMask` is made from."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera import tensors
from tessera.dispatch import operations


def like_on(device: Any) -> Any:
    """An i32 array where the mask is to be."""
    if device is None:
        return np.zeros(0, np.int32)
    import torch

    return torch.zeros(0, dtype=torch.int32, device=device)


def index_grids(shape: tuple[Any, ...], like: Any) -> list[Any]:
    """For each dimension its indices, shaped to broadcast."""
    return [tensors.arange(n, like).reshape([n if i == at else 1 for i in range(len(shape))])
            for at, n in enumerate(shape)]


def map_of(counts: Any, indices: Any, grid: tuple[int, int]) -> Any:
    """Lists as booleans [batch, heads, rows, cols]."""
    blocks = tensors.to_bool(tensors.zeros((*counts.shape, grid[1]), counts))
    slots = tensors.arange(indices.shape[-1], counts)
    b, h, r, slot = tensors.nonzero(slots < counts[..., None])
    blocks[b, h, r, indices[b, h, r, slot]] = True
    return blocks


def one_per_block(where: str, x: Any, sizes: tuple[int, int, int, int]) -> Any:
    """[batch|1, heads|1, rows, cols] for lengths and blocks of these sizes."""
    q_length, kv_length, bq, bkv = sizes
    tensors.namespace(where, x)
    if len(x.shape) == 2:
        x = x[None, None]
    grid = (-(-q_length // bq), -(-kv_length // bkv))
    if len(x.shape) != 4 or tuple(x.shape[-2:]) != grid:
        raise ValueError(f"{where}: expected [.., {grid[0]}, {grid[1]}], got {list(x.shape)}")
    return x


def lists_of(blocks: Any, capacity: int | None = None) -> tuple[Any, Any]:
    """Booleans [batch, heads, rows, cols] as counts and indices."""
    if capacity is None:
        longest = blocks.sum(-1)
        capacity = max(1, int(longest.max())) if int(np.prod(longest.shape)) else 1
    return operations("blocks", blocks).list_blocks(blocks, capacity)
