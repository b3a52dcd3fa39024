"""Keyword-only parameters that cost nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def keyword_only_after_guard(function: Function) -> Function:
    """The function, with all parameters after the one named ``_`` shown as keyword-only and ``_``
    not shown. The function itself refuses a call that gives ``_``.

    CPython looks up the default of each keyword-only parameter in a dict at each call, a quarter of
    a microsecond for the 22 of attention, and copies the defaults of positional ones."""
    shown: list[inspect.Parameter] = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.name == "_":
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            shown.append(parameter.replace(kind=kind))
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function
