#!/usr/bin/env python3
"""Checks the committed results of bench/results: each has the shape that tessera.bench writes, was
measured on a GPU from known sources, and counts each case once. Says which are stale, that is,
measured before the kernel sources last changed; that alone fails only with --fresh.

Usage: scripts/check_results.py [--fresh] [FILE...]
"""

import argparse
import importlib
import json
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fresh", action="store_true", help="stale results fail")
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    files = arguments.files or sorted((ROOT / "bench" / "results").glob("*.json"))
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
        found = problems_of(result)
        for text in found:
            print(f"{path}: {text}")
        failed |= bool(found)
        stale = [] if found else sources.stale_hashes(sources.measured_at(result), current)
        if stale:
            print(f"{path}: stale, measured at {', '.join(stale)}")
            failed |= arguments.fresh
    print(f"check_results: {len(files)} files, kernel sources {', '.join(current.values())}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
