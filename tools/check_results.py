#!/usr/bin/env python3
"""Checks the committed results of bench/results: each must match the schema of tessera.bench, come
from a GPU, and have each case once. Lists the stale cases of each file, whose machine code differs
from bench/machine_code.json. Stale cases fail only with --fresh.

Usage: tools/check_results.py [--fresh] [FILE...]
"""

import argparse
import importlib
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def package_module(name):
    """A module of tessera, such as "bench.cases", without importing tessera, which requires its
    compiled library. A package of another name has the same folder instead."""
    package = "tessera_sources"
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(ROOT / "python" / "tessera")]
    return importlib.import_module(f"{package}.{name}")


def bench_module(name):
    return package_module(f"bench.{name}")


def problems_of(result):
    """The errors of a result, as texts."""
    found = bench_module("results").problems(result)
    if not found and result["gpu"] is None:
        found.append("gpu: committed results come from a GPU")
    found = found or bench_module("ratios").summary_faults(result)
    return found


def stale_lines(records, kernels):
    """The stale records: a summary line, then a line per case."""
    code, label = bench_module("machine_code"), bench_module("cases").label
    return code.in_words(records, kernels) + [
        f"  {label(record['op'], record['params'])} ({record['state']})"
        for record in code.stale(records, kernels)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fresh", action="store_true", help="stale cases fail")
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    results = ROOT / "bench" / "results"
    files = arguments.files or sorted([*results.glob("*.json"), *results.glob("shapes/*.json")])
    kernels = bench_module("machine_code").committed(ROOT)
    found = [] if kernels else [f"no {ROOT / 'bench' / 'machine_code.json'}"]
    stale = []
    for path in files:
        try:
            result = bench_module("files").read_json(path)
        except ValueError as error:
            found.append(str(error))
            continue
        wrong = problems_of(result)
        found += [f"{path}: {text}" for text in wrong]
        if not wrong and (lines := stale_lines(result["cases"], kernels)):
            stale.append(f"{path}: " + "\n".join(lines))
    print("\n".join([*found, *stale, f"check_results: {len(files)} files"]))
    return 1 if found or (stale and arguments.fresh) else 0


if __name__ == "__main__":
    sys.exit(main())
