"""A progress line: rewritten on a terminal, else one line per step."""

import contextlib
import signal
import sys
import time
from typing import Any


class Progress:
    def __init__(self, total: int, stream: Any = None, quiet: bool = False) -> None:
        self.total, self.done, self.quiet = total, 0, quiet
        self.stream = stream or sys.stderr
        self.start = time.monotonic()
        self.live = self.stream.isatty()
        self.shown = 0
        self.now: str | None = None

    def step(self, text: str, detail: str = "") -> None:
        """Shows the current step. A change of only the detail is shown only on terminals."""
        if self.quiet or (not self.live and text == self.now):
            return
        self.now = text
        if self.live and detail:
            text += ": " + detail
        width = len(str(self.total))
        line = f"[{self.done + 1:{width}}/{self.total}{self._left()}] {text}"
        if self.live:
            bar = 20 * self.done // max(1, self.total)
            line = ("#" * bar + "." * (20 - bar) + " " + line)[:118]
            self.stream.write("\r" + line.ljust(self.shown))
            self.shown = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def finished(self) -> None:
        self.done += 1

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self.close()
        if not self.quiet:
            self.stream.write(text + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Clears the progress line."""
        if self.shown:
            self.stream.write("\r" + " " * self.shown + "\r")
            self.stream.flush()
            self.shown = 0

    def _left(self) -> str:
        if not self.done:
            return ""
        seconds = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        return f", {int(seconds // 60)}:{int(seconds % 60):02d} left"


@contextlib.contextmanager
def stoppable(progress):
    """Inside, SIGTERM raises KeyboardInterrupt like Ctrl-C. Clears the progress line at the end."""
    def stop(number, frame):
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
        progress.close()
