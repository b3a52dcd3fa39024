"""Runs many random problems and compares each with double precision."""

from __future__ import annotations

import argparse
import collections
import time
from typing import TYPE_CHECKING, Any

from ..bench.files import Unwritable, check_writable, write_json
from ..bench.measure import DeviceLost, require_device
from ..bench.ours import rejected
from ..bench.progress import Progress
from . import draw
from .jobs import Outcome, from_here, from_jobs

if TYPE_CHECKING:
    from .build import Buffer, Built

MOST_PAIRS = {"cpu": 1 << 21, "cuda": 1 << 28}
STRETCH = {"cpu": 1 << 20, "cuda": 1 << 25}
DTYPES = {"cpu": ("f16", "bf16", "f32"), "cuda": ("f16", "bf16")}


class Tally:
    def __init__(self) -> None:
        self.right = self.refused = 0
        self.failures: list[int] = []  # seeds
        self.worst = 0.0
        self.worst_seed: int | None = None
        self.last_seed = 0  # the largest
        self.reasons: collections.Counter[str] = collections.Counter()
        self.start = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        self.last_seed = max(outcome.seed, self.last_seed)
        if outcome.trouble is not None:
            self.failures.append(outcome.seed)
        elif outcome.refused:
            self.refused += 1
            self.reasons["; ".join(outcome.refused)] += 1
        else:
            self.right += 1
            if outcome.share > self.worst:
                self.worst, self.worst_seed = outcome.share, outcome.seed

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def done(self) -> int:
        return self.right + self.refused + self.failed

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def as_json(self, options: argparse.Namespace) -> dict[str, Any]:
        """An entry of "verify" in a result file."""
        return {"op": options.op, "device": options.device, "first_seed": options.seed,
                "last_seed": max(self.last_seed, options.seed), "problems": self.done,
                "right": self.right, "refused": self.refused, "failed": sorted(self.failures),
                "worst": self.worst, "worst_seed": self.worst_seed,
                "seconds": round(self.seconds, 3)}

    def summary(self) -> str:
        seconds = self.seconds
        lines = [f"attention: {self.done} problems, {self.right} right, {self.refused} refused, "
                 f"{self.failed} failed; {seconds:.1f} s, {self.done / max(seconds, 1e-9):.1f} a "
                 "second"]
        if self.worst_seed is not None:
            lines.append(f"worst: {self.worst:.2f} of the budget, seed {self.worst_seed}")
        lines += [f"refused {count}: {reason}" for reason, count in self.reasons.most_common()]
        if self.failures:
            lines.append("failed: seeds " + ", ".join(map(str, self.failures)))
        return "\n".join(lines)


def reasons_of(refusal: Exception, device: str) -> list[str]:
    """Why no kernel of this device supports the problem: each reason once, without numbers."""
    reasons = [f"{row}: {reason.split(', got')[0]}" for row, reason in rejected(refusal, device)]
    return list(dict.fromkeys(reasons)) or [str(refusal).strip().splitlines()[0]]


def verify_one(seed: int, options: argparse.Namespace) -> tuple[float, str | None]:
    """The largest share of the budget, and the error, if any. Raises the library's exceptions."""
    from .build import build
    from .judge import judge, same_bits

    drawn = draw.draw(seed, DTYPES[options.device], options.pairs)
    built = build(drawn, options.device, STRETCH[options.device])
    out, lse = built.outputs()
    built.run(out, lse)
    if options.repeat:
        again = built.outputs()
        built.run(*again)
        if not (same_bits(out, again[0]) and same_bits(lse, again[1])):
            return float("inf"), "two runs differ in their bits"
    share, trouble = judge(built, out, lse)
    return share, trouble and f"{trouble}; once more: {once_more(built, out, lse)}"


def once_more(built: Built, out: Buffer, lse: Buffer | None) -> str:
    """Whether a wrong result repeats, which distinguishes a wrong rule from a race."""
    from .judge import judge, same_bits

    again = built.outputs()
    try:
        built.run(*again)
        if same_bits(out, again[0]) and same_bits(lse, again[1]):
            return "the same bits"
        return "other bits, " + ("wrong too" if judge(built, *again)[1] else "right")
    except Exception as error:  # the first error is reported in any case
        return f"{type(error).__name__}: {error}"


