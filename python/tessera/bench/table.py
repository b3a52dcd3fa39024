"""Results as text for the terminal; `tessera.report` makes the documentation's tables."""

from ..report.table import Table
from ..report.values import OURS, REFERENCES, joules_of, number, of_dense, rate_of
from .cases import label


def _competitors(record):
    """(name, entry) pairs: ours, then peers by speed, then unavailable peers."""
    peers = sorted(record["peers"].items(), key=lambda one: one[1].get("ms", float("inf")))
    return [(OURS, record["ours"]), *peers]


def _unit(records):
    """TFLOPS, or GFLOPS if all rates are below one TFLOPS."""
    largest = max((entry.get("tflops", 0) for record in records
                   for _, entry in _competitors(record)), default=0)
    return (1.0, "TFLOPS") if largest >= 1 or not largest else (1e3, "GFLOPS")


def _rms_errors(entry):
    """Of FP8, for normal and for difficult inputs."""
    found = entry.get("rms_error")
    if found is None:
        return "", ""
    return tuple(number(found[kind]) or "not finite" for kind in ("normal", "difficult"))


def text_table(records):
    """A table with a line per competitor; the speed-up is its time over ours."""
    factor, unit = _unit(records)
    table = Table(["", "state", "ms", "spread", unit, "MHz", "W", "J/TFLOP", "host us", "ours is",
                   "rms error", "difficult"], [], left=2)
    lines: list = [table.head]
    for record in records:
        lines.append(label(record["op"], record["params"]))
        ours, notes = record["ours"].get("ms"), []
        for name, entry in _competitors(record):
            if "unavailable" in entry:
                notes.append(f"    {name}: {entry['unavailable']}")
                continue
            ratio = f"{entry['ms'] / ours:.2f}x" if ours and name != OURS else ""
            if ratio and name in REFERENCES:
                ratio = f"{of_dense(record):.2f} of it"
            table.rows.append(["  " + name, record["state"], number(entry["ms"]),
                               f"{100 * entry['spread']:.0f}%",
                               number(rate_of(name, entry) * factor), number(entry["clock_mhz"]),
                               number(entry["watts"]), number(joules_of(name, entry)),
                               number(entry["host_us"]), ratio, *_rms_errors(entry)])
            lines.append(table.rows[-1])
        lines += notes
    kept = table.kept()
    return aligned([line if isinstance(line, str) else [line[i] for i in kept] for line in lines],
                   "<<" + ">" * (len(kept) - 2))


def aligned(lines, sides):
    """Aligns lines of cells by columns to "<" or ">". A line that is a text spans all columns. The
    first line has the names of the columns."""
    rows = [line for line in lines if not isinstance(line, str)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def text(cells):
        placed = zip(cells, sides, widths, strict=True)
        return "  ".join(f"{cell:{side}{width}}" for cell, side, width in placed).rstrip()

    return "\n".join(line if isinstance(line, str) else text(line) for line in lines)
