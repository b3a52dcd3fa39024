"""Trials as a table and as JSON."""

from ..bench.table import aligned
from ..report.values import number


def _time(ms):
    if ms is None:
        return "-"
    return f"{number(1e3 * ms)} us" if ms < 1 else f"{number(ms)} ms"


def table(trials):
    """A kernel a line; "taken" is what the file says."""
    lines = [["", "time", "spread", "predicted", ""]]
    for trial in trials:
        lines.append(trial.signature)
        for one in sorted(trial.rows, key=lambda one: (one.ms is None, one.ms)):
            words = [word for word, is_so in (("the cost model's", one.row == trial.model),
                                              ("<- taken", one.row == trial.winner))
                     if is_so]
            spread = "" if one.spread is None else f"{100 * one.spread:.1f}%"
            lines.append(["  " + one.row, _time(one.ms), spread, _time(one.predicted_ms),
                          one.reason or ", ".join(words)])
    return aligned(lines, "<>>><")


def as_json(device, state, trials, path):
    return {"device": device, "state": state, "file": path, "problems": [
        {"op": trial.case.op, "params": trial.case.params, "signature": trial.signature,
         "model": trial.model, "winner": trial.winner, "rows": [vars(one) for one in trial.rows]}
        for trial in trials]}
