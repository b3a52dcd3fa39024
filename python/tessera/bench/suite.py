"""Many cases in one file: in shards, within a budget of time, continued where they stopped."""

import json
import os
import signal
import time

from . import machine_code, results
from .files import read_json, write_json
from .machine import gpu_facts, header
from .measure import DeviceLost, measure_case, states_of
from .patterns import NoTessera
from .peers.base import one_line
from .progress import Progress
from .timing import CudaTimer

DONE, BUDGET_SPENT, FAILED, AGAIN, STOPPED = 0, 4, 1, 3, 130


def parse_shard(text):
    """"2/3" -> (1, 3): which of how many, counted from zero."""
    which, _, count = text.partition("/")
    if not (which.isdigit() and count.isdigit() and 1 <= int(which) <= int(count)):
        raise ValueError(f"shard: expected I/N with 1 <= I <= N, got {text!r}")
    return int(which) - 1, int(count)


class Attempts:
    """Remembers which competitor was starting when a process died, so that the next one leaves it
    out. A peer may bring down the process or the device; the others still want measuring."""

    def __init__(self, path):
        self.attempt_path = f"{path}.attempt" if path else None
        self.crashed_path = f"{path}.crashed" if path else None
        self.crashed = self._read(self.crashed_path) or []
        left = self._read(self.attempt_path)
        if left:
            self.note(left["case"], left["competitor"], "the process died while it started")

    @staticmethod
    def _read(path):
        if path and os.path.exists(path):
            return read_json(path)
        return None

    def of(self, key):
        return {one["competitor"]: one["reason"] for one in self.crashed if one["case"] == key}

    def begin(self, key, competitor):
        if self.attempt_path and competitor:
            with open(self.attempt_path, "w", encoding="utf-8") as file:
                json.dump({"case": key, "competitor": competitor}, file)
        else:
            self.end()

    def end(self):
        if self.attempt_path and os.path.exists(self.attempt_path):
            os.remove(self.attempt_path)

    def forget(self):
        if self.crashed_path and os.path.exists(self.crashed_path):
            os.remove(self.crashed_path)

    def note(self, key, competitor, reason):
        self.crashed.append({"case": key, "competitor": competitor, "reason": reason})
        if self.crashed_path:
            write_json(self.crashed_path, self.crashed)
        self.end()


class Suite:
    """`run` returns DONE, BUDGET_SPENT (cases are left), FAILED (some could not be measured),
    AGAIN (the device is lost to this process: run again with resume) or STOPPED (by Ctrl-C; the
    result is marked as interrupted)."""

    def __init__(self, path, settings, *, tree=None, commit=None, resume=False, again=(),
                 budget=None, quiet=False, ceilings=True):
        self.path, self.settings = path, settings
        self.again, self.budget, self.quiet = set(again), budget, quiet
        gpu = None
        if settings.device == "cuda":
            gpu, settings.meter = gpu_facts()
            settings.cache_bytes = gpu["l2_bytes"]
        self.result = header(settings.device, gpu, tree, commit)
        self.want_ceilings = ceilings and settings.device == "cuda"
        if resume and path and os.path.exists(path):
            former = results.read(path)
            results.require_same(former, self.result, (path, "this run"))
            for field in ("cases", "tests", "verify", "ceilings", "host", "eager", "parts"):
                if field in former:
                    self.result[field] = former[field]
            results.add_part(self.result, former)
        elif path:
            for stale in (f"{path}.attempt", f"{path}.crashed"):
                if os.path.exists(stale):
                    os.remove(stale)
        self.attempts = Attempts(path)
        self.kernels = machine_code.installed() if resume and settings.device == "cuda" else None

    def is_done(self, case):
        done = {results.record_key(one): one for one in self.result["cases"]}
        states = states_of(case, self.settings)
        records = [done[case.key, state] for state in states if (case.key, state) in done]
        if len(records) < len(states) or (
                self.settings.ours and machine_code.stale(records, self.kernels)):
            return False
        return not any("unavailable" in record["peers"].get(name, {})
                       for record in records for name in self.again)

    def run(self, cases):
        start = time.monotonic()
        left = [case for case in cases if not self.is_done(case)]
        progress = Progress(len(left), quiet=self.quiet)
        former = signal.signal(signal.SIGTERM, _stop)
        outcome = DONE
        try:
            if left:
                self._ceilings(progress)
            for case in left:
                if self.budget is not None and time.monotonic() - start > self.budget:
                    progress.say(f"the budget of {self.budget:g} s is spent: "
                                 f"{len(left) - progress.done} cases are left")
                    return BUDGET_SPENT
                if not self._measure(case, progress):
                    outcome = FAILED
                progress.finished()
        except DeviceLost as error:
            progress.say(f"the device is lost: {error}")
            return AGAIN
        except KeyboardInterrupt:
            self.result["interrupted"] = True
            return STOPPED
        finally:
            self.attempts.end()
            signal.signal(signal.SIGTERM, former)
            progress.close()
            self.save()
        self.attempts.forget()  # the reasons are in the results by now
        return outcome

    def _ceilings(self, progress):
        if not self.want_ceilings or "copy_tbs" in self.result["ceilings"]:
            return
        from .ceilings import measure_ceilings

        progress.step("ceilings: copy, dense product")
        self.result["ceilings"].update(measure_ceilings(CudaTimer(1, self.settings.meter)))

    def _measure(self, case, progress):
        self.settings.crashed = self.attempts.of(case.key)
        self.settings.attempt = lambda name: self.attempts.begin(case.key, name)
        if None in self.settings.crashed:
            progress.say(f"{case.label}: left out: {self.settings.crashed[None]}")
            return False
        try:
            records = measure_case(case, self.settings,
                                   lambda text: progress.step(case.label, text))
        except DeviceLost as error:
            self.attempts.note(case.key, error.competitor, f"lost the device: {error.reason}")
            raise
        except NoTessera:
            raise
        except Exception as error:  # one case that fails must not take the others with it
            progress.say(f"{case.label}: {type(error).__name__}: {one_line(error)}")
            self._check_device(case)
            return False
        made = {results.record_key(record): record for record in records}
        kept = [one for one in self.result["cases"] if results.record_key(one) not in made]
        self.result["cases"] = kept + records
        for part in self.result.get("parts", ())[-1:]:  # this run's
            part["cases"] += len(records)
        self.save()
        return True

    def _check_device(self, case):
        if self.settings.device != "cuda":
            return
        import torch

        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as error:
            self.attempts.note(case.key, None, f"lost the device: {one_line(error)}")
            raise DeviceLost(case.label, one_line(error)) from error

    def save(self):
        if self.path:
            write_json(self.path, self.result)


def _stop(number, frame):
    raise KeyboardInterrupt
