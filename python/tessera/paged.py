"""Caches of keys and values in pages: writing to them. `tessera.attention` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera import _ffi
from tessera._signatures import APPEND
from tessera.dispatch import operations
from tessera.narrow import detached


@dataclass
class Cache:
    """The tensors of a paged cache, which are NumPy's or PyTorch's, on any device.

    ``k`` and ``v`` are ``[pages, page, kv_heads, dim]`` in float32, float16, bfloat16 or
    float8_e4m3fn. ``page_table`` is int32 ``[batch, max_pages]``: the pages of each sequence in
    order. ``lengths`` ``[batch]``: the keys that each sequence has. FP8 caches may have ``k_scale``
    and ``v_scale``, float32 ``[1]``, ``[kv_heads]`` or ``[pages, kv_heads]``: what stored values
    are multiplied by.

    >>> import numpy as np, tessera
    >>> rng = np.random.default_rng(0)
    >>> cache = tessera.paged.Cache(*np.zeros((2, 4, 16, 2, 64), np.float32),
    ...                             page_table=np.array([[2, 0], [3, 1]], np.int32),
    ...                             lengths=np.zeros(2, np.int32))
    >>> k, v = rng.standard_normal((2, 2, 20, 2, 64), dtype=np.float32)
    >>> tessera.paged.append(k, v, cache)
    >>> cache.lengths += 20
    >>> q = rng.standard_normal((2, 1, 8, 64), dtype=np.float32)
    >>> out = tessera.attention(q, cache.k, cache.v, **cache.options())
    >>> bool(np.allclose(out, tessera.attention(q, k, v), atol=1e-6))
    True
    """

    k: Any
    v: Any
    page_table: Any
    lengths: Any
    k_scale: Any = None
    v_scale: Any = None

    def options(self) -> dict[str, Any]:
        """What a call of `tessera.attention` needs beside ``k`` and ``v``."""
        return {"page_table": self.page_table, "kv_end": self.lengths, "k_scale": self.k_scale,
                "v_scale": self.v_scale}


def append(k: Any, v: Any, cache: Cache, *, offsets: Any = None, threads: int = 0) -> None:
    """Writes new keys and values behind those of each sequence, in place.

    k and v are ``[batch, length, kv_heads, dim]``, or packed ``[total, kv_heads, dim]`` with
    ``offsets`` ``[batch + 1]``, in float32, float16 or bfloat16; they are converted to the dtype of
    the cache, FP8 after a division by its factors. ``cache.lengths`` stays as it is: add the number
    of keys after the call. On a GPU this is one kernel, which a CUDA graph can capture; there
    positions beyond the page table and pages out of range are skipped, on the CPU they are refused
    before anything is written."""
    module = operations("append: k", k)
    inputs = APPEND.Inputs(detached(k), detached(v), cache.page_table, cache.lengths,
                           offsets=offsets, k_scale=cache.k_scale, v_scale=cache.v_scale,
                           threads=threads)
    _ffi.append(*module.export_arguments(APPEND, inputs, detached(cache.k), detached(cache.v)))
