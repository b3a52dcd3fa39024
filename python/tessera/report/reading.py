"""Result files, checked before anything is made of them, and put together by card."""

import os
from dataclasses import dataclass, field

from ..bench import results as result_files
from ..bench import schema
from ..bench.cases import CaseError, label, make_case
from ..bench.files import read_json
from ..bench.sources import measured_at, stale_hashes
from . import ceilings


@dataclass
class Card:
    """One machine, and what was measured on it."""
    key: tuple  # equal of equal machines
    title: str
    results: list
    files: list  # their names
    stale: list  # hashes of kernels that have changed since
    launches: dict = field(default_factory=dict)  # what profiles know: {row: registers and so on}

    @property
    def records(self):
        return [record for result in self.results for record in result["cases"]]

    def stale_of(self, records):
        """A line about those of them whose kernels have changed since; nothing if none have."""
        found = set()
        for result in self.results:
            shown = [one for one in records if any(one is other for other in result["cases"])]
            found.update(measured_at(result, shown) if shown else ())
        old = sorted(found.intersection(self.stale))
        part = "in part " if len(old) < len(found) else ""
        return [f"{part}stale, measured at {', '.join(old)}"] if old else []

    @property
    def ceilings(self):
        return ceilings.best_of(self.results)


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


def cards(results, current=None):
    """Each machine with all that these files have of it. current: the hashes of the tree."""
    found = {}
    for file, result in results.items():
        key = machine_of(result)
        card = found.setdefault(key, Card(key, title_of(result), [], [], []))
        card.results.append(result)
        card.files.append(file)
        stale = stale_hashes(measured_at(result), current)
        card.stale += [one for one in stale if one not in card.stale]
    return list(found.values())


def add_profiles(cards, paths):
    """To each card what these extracts know of its kernels: of that card, from the sources that
    its results were measured from."""
    for path in paths:
        profile = read_json(path)
        result_files.complain(path, schema.problems(profile, schema.of_profiles()))
        for card in cards:
            hashes = {one for result in card.results for one in measured_at(result)}
            names = {(result["gpu"] or {}).get("name") for result in card.results}
            if profile["gpu"] in names and profile["source_hash"] in hashes:
                card.launches[profile["row"]] = profile["launch"]
