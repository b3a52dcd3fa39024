"""Joules for each useful TFLOP, beside the peer that needs the least."""

from statistics import median

from .scatter import Group, Guide, Point, Scatter
from .table import Table
from .values import (
    GROUPS,
    OURS,
    REFERENCES,
    by_group,
    case_text,
    group_of,
    joules_of,
    measured,
    number,
)


def frugal(record):
    """(name, joules) of the peer that needs the least for each useful TFLOP, and ours."""
    ours = joules_of(OURS, record["ours"]) if "ms" in record["ours"] else None
    peers = {name: joules_of(name, entry) for name, entry in measured(record).items()
             if name not in REFERENCES}
    peers = {name: figure for name, figure in peers.items() if figure}
    best = min(peers, key=peers.__getitem__, default=None)
    return (best, peers[best], ours) if best and ours else None


def scatter(records):
    groups = []
    for colour, name in enumerate(GROUPS):
        points = []
        for record in records:
            found = frugal(record) if group_of(record) == name else None
            if found:
                peer, theirs, ours = found
                points.append(Point(theirs, ours, f"{case_text(record)}: {number(ours)} J/TFLOP, "
                                                  f"{peer} {number(theirs)}"))
        if points:
            groups.append(Group(name, colour, points))
    found = [figure for group in groups for point in group.points for figure in (point.x, point.y)]
    guides = [Guide([(min(found) / 2,) * 2, (max(found) * 2,) * 2])] if found else []
    return Scatter("Joules for each useful TFLOP",
                   ["below the line tessera needs less than the peer that needs least"],
                   "the most frugal peer", OURS, groups, guides, True)


def by_groups(records):
    found = {}
    for record in by_group(records):
        if frugal(record):
            _, theirs, ours = frugal(record)
            found.setdefault(group_of(record), []).append(theirs / ours)
    rows = [[name, len(ratios), f"{min(ratios):.2f}x", f"{median(ratios):.2f}x",
             f"{max(ratios):.2f}x"] for name, ratios in found.items()]
    return Table(["cases", "measured", "least", "median", "most"], rows, 1,
                 "What the most frugal peer needs, over ours")


def every(records):
    rows = []
    for record in by_group(records):
        found = frugal(record)
        if found:
            rows.append([case_text(record), found[2], found[0], found[1]])
    return Table(["case", f"{OURS}, J/TFLOP", "most frugal peer", "its J/TFLOP"], rows, 1,
                 "Joules for each useful TFLOP")
