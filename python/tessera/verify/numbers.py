"""What the verifier knows of number formats, and how it compares numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "e4m3": torch.float8_e4m3fn}
FP8_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # of operands of products
BITS = {"f32": 24, "f16": 11, "bf16": 8, "e4m3": 4}  # of the significand
SMALLEST_EXPONENT = {"f32": -126, "f16": -14, "bf16": -126, "e4m3": -6}
LARGEST = {name: torch.finfo(dtype).max for name, dtype in DTYPES.items()}
UNIT = 2.0**-24  # roundoff of float32, in which kernels compute sums
FP8_UNIT = 2.0**-10  # of sums of FP8 in tensor cores, which keep few bits below the largest product


def finite(x: Tensor) -> Tensor:
    """The values, with zeros instead of NaN and infinities."""
    return x.nan_to_num(0.0, 0.0, 0.0)


def ulp(dtype: str, value: Tensor) -> Tensor:
    """The distance between adjacent values of a dtype around a float64 value."""
    exponent = torch.frexp(value.abs().clamp(min=2.0 ** SMALLEST_EXPONENT[dtype]))[1]
    return torch.exp2((exponent - BITS[dtype]).double())


def beyond(dtype: str, got: Tensor, truth: Tensor) -> Tensor:
    """The numbers in float64, where those that overflowed stand for any number that does: the
    truth, if the dtype has no number of its size and sign, else the smallest that is too large."""
    got = got.double()
    next_after = 2.0 ** math.frexp(LARGEST[dtype])[1]
    nearest = torch.where(got.sign() == truth.sign(), truth.abs(), 0).clamp(min=next_after)
    return torch.where(got.isinf() & truth.isfinite(), got.sign() * nearest, got)


def share(got: Tensor, truth: Tensor, budget: Tensor) -> Tensor:
    """Error over budget; infinite if only one side is NaN or infinite."""
    used = (got - truth).abs_().div_(budget).nan_to_num_(torch.inf, torch.inf)
    return used.masked_fill_(got == truth, 0)


def place_of_largest(x: Tensor) -> tuple[int, ...]:
    return tuple(int(at) for at in torch.unravel_index(x.argmax(), x.shape))


def compared(used: float, got: float, truth: float) -> str:
    """A wrong number in words."""
    over = (f"error {abs(got - truth):.3g}, {used:.3g} times its budget"
            if used < float("inf") else "no error is allowed here, or one side is not finite")
    return f"got {got:.9g}, expected {truth:.9g}: {over}"
