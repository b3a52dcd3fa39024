"""Trials as a table, as JSON, and as a change of the repository's rows."""

import difflib
import re
from pathlib import Path

from ..bench.cases import label
from ..bench.files import timestamp
from ..bench.table import aligned
from ..report.values import number

FIELD = re.compile(r'(\.measured =)((?:\s*"(?:[^"\\]|\\.)*")+)')


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


def measured_texts(device, trials):
    """{row: what the repository's table would say of it}."""
    texts = {}
    for row in dict.fromkeys(one.row for trial in trials for one in trial.rows if one.ms):
        tried = [trial for trial in trials if any(one.row == row and one.ms for one in trial.rows)]
        won = [trial for trial in tried if trial.winner == row]
        best = max(won or tried, key=lambda trial: trial.of(row).tflops)
        texts[row] = (f"fastest for {len(won)} of {len(tried)} problems tried; "
                      f"{number(best.of(row).tflops)} TFLOPS at "
                      f"{label(best.case.op, best.case.params)}: {device}, {timestamp()[:10]}")
    return texts


def table_diff(tree, device, trials):
    """What would change in the tables of rows, the rows.hpp of each family."""
    texts, out = measured_texts(device, trials), []
    for path in sorted(Path(tree, "src", "kernels").rglob("rows.hpp")):
        name, before = path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8")
        after = before
        for row, text in texts.items():
            after = _with_measured(after, row, text)
        out += difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{name}",
                                    f"b/{name}", lineterm="")
    return "\n".join(out) or "no row of this tree's tables was measured"


def _with_measured(source, row, text):
    at = source.find(f'.name = "{row}"')
    if at < 0:
        return source
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    literals = "".join(f'\n         "{part}"' for part in re.findall(r".{1,80}(?:\s|$)", quoted))
    return source[:at] + FIELD.sub(lambda found: found[1] + literals, source[at:], count=1)
