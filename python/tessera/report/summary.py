"""The first that one wants to know: how many cases are won, how many are lost, and which."""

from statistics import median

from .strip import Dot, Strip
from .table import Table
from .values import (
    EVEN,
    QUICKER,
    SLOWER,
    best_peer,
    by_group,
    case_text,
    group_of,
    number,
    times_as_quick,
    verdict,
)

WORST = 10


def compared(records):
    """Those with a figure of ours and of a peer, by group and state."""
    return [record for record in by_group(records) if times_as_quick(record)]


def verdict_of(record):
    return verdict(record["ours"], record["peers"][best_peer(record)])


def counts(records):
    """{verdict: how many}."""
    verdicts = [verdict_of(record) for record in compared(records)]
    return {one: verdicts.count(one) for one in (QUICKER, EVEN, SLOWER)}


def sentence(records):
    total = len(compared(records))
    told = counts(records)
    return (f"Of {total} measurements beside a peer, tessera was quicker than the best one in "
            f"{told[QUICKER]}, slower in {told[SLOWER]}, and even with it, within both spreads, in "
            f"{told[EVEN]}.")


def grouped(records):
    """{(group, state): records}."""
    found = {}
    for record in compared(records):
        found.setdefault((group_of(record), record["state"]), []).append(record)
    return found


def by_groups(records):
    rows = []
    for (group, state), chosen in grouped(records).items():
        told = counts(chosen)
        ratios = [times_as_quick(record) for record in chosen]
        rows.append([group, state, len(chosen), told[QUICKER], told[EVEN], told[SLOWER],
                     f"{median(ratios):.2f}x", f"{min(ratios):.2f}x", f"{max(ratios):.2f}x"])
    head = ["cases", "state", "measured", QUICKER, EVEN, SLOWER, "median", "least", "most"]
    return Table(head, rows, 2, "How many times as quick as the best peer")


def losses(records):
    """The worst first; all that are slower beyond both spreads count."""
    lost = sorted((record for record in compared(records) if verdict_of(record) == SLOWER),
                  key=times_as_quick)
    rows = [[case_text(record), record["state"], best_peer(record), record["ours"]["ms"],
             record["peers"][best_peer(record)]["ms"], f"{times_as_quick(record):.2f}x"]
            for record in lost[:WORST]]
    head = ["case", "state", "best peer", "ours, ms", "peer, ms", "ours is"]
    return Table(head, rows, 3, f"The {WORST} worst of {len(lost)} losses" if len(lost) > WORST
                 else "All losses, the worst first")


def ratios(records, title):
    """Every case a dot."""
    rows = {}
    for record in compared(records):
        best = best_peer(record)
        said = (f"{case_text(record)}, {record['state']}: {times_as_quick(record):.2f}x of {best} "
                f"({number(record['ours']['ms'])} ms, {number(record['peers'][best]['ms'])} ms)")
        rows.setdefault(group_of(record), []).append(
            Dot(times_as_quick(record), verdict_of(record), said))
    return Strip(f"{title}: the best peer's time over ours",
                 ["a dot is a case in one state; ring: slower; grey: even within the spreads"],
                 list(rows.items()), "times as quick as the best peer")


def every(records, title):
    rows = [[case_text(record), record["state"], best_peer(record),
             round(times_as_quick(record), 3), verdict_of(record)] for record in compared(records)]
    return Table(["case", "state", "best peer", "times as quick", "tessera is"], rows, 3,
                 f"{title} beside the best peer")
