"""Whether a product is as close to the truth as float32 sums and its dtype allow.

Each element may differ by its slack (see the oracle) and half an ulp. An infinite result is right
where a number within the slack rounds to infinity. NaN has to match by position."""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory import AROUND, Buffer, Made
from ..numbers import LARGEST, beyond, compared, place_of_largest, share, ulp
from .build import Built
from .oracle import Truth, truth_of


def judge(built: Built, out: Buffer | Made) -> tuple[float, str | None]:
    """The largest ratio of error and budget, and a message if the result is wrong."""
    truth = truth_of(built)
    if wrong := _form_fault(built, out, truth):
        return float("inf"), wrong
    used = _used(built, out.tensor, truth)
    worst = used.max() if used.numel() else used.new_zeros(())
    # Waits for the device only once per problem.
    largest, stray = torch.stack((worst, out.stray().double())).tolist()
    if stray:
        return float("inf"), f"out: {AROUND}"
    return largest, None if largest <= 1 else _describe(built, out, truth, used)


def _form_fault(built: Built, out: Buffer | Made, truth: Truth) -> str | None:
    """What is wrong with a result's lists, shape or dtype."""
    if truth.lists is not None and isinstance(out, Made):
        for name, got, wanted in zip(("row_offsets", "col_indices"), out.lists, truth.lists,
                                     strict=True):
            if not torch.equal(got.long(), wanted):
                return f"out: {name}: expected {_few(wanted)}, got {_few(got)}"
    if out.tensor.shape != truth.value.shape:
        return f"out: expected {list(truth.value.shape)}, got {list(out.tensor.shape)}"
    if out.tensor.dtype != built.out_dtype:
        return f"out: expected {built.out_dtype}, got {out.tensor.dtype}"
    return None


def _few(entries: Tensor) -> str:
    return f"{entries.numel()} entries {entries[:20].tolist()}"


def _used(built: Built, tensor: Tensor, truth: Truth) -> Tensor:
    dtype = built.drawn.out_dtype
    value = truth.value
    reach = (value.abs() + truth.slack).clamp(max=LARGEST[dtype])
    used = share(beyond(dtype, tensor, value), value, truth.slack + 0.5 * ulp(dtype, reach))
    return used.masked_fill_(tensor.isnan() & value.isnan(), 0)


def _describe(built: Built, out: Buffer | Made, truth: Truth, used: Tensor) -> str:
    place = place_of_largest(used)
    names = ("block", "row", "column") if built.drawn.op in ("sddmm", "spgemm") else (
        "row", "column")
    more = [f"index {i}" for i in range(len(place) - len(names))] if len(place) > len(names) + 1 \
        else ["matrix"] * (len(place) - len(names))
    where = ", ".join(f"{name} {at}" for name, at in zip((*more, *names)[-len(place) :], place,
                                                        strict=True))
    numbers = (float(x[place]) for x in (used, out.tensor.double(), truth.value))
    return f"out at {where}: {compared(*numbers)} ({int((used > 1).sum())} wrong)"
