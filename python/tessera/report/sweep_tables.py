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

OPS = ("attention", "attention_backward", "matmul", "linear", "bsr_matmul")
WORST = 10
NONE = "no kernel"


def by_op(records):
    """{operation: its records}, in the order of OPS."""
    found = {op: [one for one in records if op_of(one) == op] for op in OPS}
    return {op: some for op, some in found.items() if some}


def distribution(records):
    """An operation and state per line: percentiles of the ratio over the shapes of all seeds."""
    rows = []
    for op, some in by_op(records).items():
        for state, word in STATES.items():
            ratios = [ratio(one) for one in worst_first(some, state)]
            if ratios:
                slower = sum(one < 1 for one in ratios)
                alone = sum(one["state"] == state for one in some) - len(ratios)
                rows.append([op, word, len(ratios), alone or None,
                             *(f"{percentile(ratios, share):.2f}" for share in PERCENT.values()),
                             f"{100 * slower / len(ratios):.0f}%"])
    head = ["shapes of", "state", "shapes", "without an alternative", *PERCENT, "below 1"]
    return [Table(head, rows, 2)]


def worst(records):
    """The worst shapes of each operation: of a shape's states the worse one counts."""
    blocks = []
    for op, some in by_op(records).items():
        states: dict = {}
        for one in some:
            if ratio(one) is not None:
                states.setdefault(record_key(one)[0], []).append(one)
        shapes = sorted(((min(same, key=ratio), same) for same in states.values()),
                        key=lambda pair: ratio(pair[0]))[:WORST]
        rows = [[text_of(one), STATES[one["state"]], f"{ratio(one):.2f}", other_ratio(one, same),
                 best_alternative(one)[0], _microseconds(one["ours"]),
                 one["ours"].get("row") or NONE] for one, same in shapes]
        head = ["shape", "state", "ratio", "other state's", "alternative", "ours, us", "kernel row"]
        blocks += captioned(Table(head, rows, 2, f"The worst shapes of {op}"))
    return blocks


def text_of(record):
    """The shape without what its table says."""
    return label(record["op"], record["params"]).removeprefix(f"{record['op']} ").replace(
        "sparse w ", "")


def other_ratio(record, same):
    return ", ".join(f"{ratio(one):.2f}" for one in same if one is not record)


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
