#!/usr/bin/env python3
"""Everything that needs a GPU, in one run: the C++ GPU tests, compute-sanitizer over a few of them,
the Python GPU tests, and the benchmark. Uses what is built already, needs no network, and writes
one JSON in the shape of bench/schema.json.

  scripts/gpu_check.py                              all of it, into bench/results/CARD-check.json
  scripts/gpu_check.py --quick                      under a minute
  scripts/gpu_check.py --shard 2/4 --budget 500     a part, in so many seconds
  scripts/gpu_check.py --resume --budget 500        go on where the file stopped
  scripts/gpu_check.py --merge A.json B.json --out C.json
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

from check_results import ROOT, bench_module, problems_of

STEPS = ("cpp", "sanitizer", "python", "bench")
SANITIZED_TESTS = 3  # of each executable, spread over it
GTEST_SKIPPED = 77
SANITIZER_FOUND = 9
AGAIN = 3  # what a suite returns when the device is lost to its process
MOST_STARTS = 10


def say(text):
    print(f"gpu-check: {text}", flush=True)


class Clock:
    """What is left of the budget."""

    def __init__(self, budget):
        self.end = None if budget is None else time.monotonic() + budget

    def left(self, most=3600.0):
        return most if self.end is None else max(1.0, min(most, self.end - time.monotonic()))

    @property
    def spent(self):
        return self.end is not None and time.monotonic() > self.end - 2


def run(command, timeout, environment=None):
    """(exit status or None where it ran out of time, the end of its output)."""
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env=environment,
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return None, output


def outcome(name, status, seconds, output, skipped=()):
    """One entry of "tests"."""
    word = "passed" if status == 0 else "skipped" if status in skipped else "failed"
    entry = {"name": name, "outcome": word, "seconds": round(seconds, 3)}
    if word != "passed":
        lines = [line for line in output.strip().splitlines() if line.strip()]
        reason = "out of time" if status is None else f"exit status {status}"
        entry["detail"] = " / ".join([reason, *lines[-6:]])[:1500]
    return entry


def executables(build):
    found = sorted((build / "tests").glob("gpu_*"))
    return [path for path in found if os.access(path, os.X_OK) and path.is_file()]


def cpp_tests(build, clock, work):
    """Each test of each executable, from GoogleTest's own report."""
    tests = []
    found = executables(build)
    if not found:
        tests.append({"name": "cpp", "outcome": "failed",
                      "detail": f"no {build}/tests/gpu_*: build the target tessera_gpu_tests"})
    for path in found:
        report = work / f"{path.name}.json"
        report.unlink(missing_ok=True)
        start = time.monotonic()
        status, output = run([path, f"--gtest_output=json:{report}"], clock.left(900))
        seconds = time.monotonic() - start
        parsed = gtest_outcomes(path.name, report) if status in (0, 1) else []
        if status not in (0, 1) or not parsed:
            parsed.append(outcome(f"cpp.{path.name}", status, seconds, output, (GTEST_SKIPPED,)))
        tests += parsed
        say(f"{path.name}: {summary(parsed)}, {seconds:.1f} s")
    return tests


def gtest_outcomes(executable, report):
    if not report.exists():
        return []
    tests = []
    for suite in json.loads(report.read_text()).get("testsuites", []):
        for case in suite.get("testsuite", []):
            failed, skipped = case.get("failures"), case.get("result") == "SKIPPED"
            entry = {"name": f"cpp.{executable}.{suite['name']}.{case['name']}",
                     "outcome": "failed" if failed else "skipped" if skipped else "passed",
                     "seconds": float(case.get("time", "0s").rstrip("s"))}
            if failed:
                entry["detail"] = failed[0].get("failure", "")[:1500]
            tests.append(entry)
    return tests


