"""One problem: every kernel that takes it, checked, then timed in turns."""

from dataclasses import dataclass, field

from ..bench import arrays
from ..bench.cases import Case
from ..bench.measure import captured, check_ours, require_device, take_turns, tidy, timer_for
from ..bench.ours import explanation, prepare_ours, refusal
from ..bench.patterns import NoTessera, import_tessera
from ..bench.peers.base import Unavailable, one_line
from ..bench.problem import Problem
from ..report.values import FASTER, verdict


@dataclass
class Tried:
    """A kernel and its time, or the reason why it has none."""

    row: str
    predicted_ms: float
    ms: float | None = None
    spread: float | None = None  # as a share of ms
    tflops: float | None = None
    reason: str | None = None


@dataclass
class Trial:
    case: Case
    signature: str
    model: str  # the cost model's choice
    rows: list = field(default_factory=list)

    def of(self, row):
        return next(one for one in self.rows if one.row == row)

    @property
    def winner(self):
        """The fastest kernel where it is faster than the cost model's choice, as reports judge it,
        else that; None where nothing has a time."""
        timed = [one for one in self.rows if one.ms is not None]
        if not timed:
            return None
        best, model = min(timed, key=lambda one: one.ms), self.of(self.model)
        if model.ms is None or verdict(vars(best), vars(model)) == FASTER:
            return best.row
        return model.row


def device_and_file(device):
    """The library's name of the device, and where its tuning file is looked for ("": nowhere)."""
    tessera = import_tessera()
    any_matrix = arrays.empty((16, 16), "f32", device)
    answer = tessera.explain(tessera.matmul, any_matrix, any_matrix)
    return answer["device"], answer["tuning"]["path"] or ""


def try_rows(case, settings, state, wanted, say=lambda text: None):
    """The trial of a case over its kernels whose name `wanted` finds; the cost model's choice is
    always among them, as the one to beat."""
    say("inputs")
    problem = Problem(case, settings.device, settings.cache_bytes)
    answer = explanation(problem)
    accepted = {one["kernel"]: one["predicted_ms"] for one in answer["candidates"]
                if one["accepted"]}
    if not accepted:
        raise Unavailable(refusal(str(answer), settings.device))
    model = min(accepted, key=accepted.__getitem__)
    rows = [row for row in sorted(accepted, key=accepted.__getitem__)
            if row == model or wanted.search(row)]
    trial = Trial(case, answer["problem"], model, [Tried(row, accepted[row]) for row in rows])
    ready = {}
    for one in trial.rows:
        say(f"checking {one.row}")
        try:
            ready[one.row] = _checked(problem, one.row, settings)
        except Unavailable as error:
            one.reason = str(error)
    say("timing")
    _time(trial, problem, ready, state, settings)
    del problem, ready
    tidy(settings.device)
    return trial


def _checked(problem, row, settings):
    """A kernel whose result is right."""
    try:
        prepared = prepare_ours(problem, row)
        check_ours(prepared, problem)
        return prepared
    except (Unavailable, NoTessera):
        raise
    except Exception as error:  # one that fails must not take the others with it
        raise Unavailable(f"{type(error).__name__}: {one_line(error)}") from error
    finally:
        require_device(row, settings.device)


def _time(trial, problem, ready, state, settings):
    timer, calls, absent = timer_for(problem, settings), None, {}
    if state == "graph":
        ready, calls = captured(timer, ready, absent)
    figures = take_turns(timer, ready, problem, state, settings, calls) if ready else {}
    for one in trial.rows:
        one.reason = one.reason or absent.get(one.row)
        if one.row in figures:
            entry = figures[one.row].entry(problem.useful_flops)
            one.ms, one.spread, one.tflops = entry["ms"], entry["spread"], entry["tflops"]
