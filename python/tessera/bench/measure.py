"""Measures one case: makes the inputs, prepares all competitors, checks their results and times
them."""

import contextlib
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import peers as adapters
from .machine import gpu_facts
from .ours import accepted_rows, prepare_ours
from .patterns import NoTessera
from .peers.base import Unavailable, one_line
from .problem import Problem
from .reference import WrongResult, check_same
from .timing import (
    QUICK_BURST_SECONDS,
    QUICK_REST_SECONDS,
    QUICK_ROUNDS,
    SUSTAINED_SECONDS,
    CpuTimer,
    CudaTimer,
    measure_bursts,
    measure_sustained,
)

OURS = "ours"
UNEXPANDED = "ours without a dense copy"
ROW = "row "  # before a kernel row's name: ours, by that row


class DeviceLost(RuntimeError):
    """The device no longer works in this process. `competitor` was starting; None: all were being
    timed."""

    def __init__(self, competitor: str | None, reason: str) -> None:
        super().__init__(f"{competitor}: {reason}")
        self.competitor, self.reason = competitor, reason


@dataclass
class Settings:
    """`find_gpu` sets the last two fields. `quick`: short bursts, for many cases; `rows`: each
    kernel row that supports a case competes as well; `expand`: ours may make dense copies of sparse
    operands, and competes without them as well where it does; `times`: how often each case is
    timed, each time into a record of its own."""

    device: str = "cpu"
    quick: bool = False
    rows: bool = False
    expand: bool = False
    times: int = 1
    seconds: float = SUSTAINED_SECONDS
    states: tuple | None = None  # None: those of the case
    peers: object = "all"
    ours: bool = True
    left_out: dict = field(default_factory=dict)  # {competitor: reason} for the case
    starting: Callable[[str], Any] = contextlib.nullcontext  # entered while a competitor starts
    cache_bytes: int = 0
    meter: object = None

    def find_gpu(self):
        """The facts of the GPU; None for the CPU."""
        if self.device != "cuda":
            return None
        gpu, self.meter = gpu_facts()
        self.cache_bytes = gpu["l2_bytes"]
        return gpu


def measure_case(case, settings, say=lambda text: None):
    """The records of a case: for each state, as many as `times`."""
    say("inputs")
    problem = Problem(case, settings.device, settings.cache_bytes)
    ready, absent, errors = {}, {}, {}
    names = [OURS, *([UNEXPANDED] if settings.expand else [])] if settings.ours else []
    if settings.rows:
        names += [ROW + row for row in accepted_rows(problem)]
    names += adapters.peers_for(case, settings.device, settings.peers)
    for name in names:
        if name == UNEXPANDED and not _is_expanded(ready.get(OURS)):
            continue
        say(f"preparing {name}")
        try:
            ready[name], errors[name] = _ready(name, problem, settings)
        except Unavailable as error:
            absent[name] = str(error)
    records = []
    for state in [one for one in states_of(case, settings) for _ in range(settings.times)]:
        say(state)
        try:
            records.append(_record(problem, state, ready, absent, errors, settings))
        except RuntimeError:
            require_device(None, settings.device)
            raise
    del problem, ready
    tidy(settings.device)
    return records


def _is_expanded(prepared):
    return prepared is not None and "expanded_bytes" in prepared.extra


def states_of(case, settings):
    if settings.device == "cpu":
        return ("burst",)
    return settings.states or case.states


def _ready(name, problem, settings):
    """(Prepared, (error, budget)) of a competitor whose result is right."""
    if name in settings.left_out:
        raise Unavailable(settings.left_out[name])
    with settings.starting(name):
        try:
            prepared, checked = _prepare_and_check(name, problem, settings.expand)
            if not settings.quick:
                prepared.rms_error = _rms_error(name, problem, prepared, settings.expand)
            return prepared, checked
        except (Unavailable, NoTessera):
            raise
        except WrongResult as error:
            raise Unavailable(f"wrong result: {error}") from error
        except Exception as error:  # any error of a peer is its reason
            raise Unavailable(f"{type(error).__name__}: {one_line(error)}") from error
        finally:
            require_device(name, settings.device)


def _prepare_and_check(name, problem, expand):
    prepared = _prepare(name, problem, expand)
    return prepared, (check_ours if _is_ours(name) else _check)(prepared, problem)


def _is_ours(name):
    return name in (OURS, UNEXPANDED) or name.startswith(ROW)


def _prepare(name, problem, expand):
    if _is_ours(name):
        row = name.removeprefix(ROW) if name.startswith(ROW) else None
        return prepare_ours(problem, row, expand and name == OURS)
    peer = adapters.get_peer(name)
    reason = peer.refuse(problem.case)
    if reason:
        raise Unavailable(reason)
    version = peer.version()
    prepared = peer.prepare(problem)
    prepared.version = prepared.version or version
    return prepared


