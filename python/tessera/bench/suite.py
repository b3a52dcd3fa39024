"""Measures many cases into one file: in shards, within a time budget, and resumable."""

import contextlib
import os
import time

from . import machine_code, results
from .files import read_json, write_json
from .machine import header
from .measure import DeviceLost, measure_case, states_of, tidy
from .patterns import NoTessera
from .peers.base import one_line
from .progress import Progress, stoppable
from .timing import CudaTimer

DONE, BUDGET_SPENT, FAILED, AGAIN, STOPPED = 0, 4, 1, 3, 130


def parse_shard(text):
    """"2/3" -> (1, 3): the index of the shard from zero, and the number of shards."""
    which, _, count = text.partition("/")
    if not (which.isdigit() and count.isdigit() and 1 <= int(which) <= int(count)):
        raise ValueError(f"shard: expected I/N with 1 <= I <= N, got {text!r}")
    return int(which) - 1, int(count)


class Attempts:
    """Records in FILE.crashed which competitor was starting when the process or the device was
    lost, so that the next run skips it and measures the others."""

    def __init__(self, path, resume):
        self.path = f"{path}.crashed" if path else None
        here = resume and self.path and os.path.exists(self.path)
        self.crashed = read_json(self.path) if here else []
        self._write(self.crashed)

    def of(self, key):
        return {one["competitor"]: one["reason"] for one in self.crashed if one["case"] == key}

    @contextlib.contextmanager
    def starting(self, key, competitor):
        self._write([*self.crashed, _crash(key, competitor, "the process died while it started")])
        try:
            yield
        finally:
            self._write(self.crashed)

    def note(self, key, lost):
        self.crashed.append(_crash(key, lost.competitor, f"lost the device: {lost.reason}"))
        self._write(self.crashed)

    def _write(self, crashed):
        if self.path and crashed:
            write_json(self.path, crashed)
        elif self.path and os.path.exists(self.path):
            os.remove(self.path)


def _crash(key, competitor, reason):
    return {"case": key, "competitor": competitor, "reason": reason}


class Suite:
    """`run` returns DONE, BUDGET_SPENT (cases remain), FAILED (some could not be measured), AGAIN
    (the device is lost to this process: run again with resume) or STOPPED (by Ctrl-C; the result is
    marked as interrupted)."""

    def __init__(self, path, settings, *, tree=None, commit=None, resume=False,
                 budget=None, quiet=False, ceilings=True):
        self.path, self.settings = path, settings
        self.budget, self.quiet = budget, quiet
        self.result = header(settings.device, settings.find_gpu(), tree, commit)
        self.want_ceilings = ceilings and settings.device == "cuda"
        if resume and path and os.path.exists(path):
            former = results.read(path)
            results.require_same(former, self.result, (path, "this run"))
            for field in (*results.SECTIONS, "ceilings", "parts"):
                if field in former:
                    self.result[field] = former[field]
            results.add_part(self.result, former)
        self.start = time.monotonic()
        self.attempts = Attempts(path, resume)
        self.kernels = machine_code.installed() if resume and settings.device == "cuda" else None

    def is_done(self, case):
        done = {results.record_key(one): one for one in self.result["cases"]}
        states = states_of(case, self.settings)
        records = [done[case.key, state] for state in states if (case.key, state) in done]
        return len(records) == len(states) and not (
            self.settings.ours and machine_code.stale(records, self.kernels))

    def spent(self):
        """Whether the budget of time is."""
        return self.budget is not None and time.monotonic() - self.start > self.budget

    def run(self, cases):
        outcome = self.each([case for case in cases if not self.is_done(case)], self._measure)
        if outcome in (DONE, FAILED):
            self.attempts = Attempts(self.path, resume=False)  # the results have the reasons now
        return outcome

    def each(self, left, measure):
        """Calls measure(case, progress), which returns whether it measured, for each case."""
        progress = Progress(len(left), quiet=self.quiet)
        outcome = DONE
        try:
            with stoppable(progress):
                if left:
                    self._ceilings(progress)
                for case in left:
                    if self.spent():
                        progress.say(f"the budget of {self.budget:g} s is spent: "
                                     f"{len(left) - progress.done} cases are left")
                        return BUDGET_SPENT
                    if not measure(case, progress):
                        outcome = FAILED
                    progress.finished()
        except DeviceLost as error:
            progress.say(f"the device is lost: {error}")
            return AGAIN
        except KeyboardInterrupt:
            self.result["interrupted"] = True
            return STOPPED
        finally:
            self.save()
        return outcome

    def _ceilings(self, progress):
        if not self.want_ceilings or "copy_tbs" in self.result["ceilings"]:
            return
        from .ceilings import measure_ceilings

        progress.step("ceilings: copy, dense product")
        self.result["ceilings"].update(measure_ceilings(CudaTimer(1, self.settings.meter)))

    def records_of(self, case, progress):
        """The records of a case; None if it could not be measured."""
        self.settings.left_out = left_out = self.attempts.of(case.key)
        self.settings.starting = lambda name: self.attempts.starting(case.key, name)
        if None in left_out:
            progress.say(f"{case.label}: left out: {left_out[None]}")
            return None
        try:
            return measure_case(case, self.settings,
                                lambda text: progress.step(case.label, text))
        except DeviceLost as error:
            self.attempts.note(case.key, error)
            raise
        except NoTessera:
            raise
        except Exception as error:  # a failing case must not stop the others
            progress.say(f"{case.label}: {type(error).__name__}: {one_line(error)}")
            tidy(self.settings.device)
            return None

    def _measure(self, case, progress):
        records = self.records_of(case, progress)
        if records is None:
            return False
        made = {results.record_key(record): record for record in records}
        kept = [one for one in self.result["cases"] if results.record_key(one) not in made]
        self.result["cases"] = kept + records
        for part in self.result.get("parts", ())[-1:]:  # this run's
            part["cases"] += len(records)
        self.save()
        return True

    def save(self):
        if self.path:
            write_json(self.path, self.result)
