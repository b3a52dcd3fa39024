"""Timing. All competitors of a case take turns (A B C, C B A, ...), so that changes of the card's
temperature and clock affect all of them.

burst: some milliseconds of back-to-back calls, then a rest: the card at its full clock.
sustained: seconds of calls without a rest: the card at its power limit. Host-bound calls are
replayed from a graph here, else the card would be idle in between.
graph: bursts of replays of a captured CUDA graph, without the host time of calls.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

BURST_ROUNDS = 9
BURST_SECONDS = 0.012
REST_SECONDS = 0.05
QUICK_ROUNDS, QUICK_BURST_SECONDS, QUICK_REST_SECONDS = 7, 0.004, 0.003  # of a sweep's many shapes
CHUNK_SECONDS = 0.04  # how much sustained work is queued ahead
WARM_UP_SECONDS = 1.0  # before the first slice
LEAD_IN_SECONDS = 0.25  # per slice, before its timing starts
GRAPH_CALLS = 20
SUSTAINED_SECONDS = 2.0  # per competitor
SLICES, MOST_SLICES = 2, 6
STEADY = 0.05  # if slices differ by more, they were disturbed and more slices follow
HOST_BOUND = 0.8  # share of a call's time; from this host time on, a call counts as host-bound
ENERGY_SECONDS = 0.3  # minimum of a slice: NVML updates its energy counter ten times per second


@dataclass
class Prepared:
    """A prepared competitor: run(i) computes input set i and returns the result."""

    run: Callable[..., Any]
    version: str | None = None
    computed_flops: float | None = None  # where it computes more than what is useful
    problem: Any = None  # the one that it solves, where that is not the case's
    extra: dict = field(default_factory=dict)  # what else to record of ours
    rms_error: dict | None = None  # of FP8, by kind of inputs

    def solving(self, problem):
        """The same, marked as solving another problem with its own sets of inputs."""
        count = len(problem.sets)
        return replace(self, run=lambda i: self.run(i % count), problem=problem,
                       computed_flops=problem.useful_flops)


@dataclass
class Figures:
    """Times of one competitor per round, in ms per call."""

    times: list = field(default_factory=list)
    clocks: list = field(default_factory=list)
    watts: list = field(default_factory=list)  # per slice, from its energy

    @property
    def ms(self):
        return statistics.median(self.times)

    @property
    def spread(self):
        return _spread(self.times) / self.ms

    def entry(self, useful_flops):
        ms = self.ms
        entry = {"ms": ms, "spread": self.spread, "tflops": useful_flops / ms / 1e9,
                 "clock_mhz": _median(self.clocks), "watts": _median(self.watts),
                 "joules_per_tflop": None}
        if entry["watts"] is not None and useful_flops:
            entry["joules_per_tflop"] = entry["watts"] / entry["tflops"]
        return entry


def _spread(times):
    """The distance between the quartiles; of few times, between the extremes."""
    if len(times) < 4:
        return max(times) - min(times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return high - low


def _median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


class CpuTimer:
    """Wall-clock time; bursts without rests."""

    def __init__(self, sets):
        self.sets = sets

    def calls_ms(self, prepared, calls):
        start = time.perf_counter()
        for i in range(calls):
            prepared.run(i % self.sets)
        return (time.perf_counter() - start) * 1e3 / calls

    def rest(self, seconds=None):
        pass

    def clock_mhz(self):
        return None


class CudaTimer:
    """CUDA events on PyTorch's current stream."""

    def __init__(self, sets, meter):
        import torch

        self.torch, self.sets, self.meter = torch, sets, meter

    def calls_ms(self, prepared, calls):
        start, end = self.event(), self.event()
        start.record()
        for i in range(calls):
            prepared.run(i % self.sets)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls

    def event(self):
        return self.torch.cuda.Event(enable_timing=True)

    def rest(self, seconds=None):
        time.sleep(REST_SECONDS if seconds is None else seconds)

    def clock_mhz(self):
        return self.meter.clock_mhz()

    def host_us(self, prepared, repeats=15):
        """The host time of a call while the device is idle."""
        times = []
        for i in range(repeats):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            prepared.run(i % self.sets)
            times.append((time.perf_counter() - start) * 1e6)
        self.torch.cuda.synchronize()
        return statistics.median(times)

    def is_host_bound(self, prepared):
        """Whether the host may limit the rate of back-to-back calls."""
        return self.host_us(prepared) >= HOST_BOUND * estimate_ms(self, prepared) * 1e3

    def captured(self, prepared):
        """The same work as replays of a graph, and the number of calls in a replay."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            prepared.run(0)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        calls = -(-GRAPH_CALLS // self.sets) * self.sets
        graph, kept = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for i in range(calls):
                kept.append(prepared.run(i % self.sets))

        def replay(_, results=kept):  # keeps the results, which the graph writes
            graph.replay()

        return Prepared(replay), calls


def in_turns(names, rounds):
    """The order of every round, alternately forwards and backwards."""
    for number in range(rounds):
        yield list(names) if number % 2 == 0 else list(reversed(names))


def estimate_ms(timer, prepared):
    """A rough time of one call. It has run before, when its result was checked."""
    first = timer.calls_ms(prepared, 1)
    if first > 100:
        return first
    calls = min(50, max(1, int(5.0 / max(first, 1e-3))))
    return timer.calls_ms(prepared, calls)


def measure_bursts(timer, competitors, calls_in_run=None, rounds=BURST_ROUNDS,
                   seconds=BURST_SECONDS, rest=None):
    """{name: Prepared} -> {name: Figures}. `calls_in_run`: the number of calls in one run."""
    calls_in_run = calls_in_run or dict.fromkeys(competitors, 1)
    estimates = {name: estimate_ms(timer, one) for name, one in competitors.items()}
    figures = {name: Figures() for name in competitors}
    for order in in_turns(list(competitors), rounds):
        for name in order:
            runs = min(1000, max(1, int(seconds * 1e3 / estimates[name])))
            timer.rest(rest)
            ms = timer.calls_ms(competitors[name], runs) / calls_in_run[name]
            figures[name].times.append(ms)
            figures[name].clocks.append(timer.clock_mhz())
    return figures


def measure_sustained(timer, competitors, seconds, calls_in_run=None):
    """Each competitor runs `seconds` in total, in slices without a rest in between. The second
    round runs backwards, so that drift of the card affects all equally. Before the first slice, the
    second competitor warms the card up to its power limit, so that the first competitor follows the
    same work in both rounds. If the slices of a competitor differ, because other work disturbed
    them, two more rounds follow, at most twice."""
    calls = {name: max(1, int(CHUNK_SECONDS * 1e3 / estimate_ms(timer, one)))
             for name, one in competitors.items()}
    figures, names = {name: Figures() for name in competitors}, list(competitors)
    for name in names[1:2] or names:
        keep_busy(timer, competitors[name], calls[name], WARM_UP_SECONDS)
    for number, order in enumerate(in_turns(names, MOST_SLICES)):
        steady = number >= SLICES and all(one.spread <= STEADY for one in figures.values())
        if steady and number % 2 == 0:
            break
        for name in order:
            time_slice(timer, competitors[name], calls[name], seconds / SLICES, figures[name])
    for name, count in (calls_in_run or {}).items():
        figures[name].times = [ms / count for ms in figures[name].times]
    return figures


def time_slice(timer, prepared, calls, seconds, figures):
    """One slice of work: after a lead-in, in which the power settles, time, clock and energy are
    measured."""
    keep_busy(timer, prepared, calls, LEAD_IN_SECONDS)
    energy = []

    def note():
        figures.clocks.append(timer.clock_mhz())
        energy.append((time.perf_counter(), timer.meter.joules()))

    done, elapsed = keep_busy(timer, prepared, calls, seconds, note)
    figures.times.append(elapsed * 1e3 / done)
    figures.watts.append(power(energy))


def power(samples):
    """Watts from samples (seconds, joules), between the first and the last change of the counter;
    None if that time is too short."""
    moved = [now for before, now in itertools.pairwise(samples) if now[1] != before[1]]
    if not moved or moved[-1][0] - moved[0][0] < ENERGY_SECONDS:
        return None
    (begin, first), (end, last) = moved[0], moved[-1]
    return (last - first) / (end - begin)


def keep_busy(timer, prepared, calls, seconds, note=lambda: None):
    """Runs for `seconds`; returns (number of calls, seconds). The queue never becomes empty: the
    host waits for a chunk of calls only after the next one is queued."""
    begin, done, first = time.perf_counter(), 0, timer.event()
    pending: Any = None
    first.record()
    while time.perf_counter() - begin < seconds or not done:
        following = _queue(timer, prepared, calls)
        if pending:
            pending.synchronize()
        pending = following
        done += calls
        note()
    pending.synchronize()
    return done, first.elapsed_time(pending) / 1e3


def _queue(timer, prepared, calls):
    for i in range(calls):
        prepared.run(i % timer.sets)
    end = timer.event()
    end.record()
    return end
