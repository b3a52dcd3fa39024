"""Several values in one option, and every problem that they describe together."""

import argparse
import itertools

from ..bench.cases import CaseError
from ..bench.options import case_of

MOST_VALUES, MOST_PROBLEMS = 1000, 10_000


def several(kind):
    """Reads "64,128", and of whole numbers "1024:8192", which doubles, and "64:256:64", which
    steps."""
    def read(text):
        values = []
        for part in text.split(","):
            values += _range(part) if kind is int and ":" in part else [kind(part)]
        if len(values) > MOST_VALUES:
            raise argparse.ArgumentTypeError(f"expected at most {MOST_VALUES} values, got "
                                             f"{len(values)}")
        return tuple(dict.fromkeys(values))

    read.__name__ = "numbers"  # argparse says "invalid numbers value"
    return read


def _range(text):
    first, last, *step = (int(part) for part in text.split(":"))
    if not 1 <= first <= last or len(step) > 1 or (step and step[0] < 1):
        raise argparse.ArgumentTypeError(f"expected FIRST:LAST or FIRST:LAST:STEP, rising from 1, "
                                         f"got {text}")
    if step:
        return range(first, min(last, first + MOST_VALUES * step[0]) + 1, step[0])
    doubled = itertools.takewhile(lambda value: value <= last,
                                  (first << power for power in itertools.count()))
    return list(doubled)


def cases_of(arguments, device):
    """A case for each combination of the values of all options."""
    fields = {name: value for name, value in vars(arguments).items() if isinstance(value, tuple)}
    total = 1
    for values in fields.values():
        total *= len(values)
    if total > MOST_PROBLEMS:
        raise CaseError(f"expected at most {MOST_PROBLEMS} problems, got {total}")
    cases = {}
    for choice in itertools.product(*fields.values()):
        one = argparse.Namespace(**{**vars(arguments), **dict(zip(fields, choice, strict=True))})
        case = case_of(one, device)
        cases.setdefault(case.key, case)
    return list(cases.values())
