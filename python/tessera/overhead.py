"""What a call costs on the host: ``python -m tessera.overhead [--check | --json]``.

Each figure is the median over rounds of many calls of one small problem, taken in turns. On a GPU
the calls only launch: each round waits for the GPU before its clock starts, so that its queue never
fills. The last table sets eager calls beside PyTorch's own in the same run; with --check the exit
status is 1 where one is slower than its limit on a GPU. --json prints that table alone, of the GPU,
a line of JSON for each call."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

import tessera
from tessera import _ffi
from tessera._signatures import ATTENTION
from tessera.bench.machine import torch_with_gpu, why_no_gpu

_CALLS = 200
_ROUNDS = 41


def microseconds(calls: list[Callable[[], Any]], repeats: int = _CALLS, rounds: int = _ROUNDS,
                 wait: Callable[[], None] = lambda: None) -> list[float]:
    """For each call the median over rounds, taken in turns so that all meet the same machine.
    `wait` runs before each clock starts."""
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, times in zip(calls, taken, strict=True):
            wait()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            if turn > 0:  # the first round warms up
                times.append((time.perf_counter() - start) / repeats * 1e6)
    return [statistics.median(times) for times in taken]


def attention_report(device: str | None) -> None:
    """Of NumPy's arrays, or of PyTorch's on a device."""
    op: Any = None
    q: Any = np.ones((1, 4, 2, 16), np.float32)
    if device is not None:
        import torch

        from tessera import torch_ops  # noqa: F401  registers the operations

        op = torch.ops.tessera.attention.default
        q = torch.from_numpy(q).to(device, torch.float32 if device == "cpu" else torch.bfloat16)
    out, inputs = q + q, ATTENTION.Inputs(q, q, q, causal=True)
    nothing = tvm_ffi.get_global_func("testing.nop")
    plan = tessera.plan(tessera.attention, q, q, q, causal=True)
    lines = [
        ("a function that does nothing, same arguments", lambda: nothing(*inputs, out, None)),
        ("the export", lambda: _ffi.attention(*inputs, out, None)),
        ("tessera.attention(out=)", lambda: tessera.attention(q, q, q, causal=True, out=out)),
        ("tessera.attention()", lambda: tessera.attention(q, q, q, causal=True)),
        ("plan.run()", lambda: plan.run(q, q, q)),
    ]
    if op is not None:
        lines += [("the registered operation", lambda: op(q, q, q, causal=True)),
                  ("the registered operation, every argument given", lambda: op(*inputs))]
    if device is not None:
        trained = q.clone().requires_grad_()
        lines.append(("tessera.attention() recording a gradient",
                      lambda: tessera.attention(trained, q, q, causal=True)))
    where = "NumPy" if device is None else f"PyTorch on {device}"
    print(f"attention, {where}, [1, 4, 2, 16]")
    times = microseconds([call for _, call in lines], wait=_wait_for(device or "cpu"))
    for i, ((name, _), taken) in enumerate(zip(lines, times, strict=True)):
        beyond = f"  {taken - times[1]:+6.2f} us beyond the C++ call" if i > 1 else ""
        print(f"  {taken:7.2f} us  {name}{beyond}")


class Pair(NamedTuple):
    """An eager call and PyTorch's own for the same shapes; `limit` is the largest ratio allowed."""

    name: str
    ours: Callable[[], Any]
    theirs: str  # which of PyTorch's calls
    limit: float


