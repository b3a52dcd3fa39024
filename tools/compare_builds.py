#!/usr/bin/env python3
"""Times builds of the package beside each other: each measures the cases with its own benchmark,
one after the other on one device, every other turn in the opposite order, as who runs behind whom
makes a difference of several percent.

  tools/compare_builds.py OLD NEW --cases "attention --q-length 1024 --causal"
  tools/compare_builds.py OLD NEW --cases bench/workloads/check.json

OLD and NEW are folders with a built package: pip install --no-deps --target OLD . in a checkout.
All kernels of one build beside each other are what `tessera tune --dry-run` shows.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from check_results import bench_module


def measure(build, options, work):
    """{case's key: what the build's benchmark recorded of ours}; nothing where it ended early."""
    out = work / "out.json"
    out.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "tessera.bench", "suite", str(work / "cases.json"),
                    "--device", options.device, "--states", "burst", "--seconds",
                    str(options.seconds), "--peers", "none", "--quiet", "--json", str(out)],
                   check=False, stdout=subprocess.DEVNULL, cwd=work, env=dict(
                       os.environ, PYTHONPATH=str(Path(build).resolve()), TESSERA_TUNING=""))
    cases = json.loads(out.read_text())["cases"] if out.exists() else []
    key = bench_module("cases").case_key
    return {key(one["op"], one["params"]): one["ours"] for one in cases}


def tell(case, measured):
    """Prints what each build took; whether all have times."""
    print(case.label)
    base = None
    for build, turns in measured.items():
        every = [turn.get(case.key, {"unavailable": "not measured"}) for turn in turns]
        reasons = [one["unavailable"] for one in every if "unavailable" in one]
        if reasons:
            print(f"  {build:40} {reasons[0]}")
            continue
        times = [one["ms"] for one in every]
        ms = statistics.median(times)
        base = base or ms
        print(f"  {build:40} {ms * 1e3:9.1f} us  {(max(times) - min(times)) / ms:5.1%}  "
              f"{base / ms:.3f}x  {every[0]['row'] or ''}", flush=True)
    return all("ms" in turn.get(case.key, {}) for turns in measured.values() for turn in turns)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="FOLDER",
                        help="the first is what the others are compared with")
    parser.add_argument("--cases", nargs="+", required=True, metavar="CASE",
                        help="an operation with the options of tessera.bench, or a workload file")
    parser.add_argument("--turns", type=int, default=6, help="of each [6]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a case on a CPU [2]")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    for folder in options.builds:
        if not Path(folder, "tessera", "lib").is_dir() or options.builds.count(folder) > 1:
            parser.error("FOLDER: expected folders with a built package, tessera/lib, each once, "
                         f"got {folder}")
    if options.turns < 1:
        parser.error(f"--turns: expected 1 and more, got {options.turns}")
    try:
        options.cases = [case for text in options.cases for case in (
            bench_module("cases").read_workload(text) if text.endswith(".json")
            else [bench_module("options").parse_case(text)])]
    except (ValueError, OSError) as error:
        parser.error(f"--cases: {error}")
    return options


def main(arguments=None):
    options = parse(arguments)
    measured = {build: [] for build in options.builds}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "cases.json").write_text(json.dumps({"cases": [
            {"op": case.op, "params": case.params} for case in options.cases]}))
        for turn in range(options.turns):
            for build in options.builds[:: -1 if turn % 2 else 1]:
                measured[build].append(measure(build, options, work))
    return 0 if all([tell(case, measured) for case in options.cases]) else 1


if __name__ == "__main__":
    sys.exit(main())
