"""What would run, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tessera import _ffi
from tessera.calls import bound, call_of, function_named
from tessera.tensors import is_torch


class Explanation(dict[str, Any]):
    """The answer as a dict (``supported``, ``plan``, ``candidates`` with every reason,
    ``useful_flops``, ``bytes``); printed, the same as text."""

    text: str

    def __str__(self) -> str:
        return self.text


def explain(operation: Callable[..., Any] | str, /, *arguments: Any, device: str | None = None,
            expand_bytes: int = 0, **options: Any) -> Explanation:
    """Which kernel a call would use, and why each other one would not; nothing runs.

    ``operation`` is `attention`, `matmul`, `bsr_matmul`, `linear`, `sddmm` or `spgemm`, or its
    name; the rest is what one would call it with. ``device`` asks for a device that need not be
    here, such as "h100", "a100", "l4" or "cpu". With it, shapes, dtypes and strides alone
    count: tensors may be on any device, PyTorch's meta device included. ``expand_bytes`` is that of
    `plan`, and explains such a plan.

    >>> import numpy as np, tessera
    >>> q = np.empty((1, 4096, 8, 128), np.float16)
    >>> answer = tessera.explain(tessera.attention, q, q, q, causal=True)
    >>> answer["plan"]["kernel_name"]
    'cpu_attention_q128_k192'
    >>> print(answer)  # doctest: +ELLIPSIS
    problem   attention f16 B1 H8/8 Q4096 KV4096 D128/128 ...
    """
    function = function_named("explain", operation)
    call = call_of(function, bound(function, arguments, options))
    given = [_without_memory(x, device) for x in call.export_arguments()]
    if isinstance(device, str):
        device = device.lower()
    name = call.signature.name
    explanation = Explanation(json.loads(_ffi.explain(name, device, True, expand_bytes, *given)))
    explanation.text = _ffi.explain(name, device, False, expand_bytes, *given)
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
