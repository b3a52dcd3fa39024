#!/usr/bin/env python3
"""Checks the committed results of bench/results: each has the shape that tessera.bench writes, was
measured on a GPU, and counts each case once. Lists the stale cases of each file: those whose
machine code is not that of bench/machine_code.json. That alone fails only with --fresh. Profiles,
in bench/results/profiles, have the shape of profiles, and a text that says the same.

Usage: tools/check_results.py [--fresh] [FILE...]
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


def stale_lines(value, kernels):
    """What is stale of a result or a profile: a line about it all, then one for each case."""
    code, cases = bench_module("machine_code"), bench_module("cases")
    if "cases" not in value:
        stale = code.is_stale(value["op"], value["row"], value["params"]["dtype"],
                              value["machine_code"], kernels)
        return ["stale"] if stale else []
    return code.in_words(value["cases"], kernels) + [
        f"  {cases.label(record['op'], record['params'])} ({record['state']})"
        for record in code.stale(value["cases"], kernels)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fresh", action="store_true", help="stale cases fail")
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    results = ROOT / "bench" / "results"
    files = arguments.files or [*sorted(results.glob("*.json")),
                                *sorted((results / "profiles").glob("*.json"))]
    kernels = bench_module("machine_code").committed(ROOT)
    failed = kernels is None
    if failed:
        print(f"no {ROOT / 'bench' / 'machine_code.json'}")
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
        stale = [] if found or kernels is None else stale_lines(result, kernels)
        if stale:
            print(f"{path}: " + "\n".join(stale))
            failed |= arguments.fresh
    print(f"check_results: {len(files)} files")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
