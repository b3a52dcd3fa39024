"""What the cost model predicted beside what was measured."""

import math
from statistics import median

from .scatter import Group, Guide, Point, Scatter
from .table import Table
from .values import OURS, case_text, family_of, number

WORST = 8
TITLE = "Predicted against measured time"


def predicted(records):
    """Those whose kernel the cost model gave a time."""
    return [record for record in records
            if record["ours"].get("predicted_ms") and family_of(record)]


def ratio(record):
    """1 where the model was right, above where it was too slow."""
    return record["ours"]["predicted_ms"] / record["ours"]["ms"]


def errors(records):
    """As shares of what was measured."""
    return [abs(ratio(record) - 1) for record in records]


def percent(share):
    return f"{number(100 * share, 2)}%"


def families(records):
    """{family: records}, in order of their names."""
    found = {}
    for record in sorted(predicted(records), key=family_of):
        found.setdefault(family_of(record), []).append(record)
    return found


def sentence(records):
    chosen = predicted(records)
    near = sum(error <= 0.2 for error in errors(chosen))
    return (f"The median error over {len(chosen)} cases is {percent(median(errors(chosen)))} of "
            f"the measured time; {near} of them are within 20%.")


def by_family(records):
    rows = []
    for family, chosen in families(records).items():
        ratios = [ratio(record) for record in chosen]
        rows.append([family, len(chosen), percent(median(errors(chosen))),
                     f"{min(ratios):.2f}", f"{median(ratios):.2f}", f"{max(ratios):.2f}"])
    head = ["kernel family", "cases", "median error", "least", "median", "most"]
    return Table(head, rows, 1, "Predicted over measured time, by kernel family")


def row_of(record):
    ours = record["ours"]
    return [case_text(record), record["state"], ours["row"], ours["predicted_ms"], ours["ms"],
            round(ratio(record), 2)]


HEAD = ["case", "state", "kernel", "predicted, ms", "measured, ms", "predicted / measured"]


def worst(records):
    far = sorted(predicted(records), key=lambda record: -abs(math.log(ratio(record))))
    return Table(HEAD, [row_of(record) for record in far[:WORST]], 3,
                 "Where the prediction was furthest off")


def every(records):
    return Table(HEAD, [row_of(record) for record in predicted(records)], 3, TITLE)


def chart(records, width=400):
    groups = []
    for colour, (family, chosen) in enumerate(families(records).items()):
        points = [Point(record["ours"]["ms"], record["ours"]["predicted_ms"],
                        f"{case_text(record)}, {record['state']}: predicted "
                        f"{number(record['ours']['predicted_ms'])} ms, measured "
                        f"{number(record['ours']['ms'])} ms", record["state"] != "sustained")
                  for record in chosen]
        groups.append(Group(family, min(colour, 7), points))
    edges = [point for group in groups for point in group.points]
    ends = ([min(min(p.x, p.y) for p in edges) / 2, max(max(p.x, p.y) for p in edges) * 2]
            if edges else [])
    guides = [Guide([(end, end) for end in ends])] if edges else []
    return Scatter(TITLE, ["on the line: as predicted; filled: sustained; rings: bursts and "
                           "replays of graphs"],
                   f"measured time of {OURS}, ms", "predicted, ms", groups, guides, True, width)
