"""Seeded block patterns, the same on every machine: booleans ``[rows, cols]``, an element a block,
for `BlockMask.from_blocks` and the ``keep`` of `BsrMatrix.from_dense`."""

from __future__ import annotations

import numpy as np

from tessera import _ffi


def _pattern(kind: str, rows: int, cols: int, *parameters: float) -> np.ndarray:
    stored, fill = _ffi.pattern(kind, rows, cols, *parameters)
    offsets, indices = np.empty(rows + 1, np.int64), np.empty(stored, np.int64)
    fill(offsets, indices)
    blocks = np.zeros((rows, cols), bool)
    blocks[np.repeat(np.arange(rows), np.diff(offsets)), indices] = True
    return blocks


def random(rows: int, cols: int, density: float, seed: int = 0) -> np.ndarray:
    """Every row stores round(density * cols) columns, drawn without repeats.

    >>> import tessera
    >>> tessera.patterns.random(8, 16, 0.25).sum(1).tolist()
    [4, 4, 4, 4, 4, 4, 4, 4]
    """
    return _pattern("random", rows, cols, float(density), seed)


def banded(rows: int, cols: int, half_width: int) -> np.ndarray:
    """At most half_width from the diagonal that joins the corners."""
    return _pattern("banded", rows, cols, half_width)


def bigbird(rows: int, cols: int, half_width: int = 1, globals: int = 1, random: int = 2,
            seed: int = 0) -> np.ndarray:
    """A window, the first rows and columns, and some more in each row."""
    return _pattern("bigbird", rows, cols, half_width, globals, random, seed)


def block_diagonal(rows: int, cols: int, groups: int, zipf: float = 0.0,
                   seed: int = 0) -> np.ndarray:
    """Groups on the diagonal; with zipf > 0 their shares follow a power law."""
    return _pattern("block_diagonal", rows, cols, groups, float(zipf), seed)


def butterfly(rows: int, cols: int, levels: int) -> np.ndarray:
    """The diagonal and the blocks at distance 2^k, k < levels, in index XOR."""
    return _pattern("butterfly", rows, cols, levels)


def power_law(rows: int, cols: int, density: float, exponent: float = 1.0,
              seed: int = 0) -> np.ndarray:
    """Row lengths follow Zipf's law, at that density overall."""
    return _pattern("power_law", rows, cols, float(density), float(exponent), seed)
