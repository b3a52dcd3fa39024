"""Tensors in FP8 with factors."""

from __future__ import annotations

from typing import Any

from tessera import _ffi
from tessera._signatures import QUANTIZE
from tessera.bsr import BsrMatrix
from tessera.dispatch import operations
from tessera.tensors import is_torch

_BLOCK = 128
_NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def quantize(x: Any, *, per: str | int = "tensor", scale: Any = None, dtype: str = "e4m3",
             out: Any = None, threads: int = 0) -> tuple[Any, Any]:
    """x in FP8 and its factors: ``(out, scale)``, with x close to ``out * scale``.

    ``per`` says which elements share a factor, which is their largest finite magnitude over the
    largest value of the ``dtype`` ("e4m3": 448, "e5m2": 57344):

    - ``"tensor"``: all of them;
    - of x ``[.., rows, cols]``: ``"matrix"``, ``"row"``, ``"column"``; ``"1x128"`` and ``"128x1"``,
      128 elements of a row or a column; ``"128x128"``. A `BsrMatrix` has ``"block"``, a factor for
      each stored block, and ``"tensor"``;
    - of x ``[.., length, heads, dim]``: ``"head"``, for all; ``"page"``, each head of each page of
      ``[pages, page, heads, dim]`` (or of each sequence of ``[batch, length, heads, dim]``); 64 or
      128, that many rows of a head.

    A ``scale`` is taken as it is, float32 of a shape that ``per`` makes. Values beyond the largest
    one saturate; NaN stays NaN; a factor of 0 makes 0. No gradient is recorded.

    >>> import numpy as np, tessera
    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.standard_normal((2, 256, 256), dtype=np.float32)
    >>> (x8, x_scale), (w8, w_scale) = tessera.quantize(x, per="1x128"), tessera.quantize(w)
    >>> x_scale.shape, w_scale.shape
    ((256, 2), (1,))
    >>> out = tessera.linear(x8, w8, x_scale=x_scale, weight_scale=w_scale, out_dtype=np.float32)
    >>> bool(np.abs(out - x @ w.T).max() < 3)
    True
    """
    if isinstance(x, BsrMatrix):
        return _quantize_blocks(x, per, scale, dtype, threads)
    module = operations("quantize: x", x)
    x = detached(x)
    narrow, wide = _dtypes(x, dtype)
    shape = tuple(x.shape)
    if scale is None:
        scale = _factors(module, x, per, wide)
        given = False
    else:
        given = True
    if out is None:
        out = module.new_result(x, shape, narrow)
    inputs = QUANTIZE.Inputs(x, given=given, threads=threads)
    _ffi.quantize(*module.export_arguments(QUANTIZE, inputs, out, scale))
    return out, scale


def _quantize_blocks(x: BsrMatrix, per: str | int, scale: Any, dtype: str,
                     threads: int) -> tuple[BsrMatrix, Any]:
    if scale is None and per not in ("tensor", "block"):
        raise ValueError(f"quantize: per: expected tensor or block of a BsrMatrix, got {per!r}")
    by_block = per == "block" if scale is None else len(scale.shape) != 1 or scale.shape[0] != 1
    if scale is not None and by_block:  # a factor for each matrix of x.values
        scale = scale.reshape(*scale.shape, 1, 1)
    values, scale = quantize(x.values, per="matrix" if by_block else "tensor", scale=scale,
                             dtype=dtype, threads=threads)
    return x.with_values(values), scale.reshape(scale.shape[:-2]) if by_block else scale


def _factors(module: Any, x: Any, per: str | int, dtype: Any) -> Any:
    """Room for the factors of x. Those of 128 elements lie as cuBLASLt reads them."""
    *lead, rows, cols = (1, 1, *x.shape) if len(x.shape) < 2 else x.shape
    row_blocks, col_blocks = -(-rows // _BLOCK), -(-cols // _BLOCK)
    of_matrix: dict[str | int, tuple[int, int]] = {
        "matrix": (1, 1), "row": (rows, 1), "column": (1, cols), "1x128": (rows, col_blocks),
        "128x1": (row_blocks, cols), "128x128": (row_blocks, col_blocks)}
    if per in of_matrix:
        if not 2 <= len(x.shape) <= 4:
            raise ValueError("quantize: x: expected [.., rows, cols] of rank 2 to 4, got "
                             f"{list(x.shape)}")
        height, width = of_matrix[per]
        if per == "1x128":  # the factors of 128 columns lie side by side
            return module.new_result(x, (*lead, width, height), dtype).swapaxes(-1, -2)
        if per == "128x128":  # lines at multiples of 16 bytes
            room = module.new_result(x, (*lead, height, -(-width // 4) * 4), dtype)
            return room[..., :width]
        return module.new_result(x, (*lead, height, width), dtype)
    if per == "tensor":
        return module.new_result(x, (1,), dtype)
    if per not in ("head", "page", 64, 128):
        raise ValueError("quantize: per: expected tensor, matrix, row, column, 1x128, 128x1, "
                         f"128x128, head, page, 64 or 128, got {per!r}")
    if len(x.shape) not in (3, 4) or (per == "page" and len(x.shape) != 4):
        wanted = "[pages, page, heads, dim]" if per == "page" else "[.., heads, dim] of rank 3 or 4"
        raise ValueError(f"quantize: x: expected {wanted}, got {list(x.shape)}")
    *outer, length, heads, _ = x.shape
    if per == "head":
        return module.new_result(x, (heads,), dtype)
    if per == "page":
        return module.new_result(x, (*outer, heads), dtype)
    return module.new_result(x, (*outer, heads, -(-length // int(per))), dtype)


def detached(x: Any) -> Any:
    """Exports take no tensor that requires a gradient."""
    return x.detach() if is_torch(x) else x


def _dtypes(x: Any, name: str) -> tuple[Any, Any]:
    """The FP8 type of that name, and float32."""
    if name not in _NAMES:
        raise ValueError(f"quantize: dtype: expected e4m3 or e5m2, got {name!r}")
    if is_torch(x):
        import torch

        return getattr(torch, _NAMES[name]), torch.float32
    import ml_dtypes
    import numpy as np

    return getattr(ml_dtypes, _NAMES[name]), np.float32
