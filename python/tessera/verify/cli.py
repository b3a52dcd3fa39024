"""Runs many random problems and compares each with double precision."""

from __future__ import annotations

import argparse
import collections
import random
import time
from typing import TYPE_CHECKING, Any

from ..bench.files import Unwritable, check_writable, write_json
from ..bench.measure import DeviceLost, require_device
from ..bench.ours import rejected
from ..bench.progress import Progress
from .attention import draw as attention_problems
from .jobs import Outcome, from_here, from_jobs
from .operations import GROUPS, LEAST, LIMITS, OPERATIONS, operation_of
from .products import draw as product_problems

if TYPE_CHECKING:
    from .operations import Operation

DRAWN, FASTEST = "drawn", "fastest"
SHARE_OF_DRAWN_ROWS = 0.7  # the others run the row that the library chooses


class Tally:
    """What became of the problems of one operation, or of all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.right = self.refused = 0
        self.failures: list[int] = []  # seeds
        self.worst = 0.0
        self.worst_seed: int | None = None
        self.last_seed = 0  # the largest
        self.reasons: collections.Counter[str] = collections.Counter()
        self.rows: collections.Counter[str] = collections.Counter()  # those that ran
        self.start = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        self.last_seed = max(outcome.seed, self.last_seed)
        if outcome.row is not None:
            self.rows[outcome.row] += 1
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
        found = {"op": options.op, "device": options.device, "first_seed": options.seed,
                 "last_seed": max(self.last_seed, options.seed), "problems": self.done,
                 "right": self.right, "refused": self.refused, "failed": sorted(self.failures),
                 "worst": self.worst, "worst_seed": self.worst_seed,
                 "seconds": round(self.seconds, 3)}
        return {**found, "rows": dict(sorted(self.rows.items()))} if self.rows else found

    def counts(self) -> str:
        return (f"{self.name}: {self.done} problems, {self.right} right, {self.refused} refused, "
                f"{self.failed} failed")

    def details(self) -> list[str]:
        lines = []
        if self.worst_seed is not None:
            lines.append(f"worst: {self.worst:.2f} of the budget, seed {self.worst_seed}")
        lines += [f"ran {count}: {row}" for row, count in sorted(self.rows.items())]
        lines += [f"refused {count}: {reason}" for reason, count in self.reasons.most_common()]
        return lines


class Tallies:
    """One of all problems, and one of each operation."""

    def __init__(self, op: str) -> None:
        self.total = Tally(op)
        self.parts = {name: Tally(name) for name in GROUPS.get(op, (op,))}

    def add(self, outcome: Outcome) -> None:
        self.total.add(outcome)
        self.parts[outcome.op].add(outcome)

    def summary(self) -> str:
        total, seconds = self.total, self.total.seconds
        lines = [f"{total.counts()}; {seconds:.1f} s, {total.done / max(seconds, 1e-9):.1f} per "
                 "second"]
        if len(self.parts) == 1:
            lines += total.details()
        else:
            for part in self.parts.values():
                lines += [part.counts(), *(f"  {line}" for line in part.details())]
        if total.failures:
            lines.append("failed: seeds " + ", ".join(map(str, total.failures)))
        return "\n".join(lines)


def reasons_of(refusal: Exception, device: str) -> list[str]:
    """Why no kernel of this device supports the problem: each reason once, without numbers."""
    reasons = [f"{row}: {reason.split(', got')[0]}" for row, reason in rejected(refusal, device)]
    return list(dict.fromkeys(reasons)) or [str(refusal).strip().splitlines()[0]]


def drawn_problem(op: Operation, seed: int, options: argparse.Namespace) -> Any:
    return op.draw(seed, options.device, getattr(options, op.limit))


def draws_rows(op: Operation, options: argparse.Namespace) -> bool:
    return op.draws_rows if options.rows is None else options.rows == DRAWN


def explained(built: Any, outputs: tuple[Any, ...], backend: str | None) -> Any:
    import tessera

    if hasattr(built, "explain"):
        return built.explain(*outputs, backend=backend)
    name, arguments, given = built.call(*outputs)
    return tessera.explain(name, *arguments, **given, backend=backend)


def row_of(built: Any, outputs: tuple[Any, ...], seed: int,
           backend: str | None) -> tuple[str | None, str | None]:
    """The kernel row to ask for, and the one that will run: a random one of those that support the
    problem, or the library's choice."""
    found = explained(built, outputs, backend)
    rows = sorted(one["kernel"] for one in found["candidates"] if one["accepted"])
    rng = random.Random(f"row {seed}")
    if not rows:
        return None, None
    if rng.random() >= SHARE_OF_DRAWN_ROWS:
        return None, found["plan"]["kernel_name"]
    row = rng.choice(rows)
    return row, row


