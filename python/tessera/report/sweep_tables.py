"""Tables of shapes drawn at random: how the ratios are distributed, and the worst shapes. Each
function returns texts, tables and notes in the order to read."""

from ..bench.cases import label
from ..bench.machine_code import in_words
from ..bench.ratios import (
    PERCENT,
    STATES,
    best_alternative,
    op_of,
    percentile,
    ratio,
    worst_first,
)
from ..bench.results import record_key
from .markdown import card, commits
from .reading import days_of, parts_of
from .table import Table, captioned
from .values import number

OPS = ("attention", "attention_fp8", "attention_backward", "matmul", "linear", "bsr_matmul")
WORST = 8
SLOW = 0.95
NONE = "no kernel"


def by_op(records):
    """{operation: its records}, in the order of OPS."""
    found = {op: [one for one in records if op_of(one) == op] for op in OPS}
    return {op: some for op, some in found.items() if some}


def distribution(records):
    """An operation and state per line: percentiles of the ratio over the shapes of all seeds, and
    how many shapes are slow, in that state and in all states."""
    rows = []
    for op, some in by_op(records).items():
        slow = {state: {shape_of(one) for one in worst_first(some, state) if ratio(one) < SLOW}
                for state in STATES}
        in_all = set.intersection(*slow.values())
        for state, word in STATES.items():
            ratios = [ratio(one) for one in worst_first(some, state)]
            if ratios:
                alone = sum(one["state"] == state for one in some) - len(ratios)
                rows.append([op, word, len(ratios), alone or None,
                             *(f"{percentile(ratios, share):.2f}" for share in PERCENT.values()),
                             len(slow[state]), len(in_all)])
    head = ["shapes of", "state", "shapes", "without an alternative", *PERCENT, f"below {SLOW}",
            "in both states"]
    return [Table(head, rows, 2)]


def shape_of(record):
    return record_key(record)[0]


def worst(records):
    """The worst shapes of each operation and state."""
    blocks = []
    for op, some in by_op(records).items():
        for state, word in STATES.items():
            shapes = worst_first(some, state)[:WORST]
            rows = [[text_of(one), f"{ratio(one):.2f}", other_ratio(one, some),
                     best_alternative(one)[0], _microseconds(one["ours"]),
                     one["ours"].get("row") or NONE] for one in shapes]
            head = ["shape", "ratio", "other state's", "alternative", "ours, us", "kernel row"]
            if rows:
                blocks += captioned(Table(head, rows, 1, f"The worst shapes of {op}, {word}"))
    return blocks


def text_of(record):
    """The shape without what its table says."""
    return label(record["op"], record["params"]).removeprefix(f"{record['op']} ").replace(
        "sparse w ", "")


def other_ratio(record, records):
    """The ratio of the shape in other states."""
    return ", ".join(f"{ratio(one):.2f}" for one in records
                     if one is not record and shape_of(one) == shape_of(record)
                     and ratio(one) is not None)


def _microseconds(entry):
    return number(entry["ms"] * 1e3) if "ms" in entry else None


def provenance(results, kernels, records):
    """Where the shapes of one card are from, in lines; one more before them where some of them are
    stale."""
    made = dict.fromkeys(one for result in results for one in commits(parts_of(result)))
    words = [card(results[0]), *days_of(*results), *(f"commit {one}" for one in made)]
    return [*in_words(records, kernels), ", ".join(words), seeds(results)]


def seeds(results):
    """"seeds 1, 2, 3 of attention, matmul; 1 of linear"."""
    found: dict = {}
    for result in results:
        for one in result.get("sweeps", ()):
            found.setdefault(one["op"], set()).add(one["seed"])
    together: dict = {}
    for op in OPS:
        if op in found:
            together.setdefault(", ".join(map(str, sorted(found[op]))), []).append(op)
    return "seeds " + "; ".join(f"{numbers} of {', '.join(ops)}"
                                for numbers, ops in together.items())
