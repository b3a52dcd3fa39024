#!/usr/bin/env python3
"""Checks the committed results of bench/results: each has the shape that tessera.bench writes, was
measured on a GPU from known sources, and counts each case once. Says which are stale, that is,
measured before the kernel sources last changed; that alone fails only with --fresh. Profiles, in
bench/results/profiles, have the shape of profiles, and a text that says the same.

Usage: scripts/check_results.py [--fresh] [FILE...]
"""

import argparse
import importlib
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_module(name):
    """A module of tessera, such as "bench.cases", without what tessera itself imports: that needs
    its compiled library. A package of another name stands in, with the same folder."""
    package = "tessera_sources"
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(ROOT / "python" / "tessera")]
    return importlib.import_module(f"{package}.{name}")


def bench_module(name):
    return package_module(f"bench.{name}")


def problems_of(result):
    """What is wrong with a result as JSON, as texts."""
    found = bench_module("results").problems(result)
    if found:
        return found
    if result["gpu"] is None:
        found.append("gpu: committed results come from a GPU")
    if result["source_hash"] is None:
        found.append("source_hash: committed results name their kernel sources")
    return found


def profile_problems(profile, text=None):
    """What is wrong with a profile as JSON, and with its text."""
    schema = bench_module("schema")
    found = schema.problems(profile, schema.of_profiles())
    if not found and text is not None and text != bench_module("profiles").text_of(profile):
        found.append("the text beside it is not what it gives")
    return found


def problems_of_file(path, value):
    if path.parent.name != "profiles":
        return problems_of(value)
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
    sources = bench_module("sources")
    current = sources.source_hashes(ROOT)
    failed = False
    for path in files:
        try:
            result = bench_module("files").read_json(path)
        except ValueError as error:
            print(error)
            failed = True
            continue
        found = problems_of_file(path, result)
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
