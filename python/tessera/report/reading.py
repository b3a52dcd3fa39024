"""Result files, checked before anything is made of them, and put together by card."""

import os
from dataclasses import dataclass

from ..bench import results as result_files
from ..bench.cases import CaseError, label, make_case
from ..bench.machine_code import in_words


@dataclass
class Card:
    """One machine, and what was measured on it."""
    key: tuple  # equal of equal machines
    title: str
    results: list
    files: list  # their names
    kernels: dict | None  # those of the tree; None where they are not known, and of a CPU

    @property
    def records(self):
        return [record for result in self.results for record in result["cases"]]

    def stale_of(self, records):
        """A line about the stale ones of these records; nothing if none is."""
        return in_words(records, self.kernels)


def read(path):
    result = result_files.read(path)
    result_files.complain(path, case_problems(result["cases"]))
    return result


def case_problems(records):
    """Parameters that no case has, as texts."""
    found = []
    for number, record in enumerate(records):
        try:
            made = make_case(record["op"], record["params"])
            label(record["op"], record["params"])
            density = record["params"].get("density", 1)
            if made.params != record["params"]:
                raise CaseError("a parameter is missing")
            if not 0 < density <= 1:
                raise CaseError(f"density: expected more than 0, up to 1, got {density!r}")
        except (CaseError, KeyError, TypeError, ValueError, OverflowError) as error:
            found.append(f"cases[{number}]: params: {error}")
    return found


def machine_of(result):
    """Results of equal machines belong together."""
    gpu = result["gpu"]
    if gpu is None:
        return ("cpu", result["cpu"]["name"])
    return tuple(gpu.get(field) for field in result_files.CARD)


def title_of(result):
    gpu = result["gpu"]
    if gpu is None:
        return result["cpu"]["name"]
    return gpu["name"] + (f", {gpu['power_limit_w']:.0f} W" if gpu["power_limit_w"] else "")


def read_all(paths):
    """{the file's name: its result}, without what a newer one of them has of the same machine."""
    results = {}
    for path in paths:
        name = os.path.basename(path)
        results[name if name not in results else str(path)] = read(path)
    result_files.newest(results.values(), machine_of)
    return results


def cards(results, kernels=None):
    """Each machine with all that these files have of it. kernels: those of the tree."""
    found = {}
    for file, result in results.items():
        key = machine_of(result)
        card = found.setdefault(key, Card(key, title_of(result), [], [],
                                          kernels if result["gpu"] else None))
        card.results.append(result)
        card.files.append(file)
    return list(found.values())
