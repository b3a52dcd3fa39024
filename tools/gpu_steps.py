"""The steps of gpu_check.py before the benchmark. Each runs what is built and returns how that
ended, as entries of a result's "tests", and its figures, {section of the result: figures}."""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from check_results import ROOT, bench_module

FEW_TESTS = 3  # of each executable, spread over it
RACES = "Hostile"  # tests of lists that make two places one: what races there was asked for
GTEST_SKIPPED = 77
SANITIZER_FOUND = 9
CUDA_BIN = "/usr/local/cuda/bin"  # where it is, on PATH or not
MOST_SECONDS = 900  # of one run of tests, even under a sanitizer: what takes longer hangs
LATE = 30  # seconds in which random problems begin and end: PyTorch loads, the last ones are judged
MOST_JOBS = 16  # processes that share random problems and the device


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


@dataclass
class Context:
    """What the steps of one run share."""

    options: object
    clock: Clock
    work: Path  # an empty folder for their reports
    environment: dict = field(default_factory=dict)  # of Python's processes
    result: dict = field(default_factory=dict)  # the file so far
    done: set = field(default_factory=set)  # runs of tests that need no repetition


def run(command, timeout, environment=None, shown=False):
    """(exit status or None where it ran out of time, its output: none where that is shown)."""
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env=environment,
                               text=True, stdout=None if shown else subprocess.PIPE,
                               stderr=None if shown else subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output or ""
    except subprocess.TimeoutExpired:
        return None, stop(process)
    except BaseException:  # Ctrl-C does not reach it: it has a session of its own
        stop(process)
        raise


def stop(process):
    """Ends it and whatever it has started. Returns what it still said."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        output, _ = process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output or ""


def outcome(name, status, seconds, output, cut=False):
    """One entry of "tests". Without a status it was stopped: as it took too long, or (`cut`) as the
    budget of the run ended first, which says nothing of it."""
    word = "passed" if status == 0 else "skipped" if status == GTEST_SKIPPED else "failed"
    if status is None and cut:
        word = "unfinished"
    entry = {"name": name, "outcome": word, "seconds": round(seconds, 3)}
    if word != "passed":
        lines = [line for line in output.strip().splitlines() if line.strip()]
        reason = "out of time" if status is None else f"exit status {status}"
        entry["detail"] = " / ".join([reason, *lines[-6:]])[:1500]
    return entry


def reported_outcomes(prefix, report):
    """The tests of a report in JUnit's form, as GoogleTest and pytest write it; none where there is
    no report or a broken one."""
    try:
        root = xml.etree.ElementTree.parse(report).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return []
    tests = []
    for case in root.iter("testcase"):
        if case.get("status") == "notrun":  # GoogleTest's word for disabled tests
            continue
        entry = {"name": f"{prefix}.{case.get('classname')}.{case.get('name')}",
                 "outcome": "passed", "seconds": float(case.get("time", 0))}
        for tag, word in (("skipped", "skipped"), ("error", "failed"), ("failure", "failed")):
            if (found := case.find(tag)) is not None:
                entry["outcome"] = word
                entry["detail"] = (found.get("message") or found.text or "")[:1500]
        tests.append(entry)
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


def executables(build):
    found = sorted((build / "tests").glob("gpu_*"))
    return [path for path in found if os.access(path, os.X_OK) and path.is_file()]


def timed(context, name, command, most=MOST_SECONDS, **more):
    """(how a command ended, as an entry of "tests"; its exit status; what it said)."""
    start = time.monotonic()
    status, output = run(command, context.clock.left(most), **more)
    seconds = time.monotonic() - start
    return outcome(name, status, seconds, output, context.clock.spent), status, output


def without(name, word, reason):
    """What a step returns that cannot run."""
    return [{"name": name, "outcome": word, "detail": reason}], {}


def endings(tests):
    return bench_module("results").endings(tests)


def cpp_tests(context):
    """Each test of each executable, from GoogleTest's own report."""
    found = executables(context.options.build)
    if not found:
        return without("cpp.build", "failed", f"no {context.options.build}/tests/gpu_*: build the "
                                              "target tessera_gpu_tests")

    def one(path):
        name, report = f"cpp.{path.name}", context.work / f"{path.name}.xml"
        if name in context.done or context.clock.spent:
            return []
        few = ["--gtest_filter=" + ":".join(spread(path))] if context.options.quick else []
        ended, status, _ = timed(context, name, [path, f"--gtest_output=xml:{report}", *few])
        parsed = reported_outcomes(name, report) if status in (0, 1) else []
        say(f"{path.name}: {endings(parsed or [ended])}, {ended['seconds']:.1f} s")
        return parsed or [ended]

    return side_by_side(one, found), {}


def sanitizer_tests(context):
    """memcheck and racecheck over a few tests of each executable: a whole run takes minutes."""
    options = context.options
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=CUDA_BIN)
    if tool is None:
        return without("sanitizer", "skipped", f"no compute-sanitizer on PATH or in {CUDA_BIN}")
    checks = ("memcheck",) if options.quick else ("memcheck", "racecheck")

    def one(job):
        path, check = job
        name = f"sanitizer.{check}.{path.name}"
        if check == "racecheck" and options.race_build:
            other = options.race_build / "tests" / path.name
            path = other if os.access(other, os.X_OK) else path
        names = spread(path, 1 if options.quick else FEW_TESTS,
                       RACES if check == "racecheck" else "")
        if not names or name in context.done or context.clock.spent:
            return []
        test, *_ = timed(context, name, [
            tool, "--tool", check, "--error-exitcode", SANITIZER_FOUND, path,
            "--gtest_filter=" + ":".join(names)])
        say(f"{check} {path.name}: {test['outcome']}, {len(names)} tests, {test['seconds']:.1f} s")
        return [test]

    return side_by_side(one, [(path, check) for path in executables(options.build)
                              for check in checks]), {}


