#!/usr/bin/env python3
"""Compiles and runs the examples in the documentation.

  check_docs.py --build DIR [--cxx COMPILER] [FILE...]   (default: README.md and docs/**/*.md)
  check_docs.py --self-test

An example is a fenced block whose first line is "```cpp run" or "```sh run". A cpp block is a
whole program, linked with the library in DIR. A sh block runs with `tessera` from DIR on PATH; the
blocks of one document share a scratch folder, in order, so that one may read what another wrote. A
compiled cpp block lies there as ./example.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(cpp|sh) run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """(line, language, code) of each example, in order."""
    return [(text.count("\n", 0, match.start()) + 1, *match.groups())
            for match in BLOCK.finditer(text)]


def command_of(language, code, folder, build, cxx):
    if language == "sh":
        return ["bash", "-euo", "pipefail", "-c", code]
    (folder / "example.cpp").write_text(code)
    compile_it = (f"{cxx} -std=c++20 -Wall -Wextra -Werror -I'{ROOT}/include' example.cpp "
                  f"-o example -L'{build}' -ltessera -Wl,-rpath,'{build}'")
    return ["bash", "-euo", "pipefail", "-c", compile_it + " && ./example"]


def run_document(path, build, cxx):
    """The number of examples in a document and a line for each that failed."""
    failures = []
    examples = blocks(path.read_text())
    environment = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for line, language, code in examples:
            done = subprocess.run(command_of(language, code, folder, build, cxx), cwd=folder,
                                  env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=300)
            if done.returncode != 0:
                failures.append(f"{path}:{line}: {language} example ended with "
                                f"{done.returncode}:\n{done.stdout}")
    return len(examples), failures


def self_test():
    text = "# T\n```sh\nfalse\n```\n```sh run\necho x > a\n```\ntext\n```sh run\ntest -s a\n```\n"
    assert [line for line, _, _ in blocks(text)] == [5, 9], blocks(text)
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch, "page.md")
        path.write_text(text)
        assert run_document(path, "/nowhere", "c++") == (2, [])
        path.write_text(text + "```sh run\nfalse | true\n```\n```cpp run\nint main() {\n```\n")
        count, failures = run_document(path, "/nowhere", "c++")
        assert count == 4 and len(failures) == 2 and ":12:" in failures[0], failures
    print("check_docs: self-test passed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    if arguments.build is None or not arguments.build.is_dir():
        parser.error(f"--build: {arguments.build or 'nothing'} given, a build folder with "
                     "libtessera and the tool wanted")
    build = arguments.build.resolve()
    paths = arguments.files or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    total, failed = 0, []
    for path in paths:
        count, failures = run_document(path, build, arguments.cxx)
        total += count
        failed += failures
    for failure in failed:
        print(failure, file=sys.stderr)
    if total == 0:
        print("check_docs: found no example: were they all unmarked?", file=sys.stderr)
        return 1
    print(f"check_docs: {total - len(failed)} of {total} examples ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