def _rms_error(name, problem, prepared, expand):
    """Of FP8: the error over sampled rows relative to their truth, for normal inputs and for
    difficult ones, where it is None if a result is not finite. Of other problems, and of a
    competitor that solves another one, None."""
    difficult = problem.with_difficult_values
    if difficult is None or prepared.problem is not None:
        return None
    *_, normal = problem.reference.compare(prepared.run(0))
    try:
        *_, error = difficult.reference.compare(_prepare(name, difficult, expand).run(0))
    except WrongResult:
        error = None
    return {"normal": normal, "difficult": error}


def check_ours(prepared, problem):
    """(error, budget) of our result; raises WrongResult if the error exceeds the budget."""
    error, budget = _check(prepared, problem)
    if error > budget:
        raise WrongResult(f"error {error:.3g}, budget {budget:.3g}")
    return error, budget


def _check(prepared, problem):
    solved = prepared.problem or problem
    solved.poison()
    result = prepared.run(0)
    return check_same(solved.reference, result, solved.coarsest_dtype)


def require_device(name: str | None, device: str) -> None:
    """Raises DeviceLost if a kernel has failed: the process cannot use the device after that."""
    if device != "cuda":
        return
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise DeviceLost(name, one_line(error)) from error


def _record(problem, state, ready, absent, errors, settings):
    timer = timer_for(problem, settings)
    absent, running, calls = dict(absent), dict(ready), None
    if state == "graph":
        running, calls = captured(timer, ready, absent)
    elif state == "sustained":
        running, calls = without_host(timer, ready)
    figures = take_turns(timer, running, problem, state, settings, calls)
    entries = {}
    for name, figure in figures.items():
        entry = figure.entry(problem.useful_flops)
        entry["host_us"] = None
        if settings.device == "cuda" and state != "graph":
            entry["host_us"] = timer.host_us(ready[name])
        if state == "sustained" and running[name] is not ready[name]:
            entry["replayed"] = True
        _describe(entry, name, ready[name], errors[name], problem)
        entries[name] = entry
    entries.update({name: {"unavailable": reason} for name, reason in absent.items()})
    ours = entries.pop(OURS, {"unavailable": "not asked for"})
    if _is_expanded(ready.get(OURS)):
        unexpanded = entries.pop(UNEXPANDED)
        if "ms" in ours:
            ours["unexpanded_ms"] = unexpanded.get("ms")
    rows = {name.removeprefix(ROW): entries.pop(name).get("ms")
            for name in list(entries) if name.startswith(ROW)}
    error, budget = errors.get(OURS, (None, None))
    return {"op": problem.op, "params": problem.params, "state": state,
            "useful_flops": problem.useful_flops, "bytes": problem.bytes, "ours": ours,
            "peers": entries, **({"rows": rows} if rows else {}),
            "max_error": error, "error_budget": budget}


def timer_for(problem, settings):
    if settings.device == "cpu":
        return CpuTimer(len(problem.sets))
    return CudaTimer(len(problem.sets), settings.meter)


def take_turns(timer, running, problem, state, settings, calls=None):
    """{name: Figures} of competitors in a state. `calls`: the calls in one run of each."""
    if state == "sustained":
        seconds = min(settings.seconds, problem.case.seconds or settings.seconds)
        return measure_sustained(timer, running, seconds, calls)
    if settings.device == "cpu":
        return measure_bursts(timer, running, rounds=5, seconds=settings.seconds / 5)
    if settings.quick:
        return measure_bursts(timer, running, calls, QUICK_ROUNDS, QUICK_BURST_SECONDS,
                              QUICK_REST_SECONDS)
    return measure_bursts(timer, running, calls)


def captured(timer, ready, absent):
    running, calls = {}, {}
    for name, prepared in ready.items():
        try:
            running[name], calls[name] = timer.captured(prepared)
        except Exception as error:
            absent[name] = f"graph capture: {one_line(error)}"
            require_device(name, "cuda")
    return running, calls


def without_host(timer, ready):
    """The competitors, and the number of calls in one run of each. Host-bound calls are replaced by
    replays of a graph if they can be captured."""
    bound = {name: one for name, one in ready.items() if timer.is_host_bound(one)}
    replayed, calls = captured(timer, bound, {})
    return {**ready, **replayed}, {**dict.fromkeys(ready, 1), **calls}


def _describe(entry, name, prepared, checked, problem):
    if prepared.rms_error is not None:
        entry["rms_error"] = prepared.rms_error
    if _is_ours(name):
        entry.update(prepared.extra)
        return
    entry["version"] = prepared.version
    entry["max_error"] = checked[0]
    if prepared.computed_flops and prepared.computed_flops != problem.useful_flops:
        entry["computed_tflops"] = prepared.computed_flops / entry["ms"] / 1e9


def tidy(device):
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
