"""Whether a result is as close to the truth as its dtype allows.

Per tile of 64 queries of a head, the largest error may be twice that of the oracle's emulation of
the dtype, plus one ulp of the tile's largest value, plus a slack for exp and sums. A query that
sees no key must give exact zeros. lse has a budget per element: float32 scores and sums, and half
an ulp. NaN and infinities must match by position."""

from __future__ import annotations

import torch
from torch import Tensor

from ..memory import AROUND, Buffer
from ..numbers import compared, finite, place_of_largest, share, ulp
from .build import Built, sequence
from .draw import FP8
from .oracle import TILE_ROWS, Truth, attend, seen

_UNUSED = {"out": 0.0, "lse": -torch.inf}  # packed rows after the last sequence


def judge(built: Built, out: Buffer, lse: Buffer | None) -> tuple[float, str | None]:
    """The largest ratio of error and budget, and a message if the result is wrong."""
    places, worst = [], []
    for b in range(built.drawn.batch):
        for first, last in built.stretches(b):
            places.append((b, first, last))
            worst.append(_shares(built, out, lse, b, first, last)[0])
    faults = {f"{name}: {fault}": found for name, buffer in (("out", out), ("lse", lse))
              if buffer is not None
              for fault, found in ((AROUND, buffer.stray()),
                                   (f"an unused packed row is not {_UNUSED[name]}",
                                    (_rest(built, name, buffer) != _UNUSED[name]).any()))}
    # Waits for the device only once per problem.
    numbers = torch.stack([*worst, *(found.double() for found in faults.values())]).tolist()
    shares = numbers[: len(worst)]
    for fault, found in zip(faults, numbers[len(worst) :], strict=True):
        if found:
            return float("inf"), fault
    worst_share = max(shares, default=0.0)
    if worst_share <= 1:
        return worst_share, None
    return worst_share, _describe(built, out, lse, *places[shares.index(worst_share)])


def _rest(built: Built, name: str, buffer: Buffer) -> Tensor:
    """The rows of packed queries after the last sequence."""
    rows = buffer.tensor if name == "out" else buffer.tensor.transpose(-1, -2)
    return rows[rows.shape[0] if built.q_offsets is None else built.q_offsets[-1] :]


def _shares(built: Built, out: Buffer, lse: Buffer | None, b: int, first: int,
            last: int) -> tuple[Tensor, Tensor, Tensor, Truth]:
    """The largest share, and the shares of out [heads, rows, dim_v] and lse [heads, rows]."""
    truth = truth_of(built, b, first, last)
    of_out = share(_out_rows(built, out, b, first, last), truth.out, _out_budget(built, truth))
    worst = of_out.max()
    of_lse = worst.new_zeros(truth.lse.shape)
    if lse is not None:
        got = _lse_rows(built, lse, b, first, last)
        budget = truth.lse_slack + 0.5 * ulp("f32", finite(truth.lse).abs() + truth.lse_slack)
        of_lse = share(got, truth.lse, budget)
        worst = torch.maximum(worst, of_lse.max())
    return worst, of_out, of_lse, truth


def truth_of(built: Built, b: int, first: int, last: int) -> Truth:
    def numbers(name: str, offsets: list[int] | None, rows: slice = slice(None)) -> Tensor:
        """[heads, rows, dim], times the factors of FP8, with zeros for unused rows, which are
        NaN."""
        values = sequence(getattr(built, name), offsets, b)[rows]
        if built.drawn.dtype == FP8:
            values = values.double()
        if name in built.factors:
            values = values * sequence(built.factors[name], offsets, b)[rows, :, None].double()
        return torch.nan_to_num(values.transpose(0, 1), nan=0.0)

    visible = seen(built.drawn, built.cells, b, first, last, built.q.device)
    q = numbers("q", built.q_offsets, slice(first, last))
    k, v = (numbers(name, built.kv_offsets) for name in "kv")
    sinks = None if built.sinks is None else built.sinks.double()
    of_rows, form = None, built.drawn.factors.get("v")
    # A GPU multiplies P by such factors before it rounds it.
    if built.q.is_cuda and (form in ("64", "128") or (form == "outer" and built.drawn.page)):
        of_rows = sequence(built.factors["v"], built.kv_offsets, b).transpose(0, 1)
    return attend(built.drawn, q, k, v, visible, sinks, of_rows)


def _out_rows(built: Built, out: Buffer, b: int, first: int, last: int) -> Tensor:
    return sequence(out.tensor, built.q_offsets, b)[first:last].transpose(0, 1).double()


def _lse_rows(built: Built, lse: Buffer, b: int, first: int, last: int) -> Tensor:
    if built.q_offsets is None:
        return lse.tensor[b, :, first:last].double()
    begin = built.q_offsets[b]
    return lse.tensor[:, begin + first : begin + last].double()


def _out_budget(built: Built, truth: Truth) -> Tensor:
    return tile_budget(built.drawn.out_dtype, truth.out, truth.yardstick, truth.out_slack,
                       truth.empty)


def tile_budget(dtype: str, value: Tensor, yardstick: Tensor, slack: Tensor,
                empty: Tensor) -> Tensor:
    """[heads, rows, 1] for a value [heads, rows, columns]: what a tile of rows may be off by. The
    other tensors are [heads, rows]."""
    heads, rows, _ = value.shape
    tiles = -(-rows // TILE_ROWS)

    def largest(x: Tensor) -> Tensor:
        """[heads, rows] -> [heads, tiles]"""
        padded = torch.nn.functional.pad(x, (0, tiles * TILE_ROWS - rows))
        return padded.reshape(heads, tiles, TILE_ROWS).amax(-1)

    magnitude = largest(value.abs().amax(-1))
    budget = 2 * largest(yardstick) + ulp(dtype, magnitude) + largest(slack)
    budget = budget.repeat_interleave(TILE_ROWS, 1)[:, :rows]
    return torch.where(empty, 0, budget)[..., None]


def _describe(built: Built, out: Buffer, lse: Buffer | None, b: int, first: int,
              last: int) -> str:
    _, of_out, of_lse, truth = _shares(built, out, lse, b, first, last)
    if lse is not None and of_lse.max() > of_out.max():
        name, shares, wanted = "lse", of_lse, truth.lse
        got = _lse_rows(built, lse, b, first, last)
    else:
        name, shares, wanted = "out", of_out, truth.out
        got = _out_rows(built, out, b, first, last)
    place = place_of_largest(shares)
    head, row, *column = place
    where = f"{name} of sequence {b}, head {head}, query {first + row}"
    where += f", column {column[0]}" if column else ""
    numbers = (float(x[place]) for x in (shares, got, wanted))
    return f"{where}: {compared(*numbers)} ({int((shares > 1).sum())} wrong)"
