"""Runs the problems in this process, or in several at once."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from .operations import operation_of


@dataclass
class Outcome:
    """The outcome of one problem; right if no field says otherwise."""

    seed: int
    op: str = ""
    share: float = 0.0  # largest share of its budget
    trouble: str | None = None
    refused: tuple[str, ...] | list[str] = ()  # the reasons
    row: str | None = None  # the kernel row that ran, where it is known
    lost: str | None = None  # the error of the device if it was lost


Verify = Callable[[int, argparse.Namespace], Outcome]


def from_here(options: argparse.Namespace, verify: Verify, first: int = 0,
              end: float | None = None) -> Generator[Outcome, None, None]:
    """Outcomes of one of every `options.jobs` problems, until the time `end`."""
    end = _end_of(options) if end is None else end
    for seed in range(options.seed + first, options.seed + options.count, options.jobs):
        if time.monotonic() > end:
            return
        outcome = verify(seed, options)
        yield outcome
        if outcome.lost:
            return


def from_jobs(options: argparse.Namespace, verify: Verify) -> Generator[Outcome, None, None]:
    """Outcomes in the order of arrival. A process that ends early failed at its next problem."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    end = _end_of(options)
    left: dict[Any, Any] = {}  # {pipe: (process, its current seed)}
    try:
        for first in range(min(options.jobs, options.count)):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(options, verify, first, end, sender),
                                      daemon=True)
            process.start()
            sender.close()
            left[receiver] = process, options.seed + first
        while left:
            ready: list[Any] = wait(list(left))
            for pipe in ready:
                process, seed = left[pipe]
                try:
                    outcome = pipe.recv()
                except EOFError:
                    process.join()
                    outcome = None
                    if process.exitcode != 0:
                        yield Outcome(seed, operation_of(options.op, seed).name,
                                      trouble=f"its process ended with {process.exitcode}")
                if outcome is None:
                    del left[pipe]
                else:
                    left[pipe] = process, outcome.seed + options.jobs
                    yield outcome
    finally:
        for process, _ in left.values():
            process.terminate()
            process.join()


def _end_of(options: argparse.Namespace) -> float:
    return float("inf") if options.seconds is None else time.monotonic() + options.seconds


def _work(options: argparse.Namespace, verify: Verify, first: int, end: float,
          pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.jobs))
    for outcome in from_here(options, verify, first, end):
        pipe.send(outcome)
