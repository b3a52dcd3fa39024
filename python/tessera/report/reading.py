"""Result files, put together by card."""

import os
from dataclasses import dataclass

from ..bench import results as result_files


@dataclass
class Card:
    """One machine, and what was measured on it."""
    title: str
    results: dict  # {the file's name: its result}
    kernels: dict | None  # those of the tree; None where they are not known, and of a CPU

    def all(self, section):
        """Of the files that are no sweeps: shapes drawn at random are told apart."""
        return [one for result in self.results.values() if not result.get("sweeps")
                for one in result.get(section, ())]

    def drawn(self):
        """The cases of sweeps."""
        return [one for result in self.results.values() if result.get("sweeps")
                for one in result["cases"]]


def title_of(result):
    """The card and its power limit; of a CPU its name."""
    gpu = result["gpu"]
    if gpu is None:
        return result["cpu"]["name"]
    return gpu["name"] + (f", {gpu['power_limit_w']:.0f} W" if gpu["power_limit_w"] else "")


def parts_of(result):
    """The files that were merged into this one, or the file itself."""
    return result.get("parts") or [result]


def days_of(*results):
    return sorted({part["date"][:10] for result in results for part in parts_of(result)})


def read_all(paths):
    """{the file's name: its result}, without what a newer one of them has of the same machine."""
    results = {}
    for path in paths:
        name = os.path.basename(path)
        results[name if name not in results else str(path)] = result_files.read(path)
    result_files.newest(results.values())
    return results


def cards(results, kernels=None):
    """Each machine with all that these files, {name: result}, have of it. kernels: those of the
    tree."""
    found = {}
    for file, result in results.items():
        card = found.setdefault(result_files.machine_of(result), Card(
            title_of(result), {}, kernels if result["gpu"] else None))
        card.results[file] = result
    return list(found.values())