def pairs(device: str) -> tuple[list[Pair], dict[str, Callable[[], Any]]]:
    """The pairs, and PyTorch's calls by name."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device=device).to(dtype)

    # On the CPU calls compute as well: there the problems are tiny.
    length, rows, size, block = (4, 4, 16, 8) if device == "cpu" else (128, 64, 256, 64)
    q, k, v = (normal(1, length, 4, 64) for _ in "qkv")
    turned_q, turned_k, turned_v = (x.transpose(1, 2) for x in (q, k, v))
    x, weight, bias = normal(rows, size), normal(size, size), normal(size)
    turned_weight = weight.T
    pruned = tessera.BsrMatrix.prune(weight, block=block, density=0.25)
    turned_pruned = pruned.T
    deep = x[None]
    theirs = {
        "scaled_dot_product_attention":
            lambda: F.scaled_dot_product_attention(turned_q, turned_k, turned_v),
        "scaled_dot_product_attention, causal":
            lambda: F.scaled_dot_product_attention(turned_q, turned_k, turned_v, is_causal=True),
        "F.linear": lambda: F.linear(x, weight),
        "F.linear, bias": lambda: F.linear(x, weight, bias),
        "F.linear, 3-D": lambda: F.linear(deep, weight),
    }
    return [
        Pair("attention", lambda: tessera.attention(q, k, v), "scaled_dot_product_attention", 0.5),
        Pair("attention, causal", lambda: tessera.attention(q, k, v, causal=True),
             "scaled_dot_product_attention, causal", 0.5),
        Pair("matmul", lambda: tessera.matmul(x, turned_weight), "F.linear", 1.0),
        Pair("matmul, BSR", lambda: tessera.matmul(x, turned_pruned), "F.linear", 1.0),
        Pair("linear", lambda: tessera.linear(x, weight), "F.linear", 1.0),
        Pair("linear, bias", lambda: tessera.linear(x, weight, bias), "F.linear, bias", 1.0),
        Pair("linear, 3-D", lambda: tessera.linear(deep, weight), "F.linear, 3-D", 1.0),
        Pair("linear, BSR", lambda: tessera.linear(x, pruned), "F.linear", 1.0),
        Pair("linear, BSR, bias", lambda: tessera.linear(x, pruned, bias), "F.linear, bias", 1.0),
    ], theirs


def eager_calls(device: str) -> list[dict[str, Any]]:
    """What each eager call and PyTorch's own take."""
    import torch

    ours, theirs = pairs(device)
    with torch.no_grad():
        times = iter(microseconds([*theirs.values(), *(pair.ours for pair in ours)],
                                  wait=_wait_for(device)))
    base = dict(zip(theirs, times, strict=False))  # ours follow
    return [{"call": pair.name, "us": round(taken, 3), "peer": pair.theirs,
             "peer_us": round(base[pair.theirs], 3), "limit": pair.limit}
            for pair, taken in zip(ours, times, strict=True)]


def ratio_report(device: str) -> bool:
    """Prints the ratios; whether all are within their limits."""
    print(f"eager calls beside PyTorch's on {device}")
    within = True
    for one in eager_calls(device):
        ratio = one["us"] / one["peer_us"]
        within = within and ratio <= one["limit"]
        limit = f", limit {one['limit']:.1f}x" if device != "cpu" else ""
        print(f"  {one['us']:7.2f} us  {ratio:5.2f}x of {one['peer']} ({one['peer_us']:.2f} us)"
              f"{limit}: {one['call']}")
    return within


def _wait_for(device: str) -> Callable[[], None]:
    if device == "cpu":
        return lambda: None
    import torch

    return torch.cuda.synchronize


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tessera.overhead",
                                     description="What a call costs on the host.")
    parser.add_argument("--check", action="store_true",
                        help="exit with 1 where a call on a GPU is slower than its limit")
    parser.add_argument("--json", action="store_true",
                        help="print eager calls on a GPU alone, a line of JSON for each")
    given = parser.parse_args(arguments)
    if given.json:
        if not torch_with_gpu():
            parser.error(f"--json: {why_no_gpu()}")
        if not tessera.cuda_device_count():
            parser.error("--json: this build of tessera has no GPU backends")
        for one in eager_calls("cuda"):
            print(json.dumps(one))
        return 0
    attention_report(None)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: no further figures")
        return 0
    devices = ["cpu"]
    if torch_with_gpu() and tessera.cuda_device_count():
        devices.append("cuda")
    within = True
    for device in devices:
        try:
            attention_report(device)
            # On the CPU calls compute as well: no limit there.
            within = ratio_report(device) or device == "cpu"
        except NotImplementedError as refused:
            print(refused)
            within = False
    return 1 if given.check and not within else 0


if __name__ == "__main__":
    sys.exit(main())
