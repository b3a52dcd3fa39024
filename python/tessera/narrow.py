"""Tensors in FP8 with factors."""

from __future__ import annotations

from typing import Any

from tessera import _ffi
from tessera._signatures import QUANTIZE
from tessera.dispatch import operations
from tessera.tensors import is_torch

_PER = ("tensor", "head", "page")


def quantize(x: Any, *, per: str = "tensor", scale: Any = None, out: Any = None,
             threads: int = 0) -> tuple[Any, Any]:
    """x in float8_e4m3fn and its factors: ``(out, scale)``, with x close to ``out * scale``.

    x is ``[.., heads, dim]`` of rank 3 or 4. ``per="tensor"`` computes one factor, ``"head"`` one
    for each head, ``"page"`` one for each head of each page of ``[pages, page, heads, dim]`` (or of
    each sequence of ``[batch, length, heads, dim]``): the largest finite magnitude over 448. A
    ``scale`` is taken as it is: float32 ``[1]``, ``[heads]`` or ``[pages, heads]``. Values beyond
    448 times their factor saturate; NaN stays NaN. No gradient is recorded.

    >>> import numpy as np, tessera
    >>> rng = np.random.default_rng(0)
    >>> q = rng.standard_normal((1, 128, 8, 64), dtype=np.float32)
    >>> k, v = rng.standard_normal((2, 1, 128, 2, 64), dtype=np.float32)
    >>> (k8, k_scale), (v8, v_scale) = (tessera.quantize(x, per="head") for x in (k, v))
    >>> out = tessera.attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale)
    >>> bool(np.abs(out - tessera.attention(q, k, v)).max() < 0.05)
    True
    """
    if per not in _PER:
        raise ValueError(f"quantize: per: expected one of {', '.join(_PER)}, got {per!r}")
    module = operations("quantize: x", x)
    shape = tuple(x.shape)
    if len(shape) not in (3, 4) or (per == "page" and scale is None and len(shape) != 4):
        wanted = "[pages, page, heads, dim]" if per == "page" else "[.., heads, dim] of rank 3 or 4"
        raise ValueError(f"quantize: x: expected {wanted}, got {list(shape)}")
    x = detached(x)
    narrow, wide = _dtypes(x)
    if out is None:
        out = module.new_result(x, shape, narrow)
    given = scale is not None
    if not given:
        factors = {"tensor": (1,), "head": shape[-2:-1], "page": (shape[0], shape[-2])}[per]
        scale = module.new_result(x, factors, wide)
    inputs = QUANTIZE.Inputs(x, given=given, threads=threads)
    _ffi.quantize(*module.export_arguments(QUANTIZE, inputs, out, scale))
    return out, scale


def detached(x: Any) -> Any:
    """Exports take no tensor that requires a gradient."""
    return x.detach() if is_torch(x) else x


def _dtypes(x: Any) -> tuple[Any, Any]:
    if is_torch(x):
        import torch

        return torch.float8_e4m3fn, torch.float32
    import ml_dtypes
    import numpy as np

    return ml_dtypes.float8_e4m3fn, np.float32