def side_by_side(work, jobs):
    """The tests that each job gives, in order. They wait for their oracles on the CPU, so several
    share the GPU."""
    workers = max(1, min(8, (os.cpu_count() or 1) // 2))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return [test for tests in pool.map(work, jobs) for test in tests]


def spread(path, count=FEW_TESTS, but=""):
    """A few of an executable's tests, from all over it, without those that are named like `but`."""
    _, listing = run([path, "--gtest_list_tests"], 60)
    names = [name for name in listed_tests(listing) if not but or but not in name]
    return [names[i * len(names) // count] for i in range(count)] if count < len(names) else names


def python_tests(context):
    report = context.work / "pytest.xml"
    ended, status, _ = timed(context, "python", [
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/python", "-p", "no:cacheprovider",
        f"--junitxml={report}"], environment=context.environment)
    if status == 5:  # pytest's code for "no test was collected"
        return without("python", "skipped", "no test is marked gpu")
    tests = reported_outcomes("python", report)
    if not tests and status == 0:
        ended |= {"outcome": "failed", "detail": "pytest wrote no report"}
    return tests + ([] if tests and status in (0, 1) else [ended]), {}


# What is verified apart: its seeds follow from the machine code of its kernels.
VERIFIED = {"attention": lambda row: "attention" in row and not any(
                word in row for word in ("backward", "fp8")),
            "attention_fp8": lambda row: "attention_fp8" in row,
            "attention_backward": lambda row: "attention_backward" in row,
            "products": lambda row: "attention" not in row,
            "products_fp8": lambda row: "sm90_matmul" in row}


def code_number(build, op):
    """A number that changes with the machine code of the kernels of these operations:
    those of the build, or where it has none the committed ones."""
    code = bench_module("machine_code")
    kernels = code.kernels_of(build / "machine_code.json") or code.committed(ROOT) or {}
    hashes = sorted(one for row, instances in kernels.items() if VERIFIED[op](row)
                    for one in instances.values())
    return int(hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:8], 16)


def begun_at(runs, op, seed):
    """The runs of random problems that began at this seed, or go on where one of them ended."""
    found = []
    for one in sorted(runs, key=lambda one: one["first_seed"]):
        if one["op"] == op and one["first_seed"] == seed:
            found.append(one)
            seed = one["last_seed"] + 1
    return found


def random_problems(context):
    """python -m tessera.verify of attention, its gradients and products, also in FP8."""
    tests, runs = [], []
    for op in VERIFIED:
        test, found = problems_of(context, op)
        tests += test
        runs += found
    return tests, {"verify": runs} if tests else {}


def problems_of(context, op):
    """Tests and runs, with what was found before of the same kernels; no test where that was as
    much as is wanted. Each version of the kernels has problems of its own."""
    first, report = code_number(context.options.build, op) + 1, context.work / "verify.json"
    before = begun_at(context.result.get("verify", []), op, first)
    wanted = context.options.problems - sum(one["problems"] for one in before)
    if wanted <= 0:
        return [], before
    seed = before[-1]["last_seed"] + 1 if before else first
    seconds = context.clock.left()
    report.unlink(missing_ok=True)
    test, *_ = timed(context, f"verify.{op}", [
        sys.executable, "-m", "tessera.verify", op, "--device", context.options.device,
        "--count", wanted, "--seed", seed, "--jobs", min(MOST_JOBS, os.cpu_count() or 1), "--json",
        report, "--seconds", f"{max(1.0, seconds - LATE):.0f}"], seconds,
        environment=context.environment, shown=True)
    found = [bench_module("files").read_json(report)] if report.exists() else []
    wrong = [seed for one in before + found for seed in one["failed"]]
    if wrong:
        test |= {"outcome": "failed", "detail": "seeds " + ", ".join(map(str, wrong))}
    elif found and (left := wanted - found[0]["problems"]) > 0:
        test |= {"outcome": "unfinished",
                 "detail": f"{left} of {context.options.problems} are left"}
    return [test], before + found


def figures_of(context, step, command):
    """A step whose program prints its figures as JSON, a line each, and runs with nothing beside
    it."""
    test, _, output = timed(context, step, command, 300, environment=context.environment)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [test], {step: lines}


def host_times(context):
    """What calls in C++ cost the host."""
    program = context.options.build / "tests" / "host_time"
    if not os.access(program, os.X_OK):
        return without("host", "skipped", "no tests/host_time: build the target tessera_gpu_tests")
    return figures_of(context, "host", [program])


def eager_calls(context):
    """What eager calls in Python cost the host beside PyTorch's own."""
    if context.options.device != "cuda":
        return without("eager", "skipped", "measured on a GPU alone")
    return figures_of(context, "eager", [sys.executable, "-m", "tessera.overhead", "--json"])


def card_ceilings(context):
    """What the card gives at most."""
    library = context.options.build / "tests" / "ceilings.so"
    report = context.work / "ceilings.json"
    if not library.exists():
        return without("ceilings", "skipped",
                       "no tests/ceilings.so: build the target tessera_gpu_tests")
    tests, _ = figures_of(context, "ceilings", [
        sys.executable, "-m", "tessera.bench", "ceilings", "--library", library, "--seconds",
        0.5 if context.options.quick else 2, "--json", report, "--tree", ROOT])
    found = bench_module("files").read_json(report)["ceilings"] if report.exists() else {}
    return tests, {"ceilings": found}


TEST_STEPS = {"cpp": cpp_tests, "sanitizer": sanitizer_tests, "python": python_tests,
              "verify": random_problems, "host": host_times, "eager": eager_calls,
              "ceilings": card_ceilings}
