"""Whether gradients of attention are as close to float64 as their dtype allows.

The budget is that of the forward pass's result, for each tile of 64 rows of a gradient: twice the
largest error of an emulation (float32 scores, P and gradients of scores rounded to the inputs'
dtype, from the rounded result and LSE that kernels read), one ulp of the tile's largest value, and
a slack for what the emulation may not show: errors of exp and of scores in each summand, and one
summand that rounds the other way. Rows that no query or key sees must be exact zeros."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory import AROUND, Buffer
from ..numbers import BITS, DTYPES, UNIT, beyond, compared, finite, place_of_largest, share, ulp
from .backward import GRADIENTS, BuiltBackward, lse_rows
from .build import sequence
from .judge import tile_budget, truth_of
from .oracle import _grouped, seen

FLUSHED = 2.0**-125  # P and dS may be rounded to 0 below 2^-126


@dataclass
class Gradient:
    """One gradient of a sequence. `slack` has the sums of errors, `largest` single ones."""

    value: Tensor  # f64 [heads, rows, columns]
    emulated: Tensor  # f32
    slack: Tensor  # [heads, rows, columns]
    largest: Tensor  # [heads, rows]
    empty: Tensor  # bool [heads, rows]

    def budget(self, dtype: str) -> Tensor:
        rounded = beyond(dtype, self.emulated.to(DTYPES[dtype]), self.value)
        off = (rounded - self.value).abs().amax(-1)
        slack = self.slack.amax(-1) + self.largest
        return tile_budget(dtype, self.value, off, slack.double(), self.empty)


def judge(built: BuiltBackward, *outputs: Buffer | None) -> tuple[float, str | None]:
    """The largest ratio of error and budget, and a message if the result is wrong."""
    by_name = dict(zip((*GRADIENTS, "dsinks"), outputs, strict=True))
    places, worst = [], []
    sinks = _Sinks.of(built)
    for b in range(built.drawn.forward.batch):
        found = _gradients(built, b, sinks)
        for name, buffer in by_name.items():
            if name in found and buffer is not None and found[name].value.numel():
                places.append((name, b))
                worst.append(_share(built, buffer, found[name], name, b).max())
    dsinks = by_name["dsinks"]
    if dsinks is not None and sinks is not None and dsinks.tensor.numel():
        places.append(("dsinks", 0))
        worst.append(sinks.share(dsinks.tensor).max())
    faults = {f"{name}: {fault}": wrong for name, buffer in by_name.items() if buffer is not None
              for fault, wrong in ((AROUND, buffer.stray()),
                                   ("an unused packed row is not 0",
                                    (_rest(built, name, buffer) != 0).any()))}
    numbers = torch.stack([*worst, *(wrong.double() for wrong in faults.values())]).tolist()
    shares = numbers[: len(worst)]
    for fault, wrong in zip(faults, numbers[len(worst) :], strict=True):
        if wrong:
            return float("inf"), fault
    worst_share = max(shares, default=0.0)
    if worst_share <= 1:
        return worst_share, None
    name, b = places[shares.index(worst_share)]
    buffer = by_name[name]
    assert buffer is not None
    return worst_share, _describe(built, buffer, name, b)


def _offsets(built: BuiltBackward, name: str) -> list[int] | None:
    return built.forward.q_offsets if name == "dq" else built.forward.kv_offsets


def _rest(built: BuiltBackward, name: str, buffer: Buffer) -> Tensor:
    """The rows of packed tensors after the last sequence."""
    offsets = None if name == "dsinks" else _offsets(built, name)
    return buffer.tensor[buffer.tensor.shape[0] if offsets is None else offsets[-1] :]


def _share(built: BuiltBackward, buffer: Buffer, gradient: Gradient, name: str, b: int) -> Tensor:
    dtype = built.drawn.dtype
    got = sequence(buffer.tensor, _offsets(built, name), b).transpose(0, 1)
    return share(beyond(dtype, got, gradient.value), gradient.value, gradient.budget(dtype))


def _describe(built: BuiltBackward, buffer: Buffer, name: str, b: int) -> str:
    sinks = _Sinks.of(built)
    if name == "dsinks":
        for batch in range(built.drawn.forward.batch):
            _gradients(built, batch, sinks)
        assert sinks is not None
        shares, wanted, got = sinks.share(buffer.tensor), sinks.value, buffer.tensor.double()
        (head,) = place = place_of_largest(shares)
        where = f"dsinks of head {head}"
    else:
        gradient = _gradients(built, b, sinks)[name]
        shares, wanted = _share(built, buffer, gradient, name, b), gradient.value
        got = sequence(buffer.tensor, _offsets(built, name), b).transpose(0, 1).double()
        head, row, column = place = place_of_largest(shares)
        rows = "query" if name == "dq" else "key"
        where = f"{name} of sequence {b}, head {head}, {rows} {row}, column {column}"
    numbers = (float(x[place]) for x in (shares, got, wanted))
    return f"{where}: {compared(*numbers)} ({int((shares > 1).sum())} wrong)"


class _Sinks:
    """Sums of dsinks over all queries: float64, emulated, and their slack."""

    def __init__(self, sinks: Tensor) -> None:
        self.sinks = sinks.double()
        self.value, self.slack = torch.zeros_like(self.sinks), torch.zeros_like(self.sinks)
        self.emulated = torch.zeros_like(self.sinks, dtype=torch.float32)

    @staticmethod
    def of(built: BuiltBackward) -> _Sinks | None:
        sinks = built.forward.sinks
        return None if sinks is None else _Sinks(sinks)

    def add(self, exact: _Pass, emulated: _Pass, error: Tensor, size: Tensor) -> None:
        p = (self.sinks[:, None] - exact.lse).exp()
        self.value -= (p * exact.delta).sum(-1)
        self.slack += (error * p * size).sum(-1)
        self.emulated -= ((self.sinks.float()[:, None] - emulated.lse).exp()
                          * emulated.delta).sum(-1)

    def share(self, got: Tensor) -> Tensor:
        off = (self.emulated.double() - self.value).abs().amax()
        magnitude = self.value.abs().amax()
        budget = 2 * off + ulp("f32", magnitude) + self.slack.amax()
        return share(got.double(), self.value, budget.expand(got.shape))


@dataclass
class _Pass:
    """P and the gradients of scores [heads, rows, keys], in float64 or emulated."""

    p: Tensor
    ds: Tensor
    slope: Tensor | float
    delta: Tensor  # [heads, rows]
    lse: Tensor

    @classmethod
    def of(cls, rows: _Rows, out: Tensor, lse: Tensor, dtype: torch.dtype,
           rounded_to: torch.dtype | None) -> _Pass:
        q, k, v, dout, dlse = (x.to(dtype) for x in (rows.q, rows.k, rows.v, rows.dout, rows.dlse))
        scores = _grouped(q, k.mT).mul_(rows.scale)
        slope: Tensor | float = 1.0
        if rows.softcap:
            scores = scores.div_(rows.softcap).tanh_()
            slope = 1 - scores * scores
            scores.mul_(rows.softcap)
        p = scores.sub_(lse[..., None]).exp_().masked_fill_(rows.hidden, 0)
        delta = (dout * out).sum(-1) - dlse
        ds = _grouped(dout, v.mT).sub_(delta[..., None]).mul_(p).mul_(slope)
        if rounded_to is not None:
            p, ds = (x.to(rounded_to).to(dtype) for x in (p, ds))
        return cls(p, ds, slope, delta, lse)


@dataclass
class _Rows:
    """A stretch of queries of a sequence and its keys, in float64; unused rows are zeros."""

    q: Tensor  # [heads, rows, dim]
    k: Tensor  # [kv_heads, keys, dim]
    v: Tensor
    dout: Tensor
    dlse: Tensor  # [heads, rows]
    hidden: Tensor  # bool [heads|1, rows, keys]
    scale: float
    softcap: float


def _stretches(built: BuiltBackward, b: int) -> Iterator[tuple[_Rows, _Pass, _Pass, int, int]]:
    """Each stretch of queries, in float64 and emulated."""
    f, d = built.forward, built.drawn.forward

    def numbers(tensor: Tensor) -> Tensor:
        return torch.nan_to_num(tensor.transpose(0, 1).double(), nan=0.0)

    k, v = (numbers(sequence(x, f.kv_offsets, b)) for x in (f.k, f.v))
    if k.shape[1] == 0:  # one key that no query sees
        k, v = (x.new_zeros(x.shape[0], 1, x.shape[2]) for x in (k, v))
    scale = d.dim**-0.5 if d.scale is None else d.scale
    narrow = None if d.dtype == "f32" else DTYPES[d.dtype]
    for first, last in f.stretches(b):
        visible = seen(d, f.cells, b, first, last, f.q.device)
        if visible.shape[-1] == 0:
            visible = visible.new_zeros(*visible.shape[:2], 1)
        q, dout, out = (numbers(sequence(x, f.q_offsets, b)[first:last])
                        for x in (f.q, built.dout, built.out.tensor))
        dlse = (dout.new_zeros(dout.shape[:2]) if built.dlse is None
                else lse_rows(f, built.dlse, b)[:, first:last].double())
        rows = _Rows(q, k, v, dout, dlse, ~visible, scale, d.softcap)
        truth = truth_of(f, b, first, last)
        exact = _Pass.of(rows, truth.out, truth.lse, torch.float64, None)
        lse = lse_rows(f, built.lse.tensor, b)[:, first:last]
        yield rows, exact, _Pass.of(rows, out.float(), lse, torch.float32, narrow), first, last


def _gradients(built: BuiltBackward, b: int, sinks: _Sinks | None) -> dict[str, Gradient]:
    """dq, dk and dv of a sequence; adds its queries to `sinks`."""
    f, d = built.forward, built.drawn.forward
    queries, keys = d.q_lengths[b], max(1, d.kv_lengths[b])
    device = f.q.device

    def zeros(heads: int, rows: int, columns: int) -> Gradient:
        shape = (heads, rows, columns)
        return Gradient(torch.zeros(shape, dtype=torch.float64, device=device),
                        torch.zeros(shape, device=device), torch.zeros(shape, device=device),
                        torch.zeros(shape[:2], device=device),
                        torch.ones(shape[:2], dtype=torch.bool, device=device))

    dq, dk, dv = (zeros(d.heads, queries, d.dim), zeros(d.kv_heads, keys, d.dim),
                  zeros(d.kv_heads, keys, d.dim_v))
    unit, out_unit = 2.0 ** -BITS[d.dtype], 2.0 ** -BITS[d.out_dtype]

    def by_keys(left: Tensor, right: Tensor) -> Tensor:
        """[heads, rows, keys] and [heads, rows, columns] to [kv_heads, keys, columns]."""
        grouped = (x.reshape(d.kv_heads, -1, x.shape[-1]) for x in (left, right))
        left, right = grouped
        return left.mT @ right

    def largest_of_keys(x: Tensor) -> Tensor:
        """[heads, rows, keys] to [kv_heads, keys]."""
        return x.reshape(d.kv_heads, -1, x.shape[-1]).amax(1)

    for rows, exact, emulated, first, last in _stretches(built, b):
        scale = rows.scale
        dq.value[:, first:last] = scale * _grouped(exact.ds, rows.k)
        dq.emulated[:, first:last] = scale * _grouped(emulated.ds, rows.k.float())
        for sums, one in (("value", exact), ("emulated", emulated)):
            q, dout = rows.q.to(one.p.dtype), rows.dout.to(one.p.dtype)
            getattr(dk, sums).add_(by_keys(one.ds, q), alpha=scale)
            getattr(dv, sums).add_(by_keys(one.p, dout))
        q, k, v, dout = (x.float().abs() for x in (rows.q, rows.k, rows.v, rows.dout))
        p, terms = exact.p.float(), (rows.dout * _rounded_out(built, b, first, last)).float()
        # As in the forward pass: an exp and scores with errors of a few ulps.
        sizes = _grouped(q, k.mT).masked_fill_(rows.hidden, 0).amax(-1).mul_(abs(scale))
        error = UNIT * (16 + 4 * sizes + 2 * finite(exact.lse).abs().float())
        delta_size = terms.abs().sum(-1) + rows.dlse.abs().float()
        # All keys of a query share the rounding of its delta.
        of_delta = (out_unit * terms.square().sum(-1).sqrt())[..., None] * p * abs(scale)
        if isinstance(exact.slope, Tensor):
            of_delta *= exact.slope.float()
        of_ds = _grouped(dout, v.mT).add_(delta_size[..., None]).mul_(abs(scale))
        lost = FLUSHED * (1 + of_ds)
        of_ds.mul_(p)
        # Sums of n summands, whose errors may all have one sign: equal ones are an example.
        # Tensor cores add 16 products of a narrow type at once, and cut the sum off, unrounded.
        each = UNIT / (2 if d.dtype == "f32" else 4)
        of_query, of_key = (error[..., None] + each * n
                            for n in (keys, queries * d.heads // d.kv_heads))
        rounding = (unit * abs(scale)) * exact.ds.float().abs()
        key = k.amax(-1).repeat_interleave(d.heads // d.kv_heads, 0)[:, None, :]
        dq.slack[:, first:last] = _grouped(of_ds * of_query + of_delta + lost, k)
        dq.largest[:, first:last] = (rounding * key).amax(-1)
        dk.slack += by_keys(of_ds * of_key + lost, q)
        of_summand = (rounding + of_delta) * q.amax(-1)[..., None]
        dk.largest = torch.maximum(dk.largest, largest_of_keys(of_summand))
        dv.slack += by_keys(p * of_key + FLUSHED, dout)
        of_value = unit * p * dout.amax(-1)[..., None]
        dv.largest = torch.maximum(dv.largest, largest_of_keys(of_value))
        visible = ~rows.hidden.expand(d.heads, -1, -1)
        dq.empty[:, first:last] = ~visible.any(-1)
        met = visible.any(1).reshape(d.kv_heads, -1, keys).any(1)
        dk.empty &= ~met
        if sinks is not None:
            sinks.add(exact, emulated, error.double(), delta_size.double())
    dv.empty = dk.empty
    return {"dq": dq, "dk": dk, "dv": dv} if d.kv_lengths[b] else {"dq": dq}


def _rounded_out(built: BuiltBackward, b: int, first: int, last: int) -> Tensor:
    """The rounded result of a stretch of queries [heads, rows, dim_v]."""
    rows = sequence(built.out.tensor, built.forward.q_offsets, b)[first:last]
    return rows.transpose(0, 1).double()
