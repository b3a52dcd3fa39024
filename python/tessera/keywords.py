"""Keyword-only parameters that cost nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Shown = TypeVar("Shown", bound=Callable[..., Any])


def shown_as(shown: Shown) -> Callable[[Callable[..., Any]], Shown]:
    """Gives a function the signature of ``shown``, for type checkers and for `inspect`. The
    function has the same parameters, but its keyword-only ones are positional and follow a guard
    named ``_``; the function itself refuses a call that passes ``_``.

    CPython looks up the default of each keyword-only parameter in a dict at each call, a quarter of
    a microsecond for the 22 of attention, and copies the defaults of positional ones."""
    signature = inspect.signature(shown)

    def decorate(function: Any) -> Shown:
        given = inspect.signature(function).parameters.values()
        if [(x.name, x.default, x.annotation) for x in given if x.name != "_"] != [
                (x.name, x.default, x.annotation) for x in signature.parameters.values()]:
            raise TypeError(f"{function.__name__}: its parameters are not those of the "
                            "signature it is shown with")
        function.__signature__ = signature
        return function

    return decorate
