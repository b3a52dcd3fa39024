"""Readers of matrix files."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from tessera import _ffi


class Coo(NamedTuple):
    """The elements of a matrix in any order: what `BsrMatrix.from_coo` takes before its block, and
    ``scipy.sparse.coo_matrix((coo.value, (coo.row, coo.col)), coo.shape)`` too."""

    row: np.ndarray  # i64
    col: np.ndarray  # i64
    value: np.ndarray  # float32
    shape: tuple[int, int]


def read_matrix_market(path: str | os.PathLike[str]) -> Coo:
    """The elements of a Matrix Market file: coordinates; real, integer or pattern (ones); general,
    symmetric or skew-symmetric, whose other half is filled in. An `OSError` names the line of a
    file that is something else.

    >>> import pathlib, tempfile, tessera
    >>> path = pathlib.Path(tempfile.mkdtemp(), "small.mtx")
    >>> banner = "%%MatrixMarket matrix coordinate real general"
    >>> characters = path.write_text(f"{banner}\\n4 4 2\\n1 1 2\\n4 3 5\\n")
    >>> coo = tessera.read_matrix_market(path)
    >>> coo.row.tolist(), coo.col.tolist(), coo.value.tolist(), coo.shape
    ([0, 3], [0, 2], [2.0, 5.0], (4, 4))
    >>> tessera.BsrMatrix.from_coo(*coo, block=2)
    BsrMatrix(4 x 4, blocks 2 x 2, 2 stored, density 0.5, float32)
    """
    rows, cols, entries, fill = _ffi.read_matrix_market(os.fspath(path))
    coo = Coo(np.empty(entries, np.int64), np.empty(entries, np.int64),
              np.empty(entries, np.float32), (rows, cols))
    fill(*coo[:3])
    return coo
