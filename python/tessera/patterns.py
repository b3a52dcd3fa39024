"""Seeded block patterns, the same on every machine: booleans ``[rows, cols]``, an element a block,
for `BlockMask.from_blocks` and the ``keep`` of `BsrMatrix.from_dense`."""

from __future__ import annotations

import numpy as np

from tessera import _ffi


def _pattern(kind: str, *parameters: float) -> np.ndarray:
    rows, cols, stored, fill = _ffi.pattern(kind, *parameters)
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


def power_law_graph(rows: int, cols: int, density: float, exponent: float = 1.0,
                    seed: int = 0) -> np.ndarray:
    """Edges leave and reach nodes by Zipf's law; equal ones are one, so the density is the most."""
    return _pattern("power_law_graph", rows, cols, float(density), float(exponent), seed)


def n_of_m(rows: int, cols: int, n: int, m: int, seed: int = 0) -> np.ndarray:
    """Of each m columns in a row, n at random.

    >>> import tessera
    >>> tessera.patterns.n_of_m(4, 16, 2, 8).reshape(4, 2, 8).sum(2).tolist()
    [[2, 2], [2, 2], [2, 2], [2, 2]]
    """
    return _pattern("n_of_m", rows, cols, n, m, seed)


def vertical_slash(rows: int, cols: int, verticals: int, slashes: int, causal: bool = True,
                   seed: int = 0) -> np.ndarray:
    """So many columns, the first among them, and diagonals, the one that ends in the corner
    bottom-right among them; causal ones end there."""
    return _pattern("vertical_slash", rows, cols, verticals, slashes, causal, seed)


def heavy_hitters(rows: int, cols: int, k: int, causal: bool = True, seed: int = 0) -> np.ndarray:
    """The k best columns of each row by synthetic scores: recent ones, such as all rows look at,
    and some at random."""
    return _pattern("heavy_hitters", rows, cols, k, causal, seed)


def sliding_tile(volume: tuple[int, int, int], neighbourhood: tuple[int, int, int],
                 blocks: int = 1) -> np.ndarray:
    """A volume of frames x height x width tiles, each of so many blocks: a tile sees as many around
    it as the neighbourhood has, which is pushed inwards at the edges.

    >>> import tessera
    >>> tessera.patterns.sliding_tile((1, 1, 5), (1, 1, 3)).astype(int).tolist()[0]
    [1, 1, 1, 0, 0]
    """
    return _pattern("sliding_tile", *_three("sliding_tile: volume", volume),
                    *_three("sliding_tile: neighbourhood", neighbourhood), blocks)


def mesh(nodes: tuple[int, int, int], unknowns: int = 1, block: int = 1) -> np.ndarray:
    """Finite elements on a grid of nodes, each of so many unknowns and coupled with its neighbours,
    in the order of Cuthill and McKee, in blocks of block x block unknowns.

    >>> import tessera
    >>> tessera.patterns.mesh((1, 1, 4)).sum(1).tolist()
    [2, 3, 3, 2]
    """
    return _pattern("mesh", *_three("mesh: nodes", nodes), unknowns, block)


def _three(argument: str, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    if len(sizes) != 3:
        raise ValueError(f"{argument}: expected 3 sizes, got {len(sizes)}")
    first, second, third = sizes
    return first, second, third
