"""What would run, and why."""

from __future__ import annotations

import inspect
import json
from typing import Any, Callable

from tessera import _ffi
from tessera.attention import attention, attention_options
from tessera.products import (bsr_matmul, linear, matmul, matmul_options, sddmm, sddmm_options,
                              spgemm, spgemm_options)
from tessera.tensors import is_torch, operations


class Explanation(dict):
    """The answer as a dict (``supported``, ``plan``, ``candidates`` with every reason,
    ``useful_flops``, ``bytes``); printed, the same as text."""

    text: str

    def __str__(self) -> str:
        return self.text


def explain(operation: Callable, /, *arguments: Any, device: str | None = None,
            **options: Any) -> Explanation:
    """Which kernel a call would use, and why each other one would not; nothing runs.

    ``operation`` is `attention`, `matmul`, `bsr_matmul`, `linear`, `sddmm` or `spgemm`, the rest
    what one would call it with. ``device`` asks for a device that need not be here: "h100",
    "h200", "a100", "l4", "b200", "cpu". With it, shapes, dtypes and strides alone count: tensors may
    be on any device, PyTorch's meta device included.

    >>> import numpy as np, tessera
    >>> q = np.empty((1, 4096, 8, 128), np.float16)
    >>> answer = tessera.explain(tessera.attention, q, q, q, causal=True)
    >>> answer["plan"]["kernel_name"]
    'cpu_attention_q128_k192'
    >>> print(answer)  # doctest: +ELLIPSIS
    problem   attention f16 B1 H8/8 Q4096 KV4096 D128/128 ...
    """
    try:
        arguments_of = _ARGUMENTS[operation]
    except (KeyError, TypeError):
        known = ", ".join(f"tessera.{f.__name__}" for f in _ARGUMENTS)
        raise ValueError(f"explain: operation: expected one of {known}, got "
                         f"{operation!r}") from None
    op, call = arguments_of(_bind(operation, *arguments, **options))
    call = tuple(_without_memory(x, device) for x in call)
    if isinstance(device, str):
        device = device.lower()
    explanation = Explanation(json.loads(_ffi.explain(op, device, True, *call)))
    explanation.text = _ffi.explain(op, device, False, *call)
    return explanation


def _without_memory(x: Any, device: str | None) -> Any:
    """A tensor on the meta device as one that the exports take: of its shape, without memory."""
    if not is_torch(x) or not x.is_meta:
        return x
    if device is None:
        raise ValueError("explain: device: expected the device to plan for, as tensors on the meta "
                         "device are given")
    return _ffi.host_view(0, _ffi.dtype(str(x.dtype).removeprefix("torch.")), _ffi.Shape(x.shape),
                          _ffi.Shape(x.stride()))


def _bind(operation: Callable, *arguments: Any, **options: Any) -> dict[str, Any]:
    """The call's arguments by name, defaults included."""
    bound = inspect.signature(operation).bind(*arguments, **options)
    bound.apply_defaults()
    return bound.arguments


def _pick(function: Callable, given: dict[str, Any]) -> Any:
    """function, called with the arguments that it names."""
    return function(**{name: given[name] for name in inspect.signature(function).parameters})


def _attention(given: dict[str, Any]) -> tuple[str, tuple]:
    options = _pick(attention_options, given)
    q, k, v, out, lse = (given[name] for name in ("q", "k", "v", "out", "lse"))
    *_, call = operations("attention: q", q).attention_arguments(q, k, v, out, lse,
                                                                given["return_lse"], options)
    return "attention", call


def _matmul(given: dict[str, Any]) -> tuple[str, tuple]:
    first, second, options = _pick(matmul_options, given)
    _, call = operations("matmul: a", first[0]).matmul_arguments(
        first, second, given["out"], given["out_dtype"], options)
    return "matmul", call


def _bsr_matmul(given: dict[str, Any]) -> tuple[str, tuple]:
    return _matmul(_bind(matmul, given["a"], given["b"], **given.get("options", {})))


def _linear(given: dict[str, Any]) -> tuple[str, tuple]:
    x = given.pop("x")
    weight = given.pop("weight")
    return _matmul(_bind(matmul, x.reshape(-1, x.shape[-1]), weight, transpose_b=True, **given))


def _sddmm(given: dict[str, Any]) -> tuple[str, tuple]:
    first, second, options = _pick(sddmm_options, given)
    _, call = operations("sddmm: a", first[0]).sddmm_arguments(
        first, second, given["pattern"].arrays, given["out"], given["out_dtype"], options)
    return "sddmm", call


def _spgemm(given: dict[str, Any]) -> tuple[str, tuple]:
    first, second, options = _pick(spgemm_options, given)
    return "spgemm", operations("spgemm: a", first[0]).spgemm_arguments(first, second, options)


_ARGUMENTS = {attention: _attention, matmul: _matmul, bsr_matmul: _bsr_matmul, linear: _linear,
              sddmm: _sddmm, spgemm: _spgemm}
