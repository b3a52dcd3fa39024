"""The ratios of a sweep: the time of the best alternative over ours."""

import statistics

from .cases import FP8

STATES = {"graph": "graph", "burst": "eager"}  # of records -> in words: calls in a loop are eager
PERCENT = {"worst": 0, "p5": 5, "p25": 25, "median": 50, "p75": 75, "best": 100}


def measured_ratio(record):
    """Of one measurement; None without any alternative."""
    times = [peer["ms"] for peer in record["peers"].values() if "ms" in peer]
    if not times:
        return None
    return min(times) / record["ours"]["ms"] if "ms" in record["ours"] else 0.0


def ratio(record):
    return statistics.median(record["ratios"]) if "ratios" in record else measured_ratio(record)


def unexpanded_ratio(record):
    """Of ours without a dense copy."""
    if "unexpanded_ms" not in record["ours"]:
        return ratio(record)
    ms = record["ours"]["unexpanded_ms"]
    return measured_ratio(record) * record["ours"]["ms"] / ms if ms else 0.0


def regret(record):
    """The time of the chosen row over that of the best one; None where the rows have no time, and
    with a dense copy, without which the rows are measured."""
    if "expanded_bytes" in record["ours"]:
        return None
    times = [ms for ms in record.get("rows", {}).values() if ms]
    chosen = record.get("rows", {}).get(record["ours"].get("row"))
    return chosen / min(times) if times and chosen else None


def percentile(values, percent):
    """Of sorted values, between neighbours."""
    place = (len(values) - 1) * percent / 100
    below = values[int(place)]
    return below + (values[min(int(place) + 1, len(values) - 1)] - below) * (place - int(place))


def worst_first(records, state):
    """Those of a state that have a ratio."""
    return sorted((one for one in records if one["state"] == state and ratio(one) is not None),
                  key=ratio)


def best_alternative(record):
    """(name, entry) of the fastest; None where none was measured."""
    times = [(name, one) for name, one in record["peers"].items() if "ms" in one]
    return min(times, key=lambda pair: pair[1]["ms"], default=None)


def op_of(record):
    """The operation whose shapes these are. Linear layers with weights in blocks are products whose
    second operand is sparse; sweeps of `bsr_matmul` have a sparse first one."""
    if record["params"]["dtype"] == FP8:
        return f"{record['op']}_fp8"
    linear = record["op"] == "bsr_matmul" and record["params"].get("side") == "b"
    return "linear" if linear else record["op"]


def summary_of(records, state):
    """The percentiles of a state's ratios, their number, and the median without dense copies where
    there were some; None without any ratio."""
    measured = worst_first(records, state)
    ratios = [ratio(one) for one in measured]
    if not ratios:
        return None
    found = {"count": len(ratios),
             "ratio": {name: percentile(ratios, share) for name, share in PERCENT.items()}}
    if any("unexpanded_ms" in one["ours"] for one in measured):
        found["unexpanded_median"] = statistics.median(map(unexpanded_ratio, measured))
    return found


def summary_faults(result):
    """Entries of `sweeps` that do not follow from the cases, as texts. Of an operation with several
    seeds in one file nothing is said, as the cases do not name their seed."""
    found, entries = [], result.get("sweeps", ())
    for entry in entries:
        if any(one["op"] == entry["op"] and one["seed"] != entry["seed"] for one in entries):
            continue
        state = next(state for state, word in STATES.items() if word == entry["state"])
        made = summary_of([one for one in result["cases"] if op_of(one) == entry["op"]], state)
        if made is None or made["count"] != entry["count"] or any(
                abs(made["ratio"][name] - entry["ratio"][name]) > 1e-9 * entry["ratio"][name]
                for name in PERCENT):
            found.append(f"sweeps: {entry['op']}, {entry['state']}: not what the cases give")
    return found
