"""What would run, and why."""

from __future__ import annotations

import inspect
import json
from typing import Any, Callable

from tessera import _ffi, attention as attention_module, products
from tessera.tensors import is_torch


class Explanation(dict):
    """The answer as a dict (``supported``, ``plan``, ``candidates`` with every reason,
    ``useful_flops``, ``bytes``); printed, the same as text."""

    text: str

    def __str__(self) -> str:
        return self.text


def explain(operation: Callable, /, *arguments: Any, device: str | None = None,
            **options: Any) -> Explanation:
    """Which kernel a call would use, and why each other one would not; nothing runs.

    ``operation`` is `attention`, `matmul`, `bsr_matmul`, `linear` or `sddmm`, the rest what one would
    call it with. ``device`` asks for a device that need not be here: "h100", "h200", "a100", "l4",
    "b200", "cpu".

    >>> import numpy as np, tessera
    >>> q = np.empty((1, 4096, 8, 128), np.float16)
    >>> answer = tessera.explain(tessera.attention, q, q, q, causal=True)
    >>> answer["plan"]["kernel_name"]
    'cpu_attention'
    >>> print(answer)  # doctest: +ELLIPSIS
    problem   attention f16 B1 H8/8 Q4096 KV4096 D128/128 ...
    """
    name = getattr(operation, "__name__", str(operation))
    with _Recorder() as recorder:
        try:
            operation(*arguments, **options)
        except _Recorded as call:
            op, recorded = call.args
        else:
            raise ValueError(f"explain: operation: {name} cannot be explained")
    text = _ffi.explain(op, device, False, *recorded)
    explanation = Explanation(json.loads(_ffi.explain(op, device, True, *recorded)))
    explanation.text = text
    return explanation