def verify_with_room(seed: int, options: argparse.Namespace) -> tuple[float, str | None]:
    """Tries once more after freeing PyTorch's cached memory if memory ran out, as other processes
    may share the device."""
    import torch

    try:
        return verify_one(seed, options)
    except torch.cuda.OutOfMemoryError:
        pass  # the exception keeps its tensors alive
    torch.cuda.empty_cache()
    return verify_one(seed, options)


def outcome_of(seed: int, options: argparse.Namespace) -> Outcome:
    try:
        share, trouble = verify_with_room(seed, options)
    except NotImplementedError as refusal:
        return Outcome(seed, refused=reasons_of(refusal, options.device))
    except Exception as error:  # any exception is a failure
        share, trouble = 0.0, f"{type(error).__name__}: {error}"
    return Outcome(seed, share, trouble, lost=None if trouble is None else _lost(options.device))


def attention(options: argparse.Namespace) -> int:
    """Returns 0 if every problem is right or refused, 1 if one is wrong, 130 if interrupted."""
    tally, progress = Tally(), Progress(options.count, quiet=options.quiet)
    interrupted = False
    outcomes = (from_here if options.jobs == 1 else from_jobs)(options, outcome_of)
    try:
        for outcome in outcomes:
            tally.add(outcome)
            if outcome.trouble is not None:
                progress.close()
                print(failure(outcome, options), flush=True)
                if outcome.lost:
                    print(f"the device is lost: {outcome.lost}")
                if outcome.lost or tally.failed >= options.failures:
                    print("stopped here")
                    break
            progress.finished()
            progress.step("random problems", f"{tally.refused} refused, {tally.failed} failed")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        outcomes.close()
        progress.close()
    print(tally.summary(), flush=True)
    if options.json:
        found = tally.as_json(options)
        write_json(options.json, {**found, "interrupted": True} if interrupted else found)
    return 1 if tally.failed else 130 if interrupted else 0


def failure(outcome: Outcome, options: argparse.Namespace) -> str:
    seed = outcome.seed
    drawn = draw.draw(seed, DTYPES[options.device], options.pairs)
    command = f"python -m tessera.verify attention --device {options.device} --seed {seed}"
    command += " --count 1"
    if options.pairs != MOST_PAIRS[options.device]:
        command += f" --pairs {options.pairs}"
    command += " --repeat" if options.repeat else ""
    return f"FAILED {outcome.trouble}\n  {drawn}\n  {command}"


def _lost(device: str) -> str | None:
    """The error of a device that no longer works, else None."""
    try:
        require_device("verify", device)
    except DeviceLost as lost:
        return lost.reason
    return None


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tessera.verify", description=__doc__,
        epilog=draw.TEXT, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=("attention",))
    parser.add_argument("--device", choices=("cpu", "cuda"),
                        help="default: cuda if there is a GPU")
    parser.add_argument("--count", type=int, default=1000, help="problems [1000]")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of the first problem; each problem has the next one [1]")
    parser.add_argument("--seconds", type=float, help="start no problem after this time")
    parser.add_argument("--jobs", type=int, default=1,
                        help="number of processes, which share the problems and the device [1]")
    parser.add_argument("--pairs", type=int, help="maximum of (query, key) pairs per problem")
    parser.add_argument("--repeat", action="store_true", help="run each twice and compare the bits")
    parser.add_argument("--failures", type=int, default=20, help="stop after so many failures [20]")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    parser.add_argument("--quiet", action="store_true", help="no progress line")
    options = parser.parse_args(arguments)
    for name in ("count", "failures", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected 1 and more, got {getattr(options, name)}")
    try:
        check_writable("--json", options.json)
    except Unwritable as error:
        parser.error(str(error))
    try:
        import torch
    except ImportError:
        parser.error("PyTorch is not installed")
    import tessera

    gpu = torch.cuda.is_available() and tessera.cuda_device_count() > 0
    options.device = options.device or ("cuda" if gpu else "cpu")
    if options.device == "cuda" and not gpu:
        parser.error("--device cuda: no GPU, or a build without TESSERA_CUDA=ON")
    if options.pairs is None:
        options.pairs = MOST_PAIRS[options.device]
    elif options.pairs < 64:
        parser.error(f"--pairs: expected 64 and more, got {options.pairs}")
    return options


def main(arguments: list[str] | None = None) -> int:
    return attention(parse(arguments))
