"""The files that measuring, tuning and reporting leave behind: read with one kind of complaint,
written whole."""

import contextlib
import datetime
import json
import os
import re
import sys
from typing import Any


class Unreadable(ValueError):
    """A file that nothing can be made of; the message names it."""


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
    """Pipes, terminals and the like, and standard output by its names: a file must not take their
    place."""
    return os.fspath(path).startswith(("/dev/std", "/dev/fd/")) or (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def temporary_of(path: str) -> str:
    return f"{path}.{os.getpid()}.part"


def check_writable(option: str, path: str | None) -> None:
    """Raises Unwritable where write_whole could not write. Leaves nothing behind."""
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
    """Never half a file, whatever interrupts, and none beside it when something fails. A link stays
    one: what it points at is replaced."""
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
    """A text as part of a name: small letters, digits and points, - for what stands between."""
    return re.sub("[^a-z0-9.]+", "-", text.lower()).strip(".-")


def in_words(error, path=None):
    """What to tell of an error: of a file that cannot be opened, which and why."""
    path = path or getattr(error, "filename", None)
    if isinstance(error, OSError) and path:
        return f"{path}: {error.strerror or error}"
    return str(error)


def run_program(name, run, arguments):
    """The exit status of a program: what `run` returns, 2 for what the user can put right, which is
    told in a line, or 130 after Ctrl-C."""
    try:
        return run(arguments)
    except (OSError, ValueError) as error:
        print(f"{name}: {in_words(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130


def timestamp():
    """Now, as files have it; its first ten characters are the date."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
