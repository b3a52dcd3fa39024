"""How things are timed. All competitors of a case take turns (A B C, C B A, ...), so that a card
that warms up or cools down does so for each of them.

burst: some milliseconds of back-to-back calls, then a rest: the card at its full clock.
sustained: seconds of it without a rest: the card at its power limit. Who keeps the host longer than
the card is replayed from a graph there, or the card would rest.
graph: bursts of replays of a captured CUDA graph, which leaves the host's share of a call out.
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
LEAD_IN_SECONDS = 0.25  # of each slice, before its clock starts
GRAPH_CALLS = 20
SUSTAINED_SECONDS = 2.0  # of each competitor
SLICES, MOST_SLICES = 2, 6
STEADY = 0.05  # slices that differ by more were disturbed, and more follow
HOST_BOUND = 0.8  # of a call's time: from there on it may be the host's
ENERGY_SECONDS = 0.3  # of a slice at least: NVML's counter of energy moves ten times a second


@dataclass
class Prepared:
    """A competitor that is ready: run(i) computes input set i and returns the result."""

    run: Callable[..., Any]
    version: str | None = None
    computed_flops: float | None = None  # where it computes more than what is useful
    problem: Any = None  # the one that it solves, where that is not the case's
    extra: dict = field(default_factory=dict)  # what else to record of ours

    def solving(self, problem):
        """The same for another problem than the case's, with other sets of inputs."""
        count = len(problem.sets)
        return replace(self, run=lambda i: self.run(i % count), problem=problem,
                       computed_flops=problem.useful_flops)


@dataclass
class Figures:
    """Times of one competitor, in ms a call, one a round."""

    times: list = field(default_factory=list)
    clocks: list = field(default_factory=list)
    watts: list = field(default_factory=list)  # a slice each, from its energy

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
    """Between the quartiles; of few times, between the extremes."""
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
        """What one call costs the host while the device is idle."""
        times = []
        for i in range(repeats):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            prepared.run(i % self.sets)
            times.append((time.perf_counter() - start) * 1e6)
        self.torch.cuda.synchronize()
        return statistics.median(times)

    def is_host_bound(self, prepared):
        """Whether calls that follow one another may wait for the host."""
        return self.host_us(prepared) >= HOST_BOUND * estimate_ms(self, prepared) * 1e3

    def captured(self, prepared):
        """The same work as replays of one graph. Returns it with the calls that a replay makes."""
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

        def replay(_, results=kept):  # the graph writes them
            graph.replay()

        return Prepared(replay), calls


def in_turns(names, rounds):
    """The order of every round, forwards and backwards by turns."""
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
    """{name: Prepared} -> {name: Figures}. `calls_in_run`: how many calls one run stands for."""
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
    """Each competitor runs `seconds` in all, in slices that follow one another without a rest. The
    second round runs backwards, so that a card that drifts does so for all alike. Before the first
    slice the one that comes second brings the card to its limit: so the first competitor, too,
    follows the same one both times, and never a rest. Where somebody's slices are not alike, there
    are two rounds more, twice at most: something else had the machine meanwhile."""
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
    """One stretch of work: a lead-in uses up what the one before may have left of the budget of
    power; then time, clock and energy count."""
    keep_busy(timer, prepared, calls, LEAD_IN_SECONDS)
    energy = []

    def note():
        figures.clocks.append(timer.clock_mhz())
        energy.append((time.perf_counter(), timer.meter.joules()))

    done, elapsed = keep_busy(timer, prepared, calls, seconds, note)
    figures.times.append(elapsed * 1e3 / done)
    figures.watts.append(power(energy))


def power(samples):
    """Watts, from (seconds, joules), between the first and the last movement of the counter; None
    where that is too short."""
    moved = [now for before, now in itertools.pairwise(samples) if now[1] != before[1]]
    if not moved or moved[-1][0] - moved[0][0] < ENERGY_SECONDS:
        return None
    (begin, first), (end, last) = moved[0], moved[-1]
    return (last - first) / (end - begin)


def keep_busy(timer, prepared, calls, seconds, note=lambda: None):
    """Runs for so long; returns how many calls in how many seconds. The queue never runs dry: a
    chunk of calls is waited for only when the next one is in the queue."""
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
