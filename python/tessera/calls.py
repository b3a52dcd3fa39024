"""Calls of the public functions, taken apart: what `explain` and `plan` hand to the library."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from tessera import _signatures
from tessera._signatures import Signature, operands_of, weight_of
from tessera.attention import attention
from tessera.dispatch import operations
from tessera.inputs import (
    attention_inputs,
    linear_inputs,
    matmul_inputs,
    sddmm_inputs,
    spgemm_inputs,
)
from tessera.products import bsr_matmul, check_has_bsr, linear, matmul, sddmm, spgemm
from tessera.shapes import outputs_of


class Call(NamedTuple):
    """The inputs of a signature, and the outputs: those that were given, or room for them."""

    signature: Signature
    module: ModuleType  # of the kind of arrays
    inputs: Any
    outputs: tuple[Any, ...]

    def export_arguments(self) -> list[Any]:
        return list(self.module.export_arguments(self.signature, self.inputs, *self.outputs))


def function_named(where: str, operation: Any) -> Callable[..., Any]:
    """The public function, given itself or by its name."""
    for function in _CALLS:
        if operation is function or (isinstance(operation, str)
                                     and operation == function.__name__):
            return function
    known = ", ".join(f"tessera.{f.__name__}" for f in _CALLS)
    raise ValueError(f"{where}: operation: expected one of {known}, got {operation!r}")


def bound(function: Callable[..., Any], arguments: tuple[Any, ...],
          options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    if function is bsr_matmul:
        function = matmul
    given = inspect.signature(function).bind(*arguments, **options)
    given.apply_defaults()
    return given.arguments


def call_of(function: Callable[..., Any], given: dict[str, Any]) -> Call:
    """What the function would do with these arguments."""
    return _CALLS[function](given)


@functools.cache
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _pick(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """function, called with the arguments that it names."""
    return function(**{name: given[name] for name in _names(function)})


def _attention(given: dict[str, Any]) -> Call:
    inputs = _pick(attention_inputs, given)
    module = operations("attention: q", inputs.q)
    outputs = module.attention_outputs(inputs.q, inputs.v, inputs.bhld, given["out"], given["lse"],
                                       given["return_lse"])
    return Call(_signatures.ATTENTION, module, inputs, outputs)


def _matmul(given: dict[str, Any]) -> Call:
    inputs, out = _pick(matmul_inputs, given), given["out"]
    module = operations("matmul: a", inputs.a)
    if out is None:
        out = module.matmul_output(*operands_of(inputs), inputs.group_offsets, inputs.group_inner,
                                   given["out_dtype"])
    return Call(_signatures.MATMUL, module, inputs, (out,))


def _bsr_matmul(given: dict[str, Any]) -> Call:
    check_has_bsr(given["a"], given["b"])
    return _matmul(given)


def _linear(given: dict[str, Any]) -> Call:
    inputs = _pick(linear_inputs, given)
    module = operations("linear: x", inputs.x)
    x, out = module.linear_tensors(inputs.x, outputs_of(weight_of(inputs)), given["out_dtype"])
    return Call(_signatures.LINEAR, module, inputs._replace(x=x), (out,))


def _sddmm(given: dict[str, Any]) -> Call:
    inputs, out = _pick(sddmm_inputs, given), given["out"]
    module = operations("sddmm: a", inputs.a)
    if out is None:
        out = module.sddmm_output(inputs, given["out_dtype"])
    return Call(_signatures.SDDMM, module, inputs, (out,))


def _spgemm(given: dict[str, Any]) -> Call:
    inputs = _pick(spgemm_inputs, given)
    return Call(_signatures.SPGEMM, operations("spgemm: a", inputs.a), inputs, ())


_CALLS: dict[Callable[..., Any], Callable[[dict[str, Any]], Call]] = {
    attention: _attention, matmul: _matmul, bsr_matmul: _bsr_matmul, linear: _linear,
    sddmm: _sddmm, spgemm: _spgemm}
