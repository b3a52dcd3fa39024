"""`python -m tessera`: the tool of a wheel that has one, else a message where to find it."""

import os
import subprocess
import sys

import tessera
from tessera import _ffi


def run(*words, **environment):
    return subprocess.run([sys.executable, "-m", "tessera", *words], check=False,
                          capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_without_the_tool_one_line_says_how_to_get_it():
    done = run("info")
    if (_ffi.package_folder / "bin" / "tessera").exists():
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"tessera {tessera.__version__} ")
    else:
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.count("\n") == 1
        assert "make wheel" in done.stderr


def test_the_tool_gets_arguments_and_this_python(tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "tessera"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nprintf "%s|" "$0" "$TESSERA_PYTHON" "$@"; exit 7\n')
    tool.chmod(0o755)
    script = tmp_path / "call.py"
    script.write_text("import pathlib, sys\nfrom tessera import _ffi\n"
                      f"_ffi.package_folder = pathlib.Path({str(tmp_path)!r})\n"
                      "from tessera.__main__ import main\nmain()\n")
    monkeypatch.delenv("TESSERA_PYTHON", raising=False)
    done = subprocess.run([sys.executable, script, "bench", "a b", ""], check=False,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{tool}|{sys.executable}|bench|a b||"
