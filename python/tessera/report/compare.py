"""Two sets of results of one card: what became slower, what quicker, beyond the spreads."""

from ..bench.results import record_key
from .table import Table, captioned
from .values import QUICKER, SLOWER, case_text, verdict

REGRESSION, IMPROVEMENT = "regression", "improvement"
ORDER = (REGRESSION, IMPROVEMENT, "within the spreads")


def keyed(records):
    return {record_key(record): record for record in records}


def judged(new, old):
    """What to call the change, in words."""
    if "ms" not in new["ours"] and "ms" not in old["ours"]:
        return "no kernel in either"
    if "ms" not in new["ours"]:
        return REGRESSION
    if "ms" not in old["ours"]:
        return IMPROVEMENT
    return {SLOWER: REGRESSION, QUICKER: IMPROVEMENT}.get(
        verdict(new["ours"], old["ours"]), ORDER[2])


def changes(new, old):
    """The cases of both, the worst first."""
    before, rows = keyed(old), []
    for key, record in keyed(new).items():
        if key not in before:
            continue
        one, other = record["ours"], before[key]["ours"]
        share = one["ms"] / other["ms"] - 1 if "ms" in one and "ms" in other else None
        word = judged(record, before[key])
        spreads = [f"{100 * entry['spread']:.1f}%" if "ms" in entry else entry["unavailable"]
                   for entry in (other, one)]
        rows.append([case_text(record), record["state"], word, other.get("ms"), one.get("ms"),
                     "" if share is None else f"{100 * share:+.1f}%", *spreads])
    worst = sorted(rows, key=lambda row: (
        ORDER.index(row[2]) if row[2] in ORDER else len(ORDER), -abs(change_of(row))))
    marks = {place: {REGRESSION: "worse", IMPROVEMENT: "better"}[row[2]]
             for place, row in enumerate(worst) if row[2] in ORDER[:2]}
    head = ["case", "state", "verdict", "before, ms", "now, ms", "time", "spread before",
            "spread now"]
    return Table(head, worst, 3, "The same cases, before and now", marks)


def change_of(row):
    return float(row[5].rstrip("%")) if row[5] else 1e9


def only_in(records, others):
    """Cases that the others do not have."""
    known = keyed(others)
    rows = [[case_text(record), record["state"], record["ours"].get("ms")]
            for key, record in keyed(records).items() if key not in known]
    return Table(["case", "state", "ms"], rows, 2)


def blocks(records, before):
    """What to tell of a card's records beside those of the earlier cards."""
    if not before:
        return ["No earlier results of this card were named."]
    old = [record for card in before for record in card.records]
    changed = changes(records, old)
    files = ", ".join(file for card in before for file in card.files)
    new, gone = only_in(records, old), only_in(old, records)
    new.caption, gone.caption = "Only in these results", "Only in the earlier results"
    return [f"Compared with {files}: the same case in the same state. {sentence(changed)}",
            changed, *captioned(new), *captioned(gone)]


def sentence(table):
    words = [row[2] for row in table.rows]
    regressions, improvements = words.count(REGRESSION), words.count(IMPROVEMENT)
    return (f"{len(words)} cases are in both: {regressions} "
            f"{'regression' if regressions == 1 else 'regressions'} and {improvements} "
            f"{'improvement' if improvements == 1 else 'improvements'} beyond both spreads.")
