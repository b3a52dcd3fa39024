"""The tuning file, as docs/tuning.md describes it. What it may say is the library's to judge: it
reads the file when it plans."""

import os

from tessera import _ffi

from ..bench.files import timestamp, write_whole

HEADER = ("tessera-tuning 1\ndevice {device}\n"
          "# Written by tessera.tune: the kernel to take, the problem, what was measured.\n")


class Refused(ValueError):
    """A file that is not the device's, or broken."""


class TuningFile:
    """Grows by the problems that were measured; what else the file holds stays."""

    def __init__(self, path, device, overwrite=False):
        self.path, self.device = os.path.realpath(path), device
        self.measured = {}
        self.kept = {} if overwrite else self._read()
        self.reads = not overwrite

    def _read(self):
        """{signature: line}"""
        try:
            with open(self.path, "rb") as file:
                text = file.read().decode("ascii", "replace")
        except FileNotFoundError:
            return {}
        try:
            _ffi.check_tuning(text, self.device)
        except ValueError as error:
            raise Refused(f"{self.path}: {error}; --overwrite replaces it, --output writes "
                          "elsewhere") from None
        lines = [line.rstrip("\r") for line in text.split("\n")[2:]]
        return {line.split("\t")[1]: line for line in lines if line and not line.startswith("#")}

    def add(self, trial):
        """The problem's line, in place of one that was there."""
        winner = trial.of(trial.winner)
        note, today = f"{1e3 * winner.ms:.4g} us", timestamp()[:10]
        if trial.winner != trial.model:
            model = trial.of(trial.model)
            took = "no time" if model.ms is None else f"{1e3 * model.ms:.4g} us"
            note += f", {trial.model} {took}"
        self.measured[trial.signature] = f"{winner.row}\t{trial.signature}\t{note}, {today}"

    def save(self):
        if self.reads:
            self.kept = self._read()  # another process may have added to it
        lines = {**self.kept, **self.measured}
        text = HEADER.format(device=self.device) + "".join(f"{one}\n" for one in lines.values())
        _ffi.check_tuning(text, self.device)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        write_whole(self.path, text)
