"""Results as text: a table for the terminal, or Markdown for the documentation."""

from .cases import label
from .measure import OURS

OUR_NAME = "tessera"


def _number(value, digits=3):
    if value is None:
        return ""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def _competitors(record):
    """(name, entry) pairs, ours first, then peers by speed, the unavailable last."""
    peers = sorted(record["peers"].items(), key=lambda one: one[1].get("ms", float("inf")))
    return [(OURS, record["ours"]), *peers]


def _unit(records):
    """TFLOPS, or GFLOPS where everything is below one."""
    largest = max((entry.get("tflops", 0) for record in records
                   for _, entry in _competitors(record)), default=0)
    return (1.0, "TFLOPS") if largest >= 1 or not largest else (1e3, "GFLOPS")


def text_table(records):
    """Every competitor a line; the speed-up is ours over theirs."""
    factor, unit = _unit(records)
    head = ["", "state", "ms", "spread", unit, "MHz", "W", "J/TFLOP", "host us", "ours is"]
    groups = []
    for record in records:
        ours = record["ours"].get("ms")
        lines, notes = [], []
        for name, entry in _competitors(record):
            shown = OUR_NAME if name == OURS else name
            if "unavailable" in entry:
                notes.append(f"    {shown}: {entry['unavailable']}")
                continue
            ratio = f"{entry['ms'] / ours:.2f}x" if ours and name != OURS else ""
            lines.append(["  " + shown, record["state"], _number(entry["ms"]),
                          f"{100 * entry['spread']:.0f}%", _number(entry["tflops"] * factor),
                          _number(entry["clock_mhz"]), _number(entry["watts"]),
                          _number(entry["joules_per_tflop"]), _number(entry["host_us"]),
                          ratio])
        groups.append((label(record["op"], record["params"]), lines, notes))
    rows = [line for _, lines, _ in groups for line in lines]
    used = [i for i in range(len(head)) if i < 2 or any(row[i] for row in rows)]
    widths = {i: max([len(head[i])] + [len(row[i]) for row in rows]) for i in used}

    def line(cells):
        aligned = [cells[i].ljust(widths[i]) if i < 2 else cells[i].rjust(widths[i]) for i in used]
        return "  ".join(aligned).rstrip()

    out = [line(head)]
    for title, lines, notes in groups:
        out += [title, *(line(cells) for cells in lines), *notes]
    return "\n".join(out)


def markdown_table(records):
    """A case a line, a competitor a column."""
    factor, unit = _unit(records)
    names = list(dict.fromkeys(name for record in records for name in record["peers"]))
    names = [name for name in names
             if any("ms" in record["peers"].get(name, {}) for record in records)]
    out = [f"| case ({unit}) | state | {OUR_NAME} | " + "".join(f"{n} | " for n in names)
           + "to the best | J/TFLOP |",
           "|---|---|" + "---:|" * (len(names) + 3)]
    for record in records:
        ours = record["ours"]
        speeds = {n: record["peers"].get(n, {}).get("tflops") for n in names}
        best = max((speed for speed in speeds.values() if speed), default=None)
        cells = [label(record["op"], record["params"]), record["state"],
                 _scaled(ours.get("tflops"), factor),
                 *(_scaled(speeds[name], factor) for name in names),
                 f"{ours['tflops'] / best:.2f}" if best and "tflops" in ours else "-",
                 _number(ours.get("joules_per_tflop")) or "-"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def _scaled(value, factor):
    return _number(value * factor) if value else "-"


def provenance(result, current_hash=None):
    """One sentence on where the figures are from; says so where the kernels have changed since."""
    where = result["gpu"]["name"] if result["gpu"] else result["cpu"]["name"]
    if result["gpu"] and result["gpu"].get("driver"):
        where += f", driver {result['gpu']['driver']}"
    cuda = result["toolkit"].get("cuda") if result["gpu"] else None
    where += f", CUDA {cuda}" if cuda else ""
    text = f"{where}, {result['date'][:10]}, kernel sources {result['source_hash']}"
    if current_hash and current_hash != result["source_hash"]:
        text = f"stale, measured at {result['source_hash']}: " + text
    return text
