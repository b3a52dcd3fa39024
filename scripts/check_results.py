#!/usr/bin/env python3
"""Checks the committed results of bench/results: each has the shape of bench/schema.json, was
measured on a GPU from known sources, and counts each case once. Says which are stale, that is,
measured before the kernel sources last changed; that alone fails only with --fresh. Profiles, in
bench/results/profiles, have the shape of bench/profile_schema.json, and a text that says the same.

Usage: scripts/check_results.py [--fresh] [FILE...]
"""

import argparse
import importlib
import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def bench_module(name):
    """A module of tessera.bench without importing tessera, which needs its compiled library."""
    package = "tessera_bench"
    if package not in sys.modules:
        folder = ROOT / "python" / "tessera" / "bench"
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)])
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


def problems_of(result, schema):
    """What is wrong with a result as JSON, as texts."""
    found = bench_module("schema").problems(result, schema)
    if found:
        return found
    key = bench_module("results").record_key
    seen = set()
    for record in result["cases"]:
        if key(record) in seen:
            found.append(f"{key(record)} comes twice")
        seen.add(key(record))
        entries = {"ours": record["ours"], **record["peers"]}
        for name, entry in entries.items():
            found += consistency(key(record), name, entry, record["useful_flops"])
    if result["gpu"] is None:
        found.append("gpu: committed results come from a GPU")
    if result["source_hash"] is None:
        found.append("source_hash: committed results name their kernel sources")
    return found


def consistency(key, name, entry, useful_flops):
    """TFLOPS that are not what the time and the operations say."""
    if "unavailable" in entry:
        return []
    if entry["ms"] <= 0:
        return [f"{key}: {name}: ms: expected more than 0, got {entry['ms']}"]
    expected = useful_flops / entry["ms"] / 1e9
    if abs(entry["tflops"] - expected) > 1e-3 * expected:
        return [f"{key}: {name}: tflops is {entry['tflops']:g}, the time says {expected:g}"]
    return []


def profile_problems(profile, text=None):
    """What is wrong with a profile as JSON, and with its text."""
    schema = json.loads((ROOT / "bench" / "profile_schema.json").read_text())
    found = bench_module("schema").problems(profile, schema)
    if not found and text is not None and text != bench_module("profiles").text_of(profile):
        found.append("the text beside it is not what it gives")
    return found


def problems_of_file(path, value, schema):
    if path.parent.name != "profiles":
        return problems_of(value, schema)
    text = path.with_suffix(".txt")
    return profile_problems(value, text.read_text(encoding="utf-8") if text.exists() else "")


def measured_at(value):
    """The hashes of a result, or the one of a profile."""
    if "cases" in value:
        return bench_module("sources").measured_at(value)
    return [value["source_hash"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fresh", action="store_true", help="stale results fail")
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    results = ROOT / "bench" / "results"
    files = arguments.files or [*sorted(results.glob("*.json")),
                                *sorted((results / "profiles").glob("*.json"))]
    schema = json.loads((ROOT / "bench" / "schema.json").read_text())
    sources = bench_module("sources")
    current = sources.source_hashes(ROOT)
    failed = False
    for path in files:
        try:
            result = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            print(f"{path}: {error}")
            failed = True
            continue
        found = problems_of_file(path, result, schema)
        for text in found:
            print(f"{path}: {text}")
        failed |= bool(found)
        stale = [] if found else sources.stale_hashes(measured_at(result), current)
        if stale:
            print(f"{path}: stale, measured at {', '.join(stale)}")
            failed |= arguments.fresh
    print(f"check_results: {len(files)} files, kernel sources {', '.join(current.values())}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
