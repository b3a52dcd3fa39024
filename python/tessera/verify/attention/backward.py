"""Random problems of attention's gradients: a drawn problem of attention, and what comes on top."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import tessera
from tessera import _ffi
from tessera._signatures import ATTENTION_BACKWARD
from tessera.calls import bound, call_of

from ..memory import Buffer
from ..numbers import DTYPES
from .build import Built, build, sequence, strides_of
from .draw import Drawn, draw
from .judge import truth_of

GRADIENTS = ("dq", "dk", "dv")


@dataclass
class DrawnBackward:
    forward: Drawn
    dtype: str = "bf16"  # of dq, dk and dv
    dlse: bool = False
    one_dout: bool = False  # strides of zero: the gradient of a sum
    wanted: dict[str, bool] = field(default_factory=dict)
    heads_first: dict[str, bool] = field(default_factory=dict)
    padding: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    deterministic: bool = True

    @property
    def seed(self) -> int:
        return self.forward.seed

    def __str__(self) -> str:
        left_out = [name for name, wanted in self.wanted.items() if not wanted]
        said = [f"gradients={self.dtype}"] if self.dtype != self.forward.dtype else []
        said += [name for name in ("dlse", "one_dout") if getattr(self, name)]
        said += [f"without={'+'.join(left_out)}"] if left_out else []
        said += [] if self.deterministic else ["any_order"]
        return " ".join([str(self.forward), *said])


def draw_backward(seed: int, dtypes: tuple[str, ...], most_pairs: int) -> DrawnBackward:
    """The problem that `draw` gives for the seed, without pages, with its gradients."""
    forward = draw(seed, dtypes, most_pairs)
    forward.lse, forward.batch_invariant = True, False
    if forward.page:
        forward.page = forward.more_pages = forward.max_kv_length = 0
    rng = random.Random(f"attention_backward {seed}")
    d = DrawnBackward(forward, dtype="f32" if rng.random() < 0.1 else forward.dtype)
    d.dlse, d.one_dout = rng.random() < 0.3, rng.random() < 0.05
    d.wanted = {name: rng.random() >= 0.05 for name in (*GRADIENTS, "dsinks")}
    if not any(d.wanted[name] for name in GRADIENTS):
        d.wanted["dk"] = True
    d.wanted["dsinks"] &= forward.sinks is not None
    for name in ("dout", *GRADIENTS):
        d.heads_first[name] = rng.random() < 0.3
        most = 2 if rng.random() < 0.3 else 0
        d.padding[name] = (rng.randint(0, most), rng.randint(0, most), rng.randint(0, most))
    d.deterministic = rng.random() >= 0.3
    return d


@dataclass
class BuiltBackward:
    drawn: DrawnBackward
    forward: Built
    out: Buffer  # what an exact forward pass gives, rounded
    lse: Buffer
    dout: Tensor  # [batch, length, heads, dim] or [total, heads, dim], whatever the layout
    dlse: Tensor | None

    @property
    def repeats(self) -> bool:
        """Whether two runs have to have the same bits."""
        return self.drawn.deterministic

    def outputs(self) -> tuple[Buffer | None, ...]:
        d, f = self.drawn, self.forward
        dtype = DTYPES[d.dtype]

        def room(name: str, shape: torch.Size) -> Buffer | None:
            if not d.wanted[name]:
                return None
            strides = strides_of(shape, d.heads_first[name], d.padding[name], dtype.itemsize)
            return Buffer(shape, strides, dtype, f.q.device)

        like = zip(GRADIENTS, (f.q, f.k, f.v), strict=True)
        dsinks = (Buffer((d.forward.heads,), (1,), torch.float32, f.q.device)
                  if d.wanted["dsinks"] else None)
        return (*(room(name, x.shape) for name, x in like), dsinks)

    def _arguments(self, outputs: tuple[Buffer | None, ...], kernel: str | None,
                   backend: str | None) -> list[Any]:
        _, arguments, options = self.forward.call(self.out, self.lse)
        call = call_of(tessera.attention, bound(tessera.attention, arguments, options))
        bhld = self.drawn.forward.layout == "bhld"

        def given(tensor: Tensor) -> Tensor:
            return tensor.transpose(-3, -2) if bhld else tensor

        inputs = call.inputs._replace(kernel_name=kernel, backend=backend,
                                      deterministic=self.drawn.deterministic)._asdict()
        out, lse = call.outputs
        written = [None if x is None else x.tensor if x.tensor.dim() == 1 else given(x.tensor)
                   for x in outputs]
        return [*ATTENTION_BACKWARD.Inputs(dout=given(self.dout), dlse=self.dlse, out=out, lse=lse,
                                           **inputs), *written]

    def explain(self, *outputs: Buffer | None, backend: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_ffi.explain(
            "attention_backward", None, True, 0, *self._arguments(outputs, None, backend)))
        return found

    def run(self, *outputs: Buffer | None, kernel: str | None = None,
            backend: str | None = None) -> None:
        _ffi.attention_backward(*self._arguments(outputs, kernel, backend))


def build_backward(d: DrawnBackward, device: Any, stretch: int) -> BuiltBackward:
    forward = build(d.forward, device, stretch)
    out, lse = forward.outputs()
    assert lse is not None
    for b in range(d.forward.batch):
        for first, last in forward.stretches(b):
            truth = truth_of(forward, b, first, last)
            sequence(out.tensor, forward.q_offsets, b)[first:last] = truth.out.transpose(0, 1).to(
                out.tensor.dtype)
            lse_rows(forward, lse.tensor, b)[:, first:last] = truth.lse.to(torch.float32)
    generator = torch.Generator(device).manual_seed(d.seed + (1 << 40))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    shape = tuple(out.tensor.shape)
    # A dout in f32 has values of the inputs' dtype, to which kernels round it before they multiply.
    if d.one_dout:
        dout = normal(1).to(DTYPES[d.forward.dtype]).to(out.tensor.dtype).expand(shape)
    else:
        strides = strides_of(shape, d.heads_first["dout"], d.padding["dout"],
                             out.tensor.dtype.itemsize)
        dout = Buffer(shape, strides, out.tensor.dtype, device).tensor
        dout.copy_(normal(*shape).to(DTYPES[d.forward.dtype]))
        if forward.q_offsets is not None:
            dout[forward.q_offsets[-1] :] = torch.nan
    dlse = None
    if d.dlse:
        dlse = normal(*lse.tensor.shape)
        if forward.q_offsets is not None:
            dlse[..., forward.q_offsets[-1] :] = torch.nan
    return BuiltBackward(d, forward, out, lse, dout, dlse)


def lse_rows(built: Built, lse: Tensor, batch: int) -> Tensor:
    """[heads, length] of one sequence."""
    if built.q_offsets is None:
        return lse[batch]
    return lse[:, built.q_offsets[batch] : built.q_offsets[batch + 1]]
