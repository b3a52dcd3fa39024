"""Block-sparse-row matrices."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera import tensors


def block_shape(where: str, block: int | tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of a block, given as one integer or two."""
    expected = "an integer or two"
    if isinstance(block, (tuple, list)):
        if len(block) != 2:
            raise TypeError(f"{where}: expected {expected}, got {block!r}")
        rows, cols = (tensors.integer(where, size, expected) for size in block)
    else:
        rows = cols = tensors.integer(where, block, expected)
    if rows < 1 or cols < 1:
        raise ValueError(f"{where}: expected positive sizes, got {block!r}")
    return int(rows), int(cols)


_product: Callable[[Any, Any], Any]


def define_product(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Makes a function what ``a @ b`` does where one of the two is a `BsrMatrix`."""
    global _product  # noqa: PLW0603  products, which import this module, set it once
    _product = function
    return function


@dataclass(frozen=True, eq=False)
class BsrMatrix:
    """A block-sparse-row matrix: the layout of `scipy.sparse.bsr_matrix` and `torch.sparse_bsr`.

    ``values[p]`` is the stored block p; those of block row i are ``row_offsets[i]`` to
    ``row_offsets[i + 1]``, at block columns ``col_indices[p]``, sorted. NumPy arrays or PyTorch
    tensors (any device), shared with the caller, never copied. ``T`` is a view for products.

    >>> import numpy as np, tessera
    >>> dense = np.kron(np.eye(3, dtype=np.float32), np.ones((16, 16), np.float32))
    >>> m = tessera.BsrMatrix.from_dense(dense, block=16)
    >>> m
    BsrMatrix(48 x 48, blocks 16 x 16, 3 stored, density 0.333, float32)
    >>> bool((m.to_dense() == dense).all())
    True
    """

    values: Any
    row_offsets: Any
    col_indices: Any
    rows: int  # as stored
    cols: int
    transposed: bool = False

    @property
    def arrays(self) -> tuple[Any, ...]:
        return (self.values, self.row_offsets, self.col_indices, self.rows, self.cols)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.cols, self.rows) if self.transposed else (self.rows, self.cols)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a stored block, as stored."""
        return tuple(self.values.shape[-2:])

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def stored_blocks(self) -> int:
        return self.values.shape[-3]

    @property
    def density(self) -> float:
        """The share of blocks that are stored."""
        r, c = self.block
        blocks = (self.rows // r) * (self.cols // c)
        return self.stored_blocks / blocks if blocks else 0.0

    @property
    def T(self) -> BsrMatrix:  # NumPy's name
        """The transpose as a view: products read it without moving a value."""
        return replace(self, transposed=not self.transposed)

    def with_values(self, values: Any) -> BsrMatrix:
        """The same pattern with other values."""
        return replace(self, values=values)

    def __repr__(self) -> str:
        r, c = self.block
        rows, cols = self.shape
        dtype = str(self.dtype).removeprefix("torch.")
        return (f"BsrMatrix({rows} x {cols}, blocks {r} x {c}, {self.stored_blocks} stored, "
                f"density {self.density:.3g}, {dtype}{', transposed' * self.transposed})")

    def __matmul__(self, other: Any) -> Any:
        return _product(self, other)

    # NumPy must not take `array @ matrix` apart element by element.
    __array_ufunc__ = None

    def __rmatmul__(self, other: Any) -> Any:
        return _product(other, self)

    # ---- From and to ---------------------------------------------------------------------------

    @staticmethod
    def from_dense(dense: Any, block: int | tuple[int, int], *, keep: Any = None) -> BsrMatrix:
        """Stores each block that has a nonzero, or those where the array ``keep`` of booleans or
        integers (one element a block) is set."""
        blocks = _blocks(dense, block)
        if keep is None:
            nonzero = blocks != 0
            keep = nonzero.any(-1).any(-1)
        else:
            tensors.namespace("from_dense: keep", keep)
            tensors.check_set("from_dense: keep", keep, "")
            keep = tensors.to_bool(keep)
            if tuple(keep.shape) != tuple(blocks.shape[:2]):
                raise ValueError(f"from_dense: keep: expected [{blocks.shape[0]}, "
                                 f"{blocks.shape[1]}], got {list(keep.shape)}")
        rows, cols = tensors.nonzero(keep)
        return BsrMatrix(blocks[rows, cols], tensors.offsets_of(keep.sum(1)),
                         tensors.to_int32(cols), dense.shape[0], dense.shape[1])

    @staticmethod
    def prune(dense: Any, block: int | tuple[int, int], density: float) -> BsrMatrix:
        """Keeps the share ``density`` of all blocks that has the largest sums of squares (of equal
        ones those first in row order). NaN elements are refused, as their blocks have no order.

        >>> import numpy as np, tessera
        >>> w = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
        >>> tessera.BsrMatrix.prune(w, block=32, density=0.25).stored_blocks
        4
        """
        if not 0 <= density <= 1:
            raise ValueError(f"prune: density: expected 0 to 1, got {density}")
        blocks = _blocks(dense, block)
        if tensors.is_torch(blocks):
            weight = blocks.detach().double().square().sum((-2, -1)).reshape(-1)
        else:
            weight = np.square(blocks.astype(np.float64)).sum((-2, -1)).reshape(-1)
        (unordered,) = tensors.nonzero(weight != weight)  # noqa: PLR0124  NaN alone differs
        if len(unordered):
            row, col = divmod(int(unordered[0]), blocks.shape[1])
            raise ValueError(f"prune: dense: expected no NaN, got one in block ({row}, {col})")
        chosen = tensors.stable_argsort(weight, descending=True)[: round(density * weight.shape[0])]
        keep = tensors.to_bool(tensors.zeros(tuple(weight.shape), weight))
        keep[chosen] = True
        return BsrMatrix.from_dense(dense, block, keep=keep.reshape(blocks.shape[:2]))

    def to_dense(self) -> Any:
        """Unbatched, or with one pattern for the whole batch."""
        if len(self.row_offsets.shape) != 1:
            raise NotImplementedError("to_dense: expected one pattern for the batch, got "
                                      f"row_offsets {list(self.row_offsets.shape)}")
        r, c = self.block
        batch = tuple(self.values.shape[:-3])
        grid = tensors.zeros((*batch, self.rows // r, self.cols // c, r, c), self.values)
        rows = tensors.row_of_each(self.row_offsets)
        grid[..., rows, self.col_indices, :, :] = self.values
        dense = grid.swapaxes(-3, -2).reshape(*batch, self.rows, self.cols)
        return dense.swapaxes(-1, -2) if self.transposed else dense

    def transpose(self) -> BsrMatrix:
        """The transpose, stored anew (`T` is the view)."""
        if len(self.row_offsets.shape) != 1:
            raise NotImplementedError("transpose: expected one pattern for the batch, got "
                                      f"row_offsets {list(self.row_offsets.shape)}")
        if self.transposed:
            return replace(self, transposed=False)
        order = tensors.stable_argsort(self.col_indices)
        rows = tensors.row_of_each(self.row_offsets)
        counts = tensors.bincount(self.col_indices, self.cols // self.block[1])
        return BsrMatrix(self.values[..., order, :, :].swapaxes(-1, -2),
                         tensors.offsets_of(counts), rows[order], self.cols, self.rows)

    @staticmethod
    def from_coo(row: Any, col: Any, value: Any, shape: tuple[int, int],
                 block: int | tuple[int, int]) -> BsrMatrix:
        """From elements in any order, NumPy arrays, 0 <= row < shape[0] and so on; equal places add
        up. Each block with an element is stored. The shape may be larger than the elements need, to
        hold whole blocks: rows and columns of zeros follow.

        >>> import numpy as np, tessera
        >>> place = np.array([0, 5, 0])
        >>> m = tessera.BsrMatrix.from_coo(place, place, np.ones(3, np.float32), (8, 8), block=4)
        >>> m.stored_blocks, m.to_dense()[0, 0]
        (2, np.float32(2.0))
        """
        r, c = block_shape("from_coo: block", block)
        rows, cols = shape
        if rows % r or cols % c:
            raise ValueError(f"from_coo: shape: expected whole blocks of {r} x {c}, got "
                             f"{rows} x {cols}; rows and columns of zeros may be added")
        for name, x in (("row", row), ("col", col), ("value", value)):
            tensors.is_numpy(f"from_coo: {name}", x)  # refuses masked arrays
        row, col, value = (np.asarray(x) for x in (row, col, value))
        if row.ndim != 1 or row.shape != col.shape or row.shape != value.shape:
            raise ValueError("from_coo: row, col, value: expected one of each an element, got "
                             f"{list(row.shape)}, {list(col.shape)}, {list(value.shape)}")
        for name, places, limit in (("row", row, rows), ("col", col, cols)):
            if places.dtype.kind not in "iu":
                raise TypeError(f"from_coo: {name}: expected integers, got {places.dtype}")
            if places.size and not 0 <= places.min() <= places.max() < limit:
                raise ValueError(f"from_coo: {name}: expected 0 to {limit - 1}, got "
                                 f"{places.min()} to {places.max()}")
        width = cols // c
        blocks, at = np.unique(row.astype(np.int64) // r * width + col // c, return_inverse=True)
        values = np.zeros((len(blocks), r, c), np.promote_types(value.dtype, np.float64))
        np.add.at(values, (at, row % r, col % c), value)
        counts = np.bincount(blocks // max(1, width), minlength=rows // r)
        return BsrMatrix(values.astype(value.dtype), tensors.offsets_of(counts),
                         (blocks % max(1, width)).astype(np.int32), rows, cols)

    @staticmethod
    def from_scipy(matrix: Any, block: int | tuple[int, int] | None = None) -> BsrMatrix:
        """From any `scipy.sparse` matrix; duplicates add up."""
        if block is not None:
            matrix = matrix.tobsr(blocksize=block_shape("from_scipy: block", block))
        else:
            matrix = matrix.tobsr()
        if not (matrix.has_sorted_indices and matrix.has_canonical_format):
            matrix = matrix.copy()
            matrix.sum_duplicates()
        return BsrMatrix(matrix.data, matrix.indptr, matrix.indices, *matrix.shape)

    def to_scipy(self) -> Any:
        from scipy.sparse import bsr_matrix

        if self.transposed:
            return self.T.transpose().to_scipy()
        return bsr_matrix((self.values, self.col_indices, self.row_offsets), shape=self.shape)

    @staticmethod
    def from_torch(matrix: Any) -> BsrMatrix:
        """From a `torch.sparse_bsr` tensor; the three tensors are shared."""
        import torch

        if not isinstance(matrix, torch.Tensor) or matrix.layout != torch.sparse_bsr:
            raise TypeError("from_torch: expected a torch.sparse_bsr tensor; "
                            "dense.to_sparse_bsr(block) makes one")
        return BsrMatrix(matrix.values(), matrix.crow_indices(), matrix.col_indices(),
                         matrix.shape[-2], matrix.shape[-1])

    def to_torch(self) -> Any:
        """A `torch.sparse_bsr` tensor; NumPy arrays are shared where PyTorch knows their dtype."""
        import torch

        if self.transposed:
            return self.T.transpose().to_torch()
        batch = tuple(self.values.shape[:-3])
        as_tensor = torch.as_tensor
        with warnings.catch_warnings():  # PyTorch warns of its own beta state, once a process
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_bsr_tensor(as_tensor(self.row_offsets),
                                           as_tensor(self.col_indices), as_tensor(self.values),
                                           size=(*batch, *self.shape), check_invariants=False)

    def to(self, device: Any) -> BsrMatrix:
        """As PyTorch tensors on a device."""
        import torch

        values, row_offsets, col_indices = (torch.as_tensor(x).to(device) for x in self.arrays[:3])
        return BsrMatrix(values, row_offsets, col_indices, self.rows, self.cols, self.transposed)


def _blocks(dense: Any, block: int | tuple[int, int]) -> Any:
    """A dense matrix as [block rows, block cols, r, c]."""
    tensors.namespace("from_dense: dense", dense)
    r, c = block_shape("from_dense: block", block)
    if len(dense.shape) != 2 or dense.shape[0] % r or dense.shape[1] % c:
        raise ValueError(f"from_dense: dense: expected [rows, cols] in whole blocks of {r} x {c}, "
                         f"got {list(dense.shape)}")
    grid = dense.reshape(dense.shape[0] // r, r, dense.shape[1] // c, c)
    return grid.swapaxes(1, 2)
