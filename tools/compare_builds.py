#!/usr/bin/env python3
"""Times builds of the package beside each other. Each has a process of its own; all take turns on
one device, every other time in the opposite order, as who runs behind whom makes a difference of
several percent. A result that is wrong gets no time.

  tools/compare_builds.py OLD NEW --cases "attention --q-length 1024 --causal"
  tools/compare_builds.py OLD NEW --cases bench/workloads/check.json
  tools/compare_builds.py OLD:KERNEL NEW:KERNEL --cases "attention --q-length 4096 --dim 96"

OLD and NEW are folders with a built package: pip install --no-deps --target OLD . in a checkout.
After a colon comes the kernel to take, where it is not to be each build's own choice. To compare
kernels of one build, name its folder once per kernel.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from check_results import bench_module

LEAD_IN = 0.4  # of a turn, before its clock starts


class Failed(RuntimeError):
    """Why a competitor has no time."""


class Competitor:
    """One build in a process of its own, which answers a line with a line."""

    def __init__(self, text, device):
        folder, _, self.kernel = text.partition(":")
        self.name, self.times, self.about = text, [], {}
        path = os.pathsep.join(filter(None, [str(Path(folder).resolve()),
                                             os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", device], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=path))

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            raise Failed(f"its process ended with {self.process.wait()}") from None
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer

    def end(self):
        with contextlib.suppress(BrokenPipeError):  # it ended by itself, before it had read all
            self.process.stdin.close()
        self.process.wait()


def work(device):
    """The other side of a competitor. What the build prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ready = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "op" in request:
                ready = None  # its tensors make room
                ready, answer = prepare(request, device)
            else:
                answer = {"ms": take_turn(*ready, request["seconds"])}
        except Exception as error:  # whatever it is, it is the build's answer
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


def prepare(request, device):
    """((timer, Prepared, seconds a call), what is said of it)."""
    from tessera.bench import machine, measure, ours, problem
    from tessera.bench.cases import make_case

    settings = measure.Settings(device=device)
    if device == "cuda":  # without Settings.find_gpu, which older builds do not have
        gpu, settings.meter = machine.gpu_facts()
        settings.cache_bytes = gpu["l2_bytes"]
    made = problem.Problem(make_case(request["op"], request["params"]), device,
                           settings.cache_bytes)
    prepared = ours.prepare_ours(made, request["kernel"] or None)
    measure.check_ours(prepared, made)
    timer = measure.timer_for(made, settings)
    timer.calls_ms(prepared, 2)
    seconds = timer.calls_ms(prepared, 5) * 1e-3
    return (timer, prepared, seconds), {"row": prepared.extra.get("row")}


def take_turn(timer, prepared, one, seconds):
    timer.calls_ms(prepared, max(1, round(LEAD_IN * seconds / one)))
    return timer.calls_ms(prepared, max(1, round(seconds / one)))


def compare(competitors, case, options):
    """Whether all have a time; prints them."""
    running, refused = [], {}
    for one in competitors:
        one.times = []
        try:
            one.about = one.ask(op=case.op, params=case.params, kernel=one.kernel)
            running.append(one)
        except Failed as reason:
            refused[one.name] = reason
    # The last one has a turn before all others that does not count: the device is cool then.
    for turn in range(-1, options.turns):
        for one in running[-1:] if turn < 0 else running[:: -1 if turn % 2 else 1]:
            if one.name in refused:
                continue
            try:
                ms = one.ask(seconds=options.seconds)["ms"]
            except Failed as reason:
                refused[one.name] = reason
                continue
            if turn >= 0:
                one.times.append(ms)
    print(case.label)
    base = None
    for one in competitors:
        if one.name in refused:
            print(f"  {one.name:40} {refused[one.name]}")
            continue
        ms = statistics.median(one.times)
        base = base or ms
        spread = (max(one.times) - min(one.times)) / ms
        print(f"  {one.name:40} {ms * 1e3:9.1f} us  {spread:5.1%}  {base / ms:.3f}x  "
              f"{one.about['row'] or ''}", flush=True)
    return not refused


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="FOLDER[:KERNEL]",
                        help="the first is what the others are compared with")
    parser.add_argument("--cases", nargs="+", required=True, metavar="CASE",
                        help="an operation with the options of tessera.bench, or a workload file")
    parser.add_argument("--turns", type=int, default=6, help="of each [6]")
    parser.add_argument("--seconds", type=float, default=0.2, help="a turn [0.2]")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    if len(set(options.builds)) < len(options.builds):
        parser.error("FOLDER: expected each build and kernel once")
    for text in options.builds:
        folder = text.partition(":")[0]
        if not Path(folder, "tessera", "lib").is_dir():
            parser.error("FOLDER: expected a folder with a built package, tessera/lib, got "
                         f"{folder}")
    if options.turns < 2 or options.turns % 2:
        parser.error("--turns: expected an even number, as every other turn is in the opposite "
                     f"order, got {options.turns}")
    if options.seconds <= 0:
        parser.error(f"--seconds: expected more than 0, got {options.seconds}")
    found = []
    for text in options.cases:
        try:
            whole = text.endswith(".json")
            found += (bench_module("cases").read_workload(text) if whole
                      else [bench_module("options").parse_case(text)])
        except (ValueError, OSError) as error:
            parser.error(f"--cases: {error}")
    options.cases = found
    return options


def main(arguments=None):
    options = parse(arguments)
    competitors = [Competitor(text, options.device) for text in options.builds]
    try:
        whole = [compare(competitors, case, options) for case in options.cases]
    finally:
        for one in competitors:
            one.end()
    return 0 if all(whole) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        sys.exit(main())
