#!/usr/bin/env python3
"""Everything that needs a GPU, in one run: the C++ GPU tests, compute-sanitizer over a few of them,
the Python GPU tests, random problems against float64, what calls cost the host, the card's
ceilings, and the benchmark. Uses what is built already, needs no network, and writes one JSON in
the shape of python/tessera/bench/schema.json.

  tools/gpu_check.py                              all of it, into bench/results/CARD-check.json
  tools/gpu_check.py --quick                      a short look
  tools/gpu_check.py --shard 2/4 --budget 500     a part, in so many seconds
  tools/gpu_check.py --resume --budget 500        go on where the file stopped
  tools/gpu_check.py --merge A.json B.json --out C.json
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from check_results import ROOT, bench_module, problems_of
from gpu_steps import TEST_STEPS, Clock, Context, endings, executables, run, say

STEPS = (*TEST_STEPS, "bench")
AGAIN = 3  # what a suite returns when the device is lost to its process
MOST_STARTS = 10
SPENT = "the budget is spent; run again with --resume"


def suite_command(options, out, *more):
    command = [sys.executable, "-m", "tessera.bench", "suite", *more, "--json", out, "--tree", ROOT,
               "--device", options.device]
    command += ["--commit", options.commit] if options.commit else []
    return [str(part) for part in command]


def start_file(options, out, environment):
    """Makes the result file with its header, or sees whether the one to go on with is of this card.
    Returns it, or None."""
    work = out.with_suffix(".empty")
    work.write_text('{"cases": []}')
    status, output = run(suite_command(options, out, work, "--quiet",
                                       *(["--resume"] if options.resume else [])), 300, environment)
    work.unlink()
    if status == 0:
        return bench_module("results").read(out)
    say(f"could not write {out}: {output.strip()[-500:]}")
    return None


def run_of(name):
    """Which run gave an outcome: the executable, the sanitizer's check of it, or Python."""
    kind, _, rest = name.partition(".")
    return {"cpp": f"cpp.{rest.partition('.')[0]}", "sanitizer": name}.get(kind, kind)


def add_tests(out, tests, *, ceilings=None, **found):
    """Puts outcomes into the file, in place of those of an earlier run of the same; with them what
    was found: sections by name, or the card's ceilings."""
    files = bench_module("files")
    result = files.read_json(out)
    again = {run_of(test["name"]) for test in tests}
    kept = [test for test in result["tests"] if run_of(test["name"]) not in again]
    result["tests"] = kept + tests
    result.update({section: list(entries) for section, entries in found.items() if entries})
    result.get("ceilings", {}).update(ceilings or {})
    files.write_json(out, result)


def forget_tests(out, steps):
    """Takes the outcomes of these steps out of the file, as they ran at another commit. Returns the
    result without them."""
    files = bench_module("files")
    result = files.read_json(out)
    result["tests"] = [test for test in result["tests"]
                       if test["name"].partition(".")[0] not in steps]
    files.write_json(out, result)
    return result


def passed_before(result):
    """Runs that need no repetition: all of their tests have passed."""
    names = {run_of(test["name"]) for test in result["tests"]}
    return names - {run_of(test["name"]) for test in result["tests"]
                    if test["outcome"] in ("failed", "unfinished")}


