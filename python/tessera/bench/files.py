"""Files of measurements and reports: uniform errors, atomic writes."""

import contextlib
import datetime
import json
import os
import re
import sys
from typing import Any


class Unreadable(ValueError):
    """An unreadable or invalid file; the message names it."""


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise Unreadable(in_words(error, path)) from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: not a whole JSON file: {error}") from None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


class Unwritable(ValueError):
    """A file that cannot be written; the message names the option, the file and the reason."""


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe, a terminal or standard output, which a file must not replace."""
    return os.fspath(path).startswith(("/dev/std", "/dev/fd/")) or (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def temporary_of(path: str) -> str:
    return f"{path}.{os.getpid()}.part"


def check_writable(option: str, path: str | None) -> None:
    """Raises Unwritable if write_whole could not write. Leaves no file."""
    if path is None or is_special(path):
        return
    temporary = temporary_of(os.path.realpath(path))
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(0, "it is a folder")
        with open(temporary, "w", encoding="utf-8"):
            pass
        os.remove(temporary)
    except OSError as error:
        raise Unwritable(f"{option}: cannot write {path}: {error.strerror}") from None


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file completely or not at all, and leaves no temporary file. If the path is a link,
    its target is replaced."""
    if is_special(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    path = os.path.realpath(path)
    temporary = temporary_of(path)
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def slug(text):
    """A text as part of a name: lower-case letters, digits and points; - replaces all else."""
    return re.sub("[^a-z0-9.]+", "-", text.lower()).strip(".-")


def in_words(error, path=None):
    """The message of an error; for a file that cannot be opened, its path and the reason."""
    path = path or getattr(error, "filename", None)
    if isinstance(error, OSError) and path:
        return f"{path}: {error.strerror or error}"
    return str(error)


def run_program(name, run, arguments):
    """The exit status of a program: that of `run`; 2 for wrong input, with a message of one line;
    130 after Ctrl-C."""
    try:
        return run(arguments)
    except (OSError, ValueError) as error:
        print(f"{name}: {in_words(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130


def timestamp():
    """The current time in the format of result files."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
