"""The command line: `python -m tessera.tune OP ...`."""

import argparse
import json
import os
import re
import sys

from ..bench.cases import LISTS, REQUIRED, STATES, CaseError, read_workload
from ..bench.cli import duration
from ..bench.files import check_writable, run_program
from ..bench.machine import chosen_device
from ..bench.measure import DeviceLost, Settings
from ..bench.options import add_problem
from ..bench.patterns import NoTessera
from ..bench.peers.base import Unavailable, one_line
from ..bench.progress import Progress, stoppable
from . import show
from .file import TuningFile
from .shapes import cases_of, several
from .trial import device_and_file, try_rows

OPS = tuple(op for op in REQUIRED if op not in LISTS)
DONE, FAILED, BAD_INPUT, STOPPED = 0, 1, 2, 130

EPILOG = """Sizes take several values: 64,128 or 1024:8192 (doubling) or 256:1024:256 (in steps).
Every combination is a problem.

examples:
  python -m tessera.tune attention --q-length 1024:8192 --dim 64,128 --causal
  python -m tessera.tune matmul --m 16,64,256 --n 4096 --k 4096 --rows skinny --dry-run
  python -m tessera.tune --workload bench/workloads/check.json --state sustained

The file that it writes is explained in docs/tuning.md.
"""


def build_parser():
    parser = argparse.ArgumentParser(
        prog="python -m tessera.tune", epilog=EPILOG,
        usage="python -m tessera.tune OP [SIZES] [OPTIONS]\n"
              "       python -m tessera.tune --workload FILE [OPTIONS]",
        description="Tries the kernels that take given problems on this device, and writes the "
                    "fastest into the file that the library chooses by.",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", nargs="?", metavar="OP", choices=OPS, help=", ".join(OPS))
    parser.add_argument("--workload", metavar="FILE", action="append", default=[],
                        help="the cases of a file of tessera.bench, in place of OP")
    parser.add_argument("--device", choices=("cuda", "cpu"),
                        help="default: cuda where there is one")
    parser.add_argument("--rows", metavar="REGEX", default="",
                        help="only kernels whose name has this, beside the cost model's choice")
    parser.add_argument("--state", choices=STATES, default="burst",
                        help="how to time, see docs/gpu_check.md [burst]; the CPU has one way")
    parser.add_argument("--seconds", type=duration, default=1.0,
                        help="for each kernel, where the state does not say [1]")
    parser.add_argument("--output", metavar="FILE",
                        help="write there [TESSERA_TUNING, else the user's folder for settings]")
    parser.add_argument("--overwrite", action="store_true",
                        help="replace the file, even a broken one, instead of adding to it")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_problem(parser.add_argument_group("the problem"), *OPS, whole=several(int),
                number=several(float))
    return parser


def wanted_cases(arguments, device):
    """The cases, each once, and how many of the workloads choose no kernel."""
    if bool(arguments.op) == bool(arguments.workload):
        raise CaseError("expected an OP, or --workload FILE: one of them")
    if arguments.op:
        arguments.command = arguments.op
        return cases_of(arguments, device), 0
    every = [case for path in arguments.workload for case in read_workload(path)]
    cases = {case.key: case for case in every if case.op in OPS}
    return list(cases.values()), sum(case.op not in OPS for case in every)


class Tuner:
    """Tries one case after the other; each that is done is in the file before the next begins."""

    def __init__(self, arguments, settings):
        self.arguments, self.settings = arguments, settings
        try:
            self.wanted = re.compile(arguments.rows)
        except re.error as error:
            raise CaseError(f"--rows: {arguments.rows!r} is no regular expression: "
                            f"{error}") from None
        self.device, usual = device_and_file(settings.device)
        path = arguments.output or usual
        if not path and not arguments.dry_run:
            raise CaseError("--output: TESSERA_TUNING and the home folder name no file: give one, "
                            "or --dry-run")
        self.file = None
        if not arguments.dry_run:
            self.file = TuningFile(path, self.device, arguments.overwrite)
            os.makedirs(os.path.dirname(self.file.path), exist_ok=True)
            check_writable("--output", self.file.path)
        self.trials = []

    def run(self, cases):
        progress = Progress(len(cases), quiet=self.arguments.quiet)
        outcome = DONE
        try:
            with stoppable(progress):
                for case in cases:
                    if not self._try(case, progress):
                        outcome = FAILED
                    progress.finished()
        except KeyboardInterrupt:
            return STOPPED
        except DeviceLost as error:
            print(f"tessera.tune: the device is lost: {error}", file=sys.stderr)
            return FAILED
        return outcome

    def _try(self, case, progress):
        def say(text):
            progress.step(case.label, text)

        try:
            trial = try_rows(case, self.settings, self.arguments.state, self.wanted, say)
        except (DeviceLost, NoTessera):
            raise
        except Unavailable as error:
            progress.say(f"{case.label}: {error}")
            return False
        except Exception as error:  # one that fails must not take the others with it
            progress.say(f"{case.label}: {type(error).__name__}: {one_line(error)}")
            return False
        if any(one.signature == trial.signature for one in self.trials):
            progress.say(f"{case.label}: the library plans an earlier one alike; this one counts")
        self.trials.append(trial)
        if trial.winner and self.file:
            self.file.add(trial)
            self.file.save()
        return trial.winner is not None

    def summary(self, total, outcome):
        where = "nothing is written (--dry-run)"
        if self.file:
            count = len(self.file.measured)
            where = f"{count} problem{'' if count == 1 else 's'} written to {self.file.path}"
            if not count:
                where = f"{self.file.path} is as it was"
        begin = "stopped after" if outcome == STOPPED else "tried"
        return f"{begin} {len(self.trials)} of {total} problems; {where}"


def run(arguments):
    device = chosen_device(arguments.device)
    cases, others = wanted_cases(arguments, device)
    if device == "cpu":
        arguments.state = "burst"
    settings = Settings(device=device, seconds=arguments.seconds)
    settings.find_gpu()
    tuner = Tuner(arguments, settings)
    outcome = tuner.run(cases)
    trials, notes = tuner.trials, sys.stderr
    if arguments.json:
        path = tuner.file.path if tuner.file else None
        told = show.as_json(tuner.device, arguments.state, trials, path)
        if outcome == STOPPED:
            told["interrupted"] = True
        print(json.dumps(told, indent=1))
    elif trials:
        print(show.table(trials))
    if others:
        print(f"tessera.tune: {others} cases choose no kernel", file=notes)
    print(f"tessera.tune: {tuner.summary(len(cases), outcome)}", file=notes)
    return outcome


def main(arguments=None):
    return run_program("tessera.tune", run, build_parser().parse_args(arguments))
