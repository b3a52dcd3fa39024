"""What a call costs on the host: ``python -m tessera.overhead``.

Each line is the median over many calls of one tiny problem, which one thread runs. On a GPU the
calls only launch, so that the figures hold there as well."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import numpy as np
import tvm_ffi

import tessera
from tessera import _ffi
from tessera._signatures import ATTENTION


def microseconds(calls: list[Callable[[], Any]], repeats: int = 1000,
                 rounds: int = 21) -> list[float]:
    """For each call the median over rounds, taken in turns so that all meet the same machine."""
    taken = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, times in zip(calls, taken):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            if turn > 0:  # the first round warms up
                times.append((time.perf_counter() - start) / repeats * 1e6)
    return [statistics.median(times) for times in taken]


def _inputs(q: Any) -> Any:
    return ATTENTION.Inputs(q, q, q, causal=True)


def _report(title: str, lines: list[tuple[str, Callable[[], Any]]], base: int) -> None:
    """`base` is the line that holds the C++ call itself."""
    print(title)
    times = microseconds([call for _, call in lines])
    for i, ((name, _), taken) in enumerate(zip(lines, times)):
        beyond = f"  {taken - times[base]:+6.2f} us beyond the C++ call" if i > base else ""
        print(f"  {taken:7.2f} us  {name}{beyond}")


def numpy_report() -> None:
    q = np.ones((1, 4, 2, 16), np.float32)
    out = np.empty_like(q)
    nothing, inputs = tvm_ffi.get_global_func("testing.nop"), _inputs(q)
    _report("attention, NumPy, f32 [1, 4, 2, 16]", [
        ("a function that does nothing, same arguments",
         lambda: nothing(*inputs, out, None)),
        ("the export", lambda: _ffi.attention(*inputs, out, None)),
        ("tessera.attention(out=)",
         lambda: tessera.attention(q, q, q, causal=True, out=out)),
        ("tessera.attention()", lambda: tessera.attention(q, q, q, causal=True)),
    ], 1)


def torch_report(device: str) -> None:
    import torch

    from tessera import torch_ops  # noqa: F401: registers the operations

    q = torch.ones(1, 4, 2, 16, device=device, dtype=torch.float32 if device == "cpu" else
                   torch.bfloat16)
    out, inputs = torch.empty_like(q), _inputs(q)
    nothing, op = tvm_ffi.get_global_func("testing.nop"), torch.ops.tessera.attention.default
    trained = q.clone().requires_grad_()
    _report(f"attention, PyTorch on {device}, [1, 4, 2, 16]", [
        ("a function that does nothing, same arguments",
         lambda: nothing(*inputs, out, None)),
        ("the export", lambda: _ffi.attention(*inputs, out, None)),
        ("tessera.attention(out=)",
         lambda: tessera.attention(q, q, q, causal=True, out=out)),
        ("tessera.attention()", lambda: tessera.attention(q, q, q, causal=True)),
        ("the registered operation", lambda: op(q, q, q, causal=True)),
        ("the registered operation, every argument given", lambda: op(*inputs)),
        ("tessera.attention() recording a gradient",
         lambda: tessera.attention(trained, q, q, causal=True)),
    ], 1)


def main() -> None:
    numpy_report()
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: no further figures")
        return
    torch_report("cpu")
    if torch.cuda.is_available() and tessera.cuda_device_count():
        try:
            torch_report("cuda")
        except NotImplementedError as refused:
            print(refused)


if __name__ == "__main__":
    main()
