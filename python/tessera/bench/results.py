"""Result files: read, checked, continued and merged."""

import itertools
import json
import math
from operator import itemgetter

from . import schema
from .cases import CaseError, case_key, make_case
from .files import Unreadable, read_json

SCHEMA = 1
# Files are of one kind of card if these fields agree.
CARD = ("name", "compute_capability", "power_limit_w")


class Mixed(ValueError):
    """Files that cannot be merged."""


def read(path):
    """The result in a file; raises Unreadable if it is not one."""
    result = read_json(path)
    if isinstance(result, dict) and result.get("schema", SCHEMA) != SCHEMA:
        raise Unreadable(f"{path}: schema: expected {SCHEMA}, the version that this program reads, "
                         f"got {json.dumps(result['schema'])[:60]}")
    complain(path, problems(result))
    return result


def endings(tests):
    """The number of tests per outcome, as a text."""
    ended = [test["outcome"] for test in tests]
    return ", ".join(f"{ended.count(word)} {word}"
                     for word in ("passed", "failed", "unfinished", "skipped") if word in ended)


def verified(result):
    """The outcome of the random problems as a text, a sentence per operation; empty if there were
    none."""
    runs = {}
    for run in result.get("verify", ()):
        runs.setdefault(run["op"], []).append(run)
    return ". ".join(filter(None, (_verified(op, found) for op, found in runs.items())))


def _verified(op, runs):
    problems, right, refused = (sum(run[key] for run in runs)
                                for key in ("problems", "right", "refused"))
    if not problems:
        return ""
    wrong = [str(seed) for run in runs for seed in run["failed"]]
    ended = "all right" if right == problems else ", ".join(
        f"{count} {word}" for count, word in ((right, "right"), (refused, "refused"),
                                              (len(wrong), "wrong")) if count)
    seeds = f" (seeds {', '.join(wrong)})" if wrong else ""
    kind = "attention and products" if op == "all" else op
    return (f"{problems} random problems of {kind} against double precision: {ended}{seeds}; "
            f"the worst right one took {max(run['worst'] for run in runs):.2f} of its budget")


def complain(path, found):
    """Raises Unreadable if there are errors."""
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Unreadable(f"{path}: {found[0]}{more}")


def problems(result):
    """The errors in the JSON of a result, as texts."""
    found = schema.problems(result, schema.of_results())
    if found:
        return found
    seen = set()
    for number, record in enumerate(result["cases"]):
        if fault := _params_fault(record):
            found.append(f"cases[{number}]: params: {fault}")
        if record_key(record) in seen:
            found.append(f"{record_key(record)} comes twice")
        seen.add(record_key(record))
        for name, entry in {"ours": record["ours"], **record["peers"]}.items():
            found += _consistency(record_key(record), name, entry, record["useful_flops"])
    return found


def _params_fault(record):
    """The error in a record's parameters, or None."""
    try:
        if make_case(record["op"], record["params"]).params != record["params"]:
            return "a parameter is missing"
        density = record["params"].get("density", 1)
        if not 0 < density <= 1:
            return f"density: expected more than 0, up to 1, got {density!r}"
    except (CaseError, KeyError, TypeError, ValueError, OverflowError) as error:
        return str(error)
    return ""


def _consistency(key, name, entry, useful_flops):
    """Errors of TFLOPS that do not follow from the time and the operations."""
    if "unavailable" in entry:
        return []
    if entry["ms"] <= 0:
        return [f"{key}: {name}: ms: expected more than 0, got {entry['ms']}"]
    expected = useful_flops / entry["ms"] / 1e9
    if math.isinf(expected) or abs(entry["tflops"] - expected) > 1e-3 * expected:
        return [f"{key}: {name}: tflops is {entry['tflops']:g}, the time says {expected:g}"]
    return []


def machine_of(result):
    """The key of a result's machine, equal for equal machines."""
    gpu = result["gpu"]
    return tuple(gpu.get(field) for field in CARD) if gpu else ("cpu", result["cpu"]["name"])


def record_key(record):
    return case_key(record["op"], record["params"]), record["state"]


# {section of a result: key of its entries}. Of entries with equal keys, only the newest counts.
FIGURES: dict = {"cases": record_key, "host": itemgetter("call"), "eager": itemgetter("call")}
SECTIONS: dict = {**FIGURES, "tests": itemgetter("name"),
                  "verify": itemgetter("op", "device", "first_seed"),
                  "sweeps": itemgetter("op", "seed", "state")}


def newest(results):
    """Removes figures from results if a newer result of the same machine has them too."""
    seen = set()
    for result in sorted(results, key=lambda result: result["date"], reverse=True):
        keys = set()
        for section, key_of in FIGURES.items():
            here = [((machine_of(result), section, key_of(one)), one)
                    for one in result.get(section, ())]
            result[section] = [one for key, one in here if key not in seen]
            keys.update(key for key, _ in here)
        seen |= keys


def require_same(first, second, names=("the first file", "the second file")):
    """Raises Mixed unless both were measured on one kind of card. Records have hashes of their
    machine code, so the kernels may differ."""
    if (first["gpu"] is None) != (second["gpu"] is None):
        raise Mixed("one file is from a GPU, the other is not")
    if first["gpu"] is None and first["cpu"]["name"] != second["cpu"]["name"]:
        raise Mixed(f"CPUs differ: {first['cpu']['name']} and {second['cpu']['name']}")
    for field in CARD if first["gpu"] else ():
        one, other = first["gpu"].get(field), second["gpu"].get(field)
        if one != other:
            raise Mixed(f"cards differ: {field} is {one} in {names[0]}, {other} in {names[1]}")


def part_of(result):
    """The information that is kept about a merged file."""
    driver = result["gpu"]["driver"] if result["gpu"] else None
    return {"date": result["date"], "driver": driver, "commit": result["commit"],
            "ceilings": result["ceilings"], "cases": len(result["cases"])}


def add_part(result, former):
    """Records the parts of the file that `result` continues, if its commit differs."""
    if former["commit"] != result["commit"]:
        result["parts"] = [*(former.get("parts") or [part_of(former)]),
                           {**part_of(result), "ceilings": {}, "cases": 0}]


def merge(results, names=None):
    """Merges results; of duplicate entries, the newer one is kept."""
    names = names or [f"file {number + 1}" for number in range(len(results))]
    if not results:
        raise Mixed("nothing to merge")
    for result, name in zip(results[1:], names[1:], strict=True):
        require_same(results[0], result, (names[0], name))
    ordered = sorted(results, key=lambda result: result["date"])
    merged = {**ordered[-1], "ceilings": {}}
    merged["parts"] = [part for result in ordered
                       for part in result.get("parts") or [part_of(result)]]
    for result in ordered:
        merged["ceilings"].update(result["ceilings"])  # with shards, mostly from the first one
    for section, key_of in SECTIONS.items():
        found = {key_of(one): one for result in ordered for one in result.get(section, ())}
        merged[section] = list(found.values())
    turns = {case: turn for turn, case in enumerate(_in_turns(results))}
    merged["cases"].sort(key=lambda record: turns[record_key(record)[0]])
    if any("interrupted" in result for result in ordered):
        merged["interrupted"] = True
    return merged


def _in_turns(results):
    """The keys of the cases, one of each result in turn: the workload's order for shards."""
    columns = [dict.fromkeys(record_key(record)[0] for record in result["cases"])
               for result in results]
    turns = itertools.zip_longest(*columns)
    return list(dict.fromkeys(case for turn in turns for case in turn if case is not None))