def sanitizer_tests(build, clock, quick):
    """memcheck and racecheck over a few tests of each executable: a whole run takes minutes."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return [{"name": "sanitizer", "outcome": "skipped",
                 "detail": "no compute-sanitizer on PATH"}]
    tests = []
    for path in executables(build):
        _, listing = run([path, "--gtest_list_tests"], 60)
        names = spread(listed_tests(listing), 1 if quick else SANITIZED_TESTS)
        for check in ("memcheck",) if quick else ("memcheck", "racecheck"):
            if not names or clock.spent:
                continue
            start = time.monotonic()
            status, output = run([tool, "--tool", check, "--error-exitcode", SANITIZER_FOUND, path,
                                  "--gtest_filter=" + ":".join(names)], clock.left(300))
            seconds = time.monotonic() - start
            tests.append(outcome(f"sanitizer.{check}.{path.name}", status, seconds, output,
                                 (GTEST_SKIPPED,)))
            say(f"{check} {path.name}: {tests[-1]['outcome']}, {len(names)} tests, {seconds:.1f} s")
    return tests


def listed_tests(text):
    """Names of --gtest_list_tests: suites at the margin, tests below them."""
    names, suite = [], None
    for line in text.splitlines():
        if line and not line[0].isspace() and line.split("#")[0].rstrip().endswith("."):
            suite = line.split("#")[0].strip()
        elif suite and line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
    return [name for name in names if "DISABLED_" not in name]


def spread(names, count):
    if len(names) <= count:
        return names
    return [names[i * len(names) // count] for i in range(count)]


def python_tests(environment, clock, work):
    report = work / "pytest.xml"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    status, output = run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/python", "-p",
                          "no:cacheprovider", f"--junitxml={report}"], clock.left(900),
                         environment)
    seconds = time.monotonic() - start
    if status == 5:  # pytest's code for "no test was collected"
        tests = [{"name": "python", "outcome": "skipped", "detail": "no test is marked gpu"}]
    else:
        tests = junit_outcomes(report)
        if status not in (0, 1) or not tests:
            tests.append(outcome("python", status or 1, seconds, output))
    say(f"python: {summary(tests)}, {seconds:.1f} s")
    return tests


def junit_outcomes(report):
    if not report.exists():
        return []
    tests = []
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        entry = {"name": f"python.{case.get('classname')}.{case.get('name')}",
                 "outcome": "failed" if bad is not None else
                 "skipped" if skipped is not None else "passed",
                 "seconds": float(case.get("time", 0))}
        reason = bad if bad is not None else skipped
        if reason is not None:
            entry["detail"] = (reason.get("message") or reason.text or "")[:1500]
        tests.append(entry)
    return tests


def summary(tests):
    words = [test["outcome"] for test in tests]
    return ", ".join(f"{words.count(word)} {word}" for word in ("passed", "failed", "skipped")
                     if word in words)


def benchmark(options, out, environment, clock):
    """The suite, started again where a competitor took the device or the process down with it."""
    common = ["-m", "tessera.bench", "suite", *options.workloads, "--json", out, "--peers",
              options.peers, "--seconds", options.seconds, "--shard", options.shard,
              "--tree", ROOT]
    if options.commit:
        common += ["--commit", options.commit]
    if options.again:
        common += ["--again", options.again]
    resume = options.resume
    for start in range(MOST_STARTS):
        command = [sys.executable, *common, *(["--resume"] if resume else [])]
        limit = clock.left(24 * 3600)
        if clock.end is not None:
            command += ["--budget", f"{max(1.0, limit - 20):.0f}"]
        process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env=environment)
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return "the budget is spent; run again with --resume"
        if status != AGAIN and status >= 0:
            return {0: None, 4: "the budget is spent; run again with --resume"}.get(
                status, f"some cases could not be measured (exit status {status})")
        say(f"the benchmark's process ended with {status}: starting it again (start {start + 2})")
        resume = True
        if clock.spent:
            return "the budget is spent; run again with --resume"
    return f"gave up after {MOST_STARTS} starts"


def write_tests(out, tests, environment, options):
    """Puts the outcomes beside the cases; where there are none yet, makes the file."""
    results = bench_module("results")
    if not out.exists():
        # A suite without cases writes the header: which card, which sources.
        empty = out.with_suffix(".empty")
        empty.write_text('{"cases": []}')
        command = [sys.executable, "-m", "tessera.bench", "suite", empty, "--json", out, "--tree",
                   ROOT, "--quiet", *(["--commit", options.commit] if options.commit else [])]
        status, output = run(command, 300, environment)
        empty.unlink()
        if status != 0:
            say(f"could not write {out}: {output.strip()[-500:]}")
            return None
    result = results.read(out)
    merged = {test["name"]: test for test in result["tests"] + tests}
    result["tests"] = list(merged.values())
    results.write(out, result)
    return result


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cuda",
                        help="the build folder that holds tests/gpu_* [build/cuda]")
    parser.add_argument("--python-path", action="append", default=[], metavar="DIR",
                        help="a folder with the tessera package, or with peers; may come again")
    parser.add_argument("--workloads", nargs="+", help="default: bench/workloads/check.json")
    parser.add_argument("--peers", default="all")
    parser.add_argument("--seconds", type=float, default=2.0, help="sustained, a competitor [2]")
    parser.add_argument("--shard", default="1/1", help="I/N: every N-th case, from the I-th on")
    parser.add_argument("--budget", type=float, help="seconds for everything")
    parser.add_argument("--resume", action="store_true", help="go on with the file")
    parser.add_argument("--again", default="", help="peers: again where they were unavailable")
    parser.add_argument("--quick", action="store_true",
                        help="under a minute: bursts of a few cases")
    parser.add_argument("--skip", default="", help=f"some of {','.join(STEPS)}")
    parser.add_argument("--commit", help="of the sources, where git cannot say")
    parser.add_argument("--out", type=Path, help="default: bench/results/CARD-check.json")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="only join these into --out")
    options = parser.parse_args(arguments)
    skipped = set(filter(None, options.skip.split(",")))
    if skipped - set(STEPS):
        parser.error(f"--skip: expected some of {','.join(STEPS)}, got {options.skip}")
    if options.merge and not options.out:
        parser.error("--merge needs --out")
    options.steps = [step for step in STEPS if step not in skipped]
    if options.workloads is None:
        options.workloads = [f"bench/workloads/{'quick' if options.quick else 'check'}.json"]
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
    results = bench_module("results")
    try:
        merged = results.merge([results.read(path) for path in options.merge], options.merge)
    except (results.Mixed, OSError, ValueError, KeyError) as error:
        say(f"not merged: {error}")
        return 1
    results.write(options.out, merged)
    say(f"{options.out}: {len(merged['cases'])} cases, {len(merged['tests'])} tests")
    return check(merged)


def check(result):
    found = problems_of(result, json.loads((ROOT / "bench" / "schema.json").read_text()))
    for text in found:
        say(f"schema: {text}")
    return 1 if found else 0


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
    kind = "quick" if options.quick else "check"
    out = (options.out or ROOT / "bench" / "results" / f"{card}-{kind}{part}.json").resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        out.unlink(missing_ok=True)
    work = out.parent / f".{out.stem}-work"
    work.mkdir(exist_ok=True)
    tests, complaint = [], None
    try:
        if "cpp" in options.steps:
            tests += cpp_tests(options.build, clock, work)
        if "sanitizer" in options.steps and not clock.spent:
            tests += sanitizer_tests(options.build, clock, options.quick)
        if "python" in options.steps and not clock.spent:
            tests += python_tests(environment, clock, work)
        if "bench" in options.steps and not clock.spent:
            complaint = benchmark(options, out, environment, clock)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        result = write_tests(out, tests, environment, options)
    if complaint:
        say(complaint)
    if result is None:
        return 1
    say(f"{out}: {len(result['cases'])} cases; tests: {summary(result['tests']) or 'none'}")
    failed = [test["name"] for test in result["tests"] if test["outcome"] == "failed"]
    for name in failed:
        say(f"failed: {name}")
    return check(result) or (1 if failed or complaint else 0)


if __name__ == "__main__":
    sys.exit(main())