def benchmark(options, out, environment, clock):
    """The suite, started again where a competitor took the device or the process down with it."""
    common = suite_command(options, out, *options.workloads, "--resume", "--peers", options.peers,
                           "--seconds", options.seconds, "--shard", options.shard)
    for start in range(MOST_STARTS):
        command = list(common)
        limit = clock.left(24 * 3600)
        if clock.end is not None:
            command += ["--budget", f"{max(1.0, limit - 20):.0f}"]
        status, _ = run(command, limit, environment, shown=True)
        if status is None:
            return SPENT
        if status != AGAIN and status >= 0:
            return {0: None, 4: SPENT}.get(
                status, f"some cases could not be measured (exit status {status})")
        say(f"the benchmark's process ended with {status}: starting it again (start {start + 2})")
        if clock.spent:
            return SPENT
    return f"gave up after {MOST_STARTS} starts"


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cuda",
                        help="the build folder that holds tests/gpu_* [build/cuda]")
    parser.add_argument("--race-build", type=Path, metavar="DIR",
                        help="a build with -DCMAKE_CUDA_FLAGS=-DTESSERA_RACECHECK: racecheck takes "
                             "its executables where it has them")
    parser.add_argument("--python-path", action="append", default=[], metavar="DIR",
                        help="a folder with the tessera package, or with peers; may come again")
    parser.add_argument("--workloads", nargs="+", type=Path, metavar="FILE",
                        help="default: bench/workloads/check.json")
    parser.add_argument("--peers", default="all")
    parser.add_argument("--problems", type=int, metavar="N",
                        help="random ones of attention, with those that the file has [2000; quick: "
                             "200]")
    parser.add_argument("--seconds", type=float, default=2.0, help="sustained, a competitor [2]")
    parser.add_argument("--shard", default="1/1",
                        help="I/N: every N-th case, from the I-th on; tests are part of the first")
    parser.add_argument("--budget", type=float, help="seconds for everything")
    parser.add_argument("--resume", action="store_true",
                        help="go on with the file: without the cases whose kernels are unchanged, "
                             "and without tests that have passed at this commit")
    parser.add_argument("--quick", action="store_true",
                        help="a few tests, bursts of a few cases")
    parser.add_argument("--skip", default="", help=f"some of {','.join(STEPS)}")
    parser.add_argument("--commit", help="of the sources, where git cannot say")
    parser.add_argument("--out", type=Path,
                        help="default: bench/results/CARD-WORKLOAD.json, as in h200-check.json")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="only join these into --out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="what the benchmark measures; cpu tries this program out [cuda]")
    options = parser.parse_args(arguments)
    skipped = set(filter(None, options.skip.split(",")))
    if skipped - set(STEPS):
        parser.error(f"--skip: expected some of {','.join(STEPS)}, got {options.skip}")
    if options.problems is None:
        options.problems = 200 if options.quick else 2000
    elif options.problems < 1:
        parser.error(f"--problems: expected 1 and more, got {options.problems}")
    if options.merge and not options.out:
        parser.error("--merge needs --out")
    if not options.shard.startswith("1/"):
        skipped |= set(STEPS) - {"bench"}
    options.steps = [step for step in STEPS if step not in skipped]
    options.workloads = [path.resolve() for path in options.workloads or [
        ROOT / "bench" / "workloads" / f"{'quick' if options.quick else 'check'}.json"]]
    for path in options.workloads:  # before an hour of tests, not after it
        try:
            bench_module("cases").read_workload(path)
        except ValueError as error:
            parser.error(f"--workloads: {error}")
    options.build = options.build.resolve()
    if options.race_build:
        options.race_build = options.race_build.resolve()
        if not executables(options.race_build):
            parser.error("--race-build: expected a build folder with executables tests/gpu_*, got "
                         f"{options.race_build}")
    return options


def card_name(environment):
    """"h200" of "NVIDIA H200"; None where there is no GPU."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        status, output = run(query, 60, environment)
    except OSError:
        return None
    name = output.strip().splitlines()[0] if status == 0 and output.strip() else ""
    words = [word for word in name.replace("-", " ").split() if word not in ("NVIDIA", "GeForce")]
    return words[0].lower() if words else None


def merge(options):
    words = ["merge", *options.merge, "--json", str(options.out)]
    if bench_module("cli").main(words) != 0:
        return 1
    return check(bench_module("results").read(options.out))


def check(result):
    found = problems_of(result)
    for text in found:
        say(f"schema: {text}")
    return 1 if found else 0


def run_tests(options, out, result, environment, clock):
    """All steps before the benchmark; each is in the file before the next one starts."""
    done = passed_before(result) if options.resume else set()
    with tempfile.TemporaryDirectory(prefix=f".{out.stem}-", suffix="-work", dir=out.parent,
                                     ignore_cleanup_errors=True) as work:
        context = Context(options, clock, Path(work), environment, result, done)
        for step in options.steps:
            # Of random problems more may be wanted than have passed.
            if step == "bench" or (step in done and step != "verify") or clock.spent:
                continue
            start = time.monotonic()
            tests, found = TEST_STEPS[step](context)
            add_tests(out, tests, **found)
            say(f"{step}: {endings(tests) or 'nothing to run'}, {time.monotonic() - start:.1f} s")


def main(arguments=None):
    options = parse(arguments)
    if options.merge:
        return merge(options)
    clock = Clock(options.budget)
    environment = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
    paths = [str(Path(path).resolve()) for path in options.python_path]
    paths.append(os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    card = card_name(environment)
    if card is None:
        say("there is no GPU here (nvidia-smi shows none)")
        return 2
    part = "" if options.shard == "1/1" else "-" + options.shard.replace("/", "-of-")
    name = f"{card}-{options.workloads[0].stem}{part}.json"
    out = (options.out or ROOT / "bench" / "results" / name).resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        out.unlink(missing_ok=True)
    try:
        former = bench_module("results").read(out) if out.exists() else None
    except ValueError as error:
        say(f"could not go on with {error}")
        return 1
    result = start_file(options, out, environment)
    if result is None:
        return 1
    if former and former["commit"] != result["commit"]:
        result = forget_tests(out, {*options.steps} - {"ceilings"})
    run_tests(options, out, result, environment, clock)
    complaint = SPENT if clock.spent else None
    if "bench" in options.steps and not clock.spent:
        complaint = benchmark(options, out, environment, clock)
    result = bench_module("files").read_json(out)
    if complaint:
        say(complaint)
    say(f"{out}: {len(result['cases'])} cases; tests: {endings(result['tests']) or 'none'}")
    failed = [test["name"] for test in result["tests"] if test["outcome"] == "failed"]
    for name in failed:
        say(f"failed: {name}")
    return check(result) or (1 if failed or complaint else 0)


if __name__ == "__main__":
    sys.exit(main())