def verify_one(op: Operation, seed: int, options: argparse.Namespace) -> Outcome:
    """Raises the library's exceptions, unless a kernel row was found that supports the problem."""
    import torch

    from .memory import same_bits

    built = op.build(drawn_problem(op, seed, options), options.device)
    outputs = built.outputs()
    kernel, row = (row_of(built, outputs, seed, options.backend) if draws_rows(op, options)
                   else (None, None))
    choice = {"kernel": kernel, "backend": options.backend}
    outcome = Outcome(seed, op.name, row=row)
    try:
        built.run(*outputs, **choice)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        if row is None:
            raise
        # A row that `explain` accepts may not be refused either.
        outcome.trouble = f"{type(error).__name__}: {error}"
        return outcome
    if options.repeat and getattr(built, "repeats", True):
        again = built.outputs()
        built.run(*again, **choice)
        if not all(map(same_bits, outputs, again)):
            outcome.share, outcome.trouble = float("inf"), "two runs differ in their bits"
            return outcome
    outcome.share, outcome.trouble = op.judge(built, *outputs)
    if outcome.trouble:
        outcome.trouble += f"; once more: {once_more(op, built, outputs, choice)}"
    return outcome


def once_more(op: Operation, built: Any, outputs: tuple[Any, ...],
              choice: dict[str, str | None]) -> str:
    """Whether a wrong result repeats, which distinguishes a wrong rule from a race."""
    from .memory import same_bits

    again = built.outputs()
    try:
        built.run(*again, **choice)
        if all(map(same_bits, outputs, again)):
            return "the same bits"
        return "other bits, " + ("wrong too" if op.judge(built, *again)[1] else "right")
    except Exception as error:  # the first error is reported in any case
        return f"{type(error).__name__}: {error}"


def verify_with_room(op: Operation, seed: int, options: argparse.Namespace) -> Outcome:
    """Tries once more after freeing PyTorch's cached memory if memory ran out, as other processes
    may share the device."""
    import torch

    try:
        return verify_one(op, seed, options)
    except torch.cuda.OutOfMemoryError:
        pass  # the exception keeps its tensors alive
    torch.cuda.empty_cache()
    return verify_one(op, seed, options)


def outcome_of(seed: int, options: argparse.Namespace) -> Outcome:
    op = operation_of(options.op, seed)
    try:
        outcome = verify_with_room(op, seed, options)
    except NotImplementedError as refusal:
        return Outcome(seed, op.name, refused=reasons_of(refusal, options.device))
    except Exception as error:  # any exception is a failure
        outcome = Outcome(seed, op.name, trouble=f"{type(error).__name__}: {error}")
    outcome.lost = None if outcome.trouble is None else _lost(options.device)
    return outcome


def verify(options: argparse.Namespace) -> int:
    """Returns 0 if every problem is right or refused, 1 if one is wrong, 130 if interrupted."""
    tallies, progress = Tallies(options.op), Progress(options.count, quiet=options.quiet)
    tally, interrupted = tallies.total, False
    outcomes = (from_here if options.jobs == 1 else from_jobs)(options, outcome_of)
    try:
        for outcome in outcomes:
            tallies.add(outcome)
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
    print(tallies.summary(), flush=True)
    if options.json:
        found = tally.as_json(options)
        write_json(options.json, {**found, "interrupted": True} if interrupted else found)
    return 1 if tally.failed else 130 if interrupted else 0


def failure(outcome: Outcome, options: argparse.Namespace) -> str:
    """The error, the problem, and the command that repeats it."""
    op = OPERATIONS[outcome.op]
    command = (f"python -m tessera.verify {op.name} --device {options.device} "
               f"--seed {outcome.seed} --count 1")
    if getattr(options, op.limit) != LIMITS[op.limit][options.device]:
        command += f" --{op.limit} {getattr(options, op.limit)}"
    if draws_rows(op, options) != op.draws_rows:
        command += f" --rows {options.rows}"
    command += f" --backend {options.backend}" if options.backend else ""
    command += " --repeat" if options.repeat else ""
    row = f" on {outcome.row}" if outcome.row else ""
    return (f"FAILED {outcome.trouble}\n  {drawn_problem(op, outcome.seed, options)}{row}\n"
            f"  {command}")


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
        epilog=f"{attention_problems.TEXT}\n\n{product_problems.TEXT}",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", nargs="?", default="all", choices=(*OPERATIONS, *GROUPS),
                        help="the operation; of several, each problem has a random one [all]")
    parser.add_argument("--device", choices=("cpu", "cuda"),
                        help="default: cuda if there is a GPU")
    parser.add_argument("--count", type=int, default=1000, help="problems [1000]")
    parser.add_argument("--seed", type=int, default=1,
                        help="seed of the first problem; each problem has the next one [1]")
    parser.add_argument("--seconds", type=float, help="start no problem after this time")
    parser.add_argument("--jobs", type=int, default=1,
                        help="number of processes, which share the problems and the device [1]")
    parser.add_argument("--pairs", type=int,
                        help="maximum of (query, key) pairs per problem of attention")
    parser.add_argument("--multiplies", type=int,
                        help="maximum of multiplications per product")
    parser.add_argument("--rows", choices=(DRAWN, FASTEST),
                        help="which kernel rows run: random ones of those that support the "
                             "problem, or the library's choice [attention: fastest; the "
                             "others: drawn]")
    parser.add_argument("--backend", choices=("cpu", "sm80", "sm90"),
                        help="run kernels of this backend only")
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
    for name, limits in LIMITS.items():
        if getattr(options, name) is None:
            setattr(options, name, limits[options.device])
        elif getattr(options, name) < LEAST:
            parser.error(f"--{name}: expected {LEAST} and more, got {getattr(options, name)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    return verify(parse(arguments))
