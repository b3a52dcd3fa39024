"""Tables of cases: beside peers, the density from which a dense product is faster, what
making lists takes, what calls cost the host. Each function returns texts, tables and notes in the
order to read."""

import itertools

from ..bench.cases import LISTS, case_key
from .table import Notes, Table, captioned
from .values import (
    OPS,
    OURS,
    REFERENCES,
    STATES,
    best_peer,
    case_text,
    measured,
    number,
    of_dense,
    unit_of,
    value_of,
    within,
)


def comparison(records):
    """One table per state, and below them the reasons why peers are missing."""
    notes, blocks = Notes(), []
    for state, title in STATES.items():
        chosen = [record for record in records if record["state"] == state]
        chosen.sort(key=lambda record: OPS.index(record["op"]))
        blocks += captioned(state_table(chosen, notes, title), ".")
    return [*blocks, notes]


def state_table(records, notes, title):
    """A case a line, a competitor a column, with how many times faster ours is."""
    names = list(dict.fromkeys(name for record in records for name in record["peers"]))
    head = ["case", "in", OURS, "best peer", "of the dense rate", *names, "J/TFLOP"]
    rows = []
    for record in records:
        ours, peers = record["ours"], measured(record)
        ms, best = ours.get("ms"), best_peer(record)
        row = [case_text(record), unit_of(record), value_cell(record, OURS, ours, notes)]
        row.append(f"{best} {peers[best]['ms'] / ms:.2f}x" if best and ms else best or "")
        share = of_dense(record)
        row.append("" if share is None else f"{share:.2f}")
        for name in names:
            entry = record["peers"].get(name)
            cell = "" if entry is None else value_cell(record, name, entry, notes)
            row.append(cell + (f", {entry['ms'] / ms:.2f}x" if ms and name in peers else ""))
        row.append(number(ours.get("joules_per_tflop")))
        rows.append(row)
    return Table(head, rows, 2, title)


def value_cell(record, name, entry, notes):
    if "unavailable" in entry:
        return notes.mark(name, entry["unavailable"])
    text = within(value_of(record, name, entry), entry["spread"])
    if entry.get("replayed"):
        text += " replayed"
    pattern = entry.get("symbolic_ms")
    return text + (f", pattern {number(pattern * 1e3)} us" if pattern is not None else "")


def lists(records):
    """What making lists takes, and as a share of the attention that walks them: at its power limit,
    where that was measured."""
    walked, rows, notes = {}, [], Notes()
    for record in sorted(records, key=lambda record: record["state"] == "sustained"):
        if record["op"] == "attention" and "ms" in record["ours"]:
            walked[case_key("attention", record["params"])] = record["ours"]["ms"]
    for record in records:
        ours, attention = record["ours"], walked.get(case_key("attention", record["params"]))
        if record["op"] in LISTS:
            share = 100 * ours["ms"] / attention if attention and "ms" in ours else None
            rows.append([case_text(record), record["state"],
                         value_cell(record, OURS, ours, notes),
                         number(attention), "" if share is None else f"{number(share, 2)}%"])
    head = ["case", "state", "lists, us", "attention, ms", "lists / attention"]
    return [Table(head, rows, 2), notes]


def workloads(records):
    """A case a line: ours, the case with nothing left out, and the best of the peers."""
    notes, rows = Notes(), []
    for record in records:
        ours, peers, best = record["ours"], measured(record), best_peer(record)
        dense = next((peers[name] for name in REFERENCES if name in peers), None)
        cells = [ours, dense, peers.get(best)]
        times = [one["ms"] if one and "ms" in one else None for one in cells]
        row = [case_text(record), record["state"], *(
            within(ms, one["spread"]) if ms else "" for ms, one in zip(times, cells, strict=True))]
        row[2] = row[2] or notes.mark(OURS, ours["unavailable"])
        row[4] = f"{best} {row[4]}" if best else ""
        row += [f"{ms / times[0]:.2f}x" if ms and times[0] else "" for ms in times[1:]]
        row.append(", ".join(f"{name} {notes.mark(name, entry['unavailable'])}"
                             for name, entry in record["peers"].items() if "ms" not in entry))
        rows.append(row)
    head = ["case", "state", "tessera, ms", "dense, ms", "best peer, ms", "over dense",
            "over the peer", "without"]
    return [Table(head, rows, 2), notes]


def crossover(records):
    """The density from which the dense product is faster, for each size of blocks."""
    series = {}
    for record in records:
        p = record["params"]
        if (record["op"], p.get("side"), p.get("pattern")) != ("bsr_matmul", "a", "random"):
            continue
        if "ms" in record["ours"] and "cublaslt" in measured(record):
            block = f"{p['block']}" + (f"x{p['block_cols']}" if "block_cols" in p else "")
            key = f"{p['m']}x{p['n']}x{p['k']} {p['dtype']}", block, record["state"]
            share = record["ours"]["ms"] / record["peers"]["cublaslt"]["ms"]
            series.setdefault(key, []).append((p["density"], share))
    rows = [[*key, equal_at(sorted(points)), ", ".join(f"{d:g}" for d, _ in sorted(points))]
            for key, points in series.items() if len(points) > 1]
    head = ["size", "block", "state", "as fast as dense at", "from the densities"]
    return [Table(head, rows, 3)]


def equal_at(points):
    """Where the time, as a share of the dense product's, is one; points are (density, share)."""
    if points[0][1] >= 1:
        return f"below {points[0][0]:g}"
    pairs = list(itertools.pairwise(points))
    (d0, t0), (d1, t1) = next((pair for pair in pairs if pair[1][1] >= 1), pairs[-1])
    if t1 <= t0:
        return "never"
    density = d0 + (1 - t0) * (d1 - d0) / (t1 - t0)
    if density > 1:
        return "never"
    return f"{density:.2f}" + ("" if t1 >= 1 else " (extrapolated)")


def eager_calls(calls):
    """What eager calls in Python cost the host beside PyTorch's own in the same run."""
    rows = [[one["call"], number(one["us"]), one["peer"], number(one["peer_us"]),
             f"{one['us'] / one['peer_us']:.2f}", number(one["limit"])] for one in calls]
    return [Table(["call", "us", "PyTorch's", "us", "ratio", "promised"], rows)]


def host_times(calls):
    """What calls in C++ cost the host, and what an empty launch did in turns with them."""
    rows = [[one["call"], within(one["us"], one["spread"]), number(one.get("least_us")),
             number(one.get("launch_us")), number(one["with_plan_us"]),
             number(one.get("plan_us")), one["row"]]
            for one in calls]
    head = ["call", "run, us", "at least", "empty launch, us", "plan found and run, us",
            "planning alone, us", "kernel"]
    return [Table(head, rows)]
