#!/usr/bin/env python3
"""Compiles and runs the examples in the documentation.

  check_docs.py --build DIR [--cxx COMPILER] [--nvcc COMPILER] [FILE...]
                                             (default: README.md and docs/**/*.md)
  check_docs.py --self-test

An example is a fenced code block whose first line is "```cpp run" or "```sh run". A cpp block is a
program, linked with the library in DIR. A sh block runs with `tessera` from DIR on PATH. The blocks
of a document run in order in one scratch folder, so that they can read files of earlier ones. A
compiled cpp block is there as ./example.

A block whose first line is "```cpp file=PATH" or "```cuda file=PATH" is a file that the page adds
to the tree; "```diff file=PATH" edits one: hunks begin with "@@", and their old lines must occur
exactly once. The files of a page are written to a folder outside the tree and compiled: C++ for its
syntax, CUDA by nvcc if --nvcc is given, kernel rows as the build instantiates them.

Links of all pages of the tree to files and headings must be valid.
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
FILE = re.compile(r"^```(cpp|cuda|diff) file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
            done = subprocess.run(command_of(language, code, folder, build, cxx), check=False,
                                  cwd=folder, env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=300)
            if done.returncode != 0:
                failures.append(f"{path}:{line}: {language} example ended with "
                                f"{done.returncode}:\n{done.stdout}")
    return len(examples), failures


def edited(text, hunks):
    """Applies the hunks of a diff; ValueError if old lines do not occur exactly once."""
    for hunk in re.split(r"^@@.*\n", hunks, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        if lines and (not old or text.count(old) != 1):
            raise ValueError(f"expected these lines once, got them {text.count(old)} times:\n{old}")
        text = text.replace(old, new) if lines else text
    return text


def row_sources(folder, path):
    """The .cu text of each kernel row of a rows.hpp, as cmake/TesseraCuda.cmake makes it."""
    template = (ROOT / "cmake" / "row.cu.in").read_text()
    where = str(pathlib.PurePath(path).parent)
    table, index, sources = "", 0, []
    for line in (folder / path).read_text().splitlines():
        if found := re.search(r"KernelRow (k\w+)\[\]", line):
            table, index = found[1], 0
        if found := re.search(r'\.name = "(\w+)"', line):
            values = {"table": table, "index": str(index), "folder": where, "row": found[1],
                      "space": where.removeprefix("src/kernels/cuda/").replace("/", "::")}
            sources.append(re.sub(r"@(\w+)@", lambda name, of=values: of[name[1]], template))
            index += 1
    return sources


def compile_file(folder, line, path, language, cxx, nvcc):
    """The compiler's errors for a file of a page; empty if it compiles or nvcc is absent."""
    includes = [f"-I{folder}", f"-I{folder}/include", f"-I{ROOT}", f"-I{ROOT}/include"]
    cuda = language == "cuda"
    if cuda and not nvcc:
        return ""
    # A header is compiled by a file that includes it, a kernel folder by its rows.
    sources = [f'#include "{path}"\n']
    rows = pathlib.PurePath(path).parent / "rows.hpp"
    if path.endswith("/launch.cuh") and (folder / rows).is_file():
        sources = row_sources(folder, str(rows))
    said = ""
    for number, text in enumerate(sources):
        source = folder / f"block_{line}_{number}{'.cu' if cuda else '.cpp'}"
        source.write_text(text)
        if cuda:
            command = [nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-arch=sm_80",
                       "-Werror=all-warnings", "-c", "-o", f"{source}.o", *includes, str(source)]
        else:
            command = [cxx, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *includes,
                       str(source)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=300, check=False)
        if done.returncode != 0:
            said += done.stdout or f"the compiler ended with {done.returncode}"
    return said


def compile_files(path, cxx, nvcc=None):
    """The number of files that a page adds or edits, and a line for each wrong one."""
    text = path.read_text()
    files = [(text.count("\n", 0, match.start()) + 1, *match.groups())
             for match in FILE.finditer(text)]
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for line, language, name, code in files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                if language == "diff":
                    before = target if target.is_file() else ROOT / name
                    target.write_text(edited(before.read_text(), code))
                else:
                    target.write_text(code)
            except (OSError, ValueError) as error:
                failures.append(f"{path}:{line}: {name}: {error}")
        if failures:
            return len(files), failures
        for line, language, name, _ in files:
            if said := compile_file(folder, line, name, language, cxx, nvcc):
                failures.append(f"{path}:{line}: {name} does not compile:\n{said}")
    return len(files), failures


def anchors(text):
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def dead_links(path):
    """A line for each link of a page to a file or heading that does not exist."""
    text = re.sub(r"^ *```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), path.read_text(),
                  flags=re.MULTILINE | re.DOTALL)
    dead = []
    for link in re.finditer(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link[1]):
            continue
        name, _, anchor = link[1].partition("#")
        target = path.parent / name if name else path
        found = target.exists() and (not anchor or target.suffix != ".md"
                                     or anchor in anchors(target.read_text()))
        if not found:
            line = text.count("\n", 0, link.start()) + 1
            dead.append(f"{path}:{line}: {link[1]}: there is no such file or heading")
    return dead


def pages():
    """The pages of the tree, without builds and environments."""
    folders = ("docs", "src", "bench", "examples", "apps", "python", "tests")
    return [*sorted(ROOT.glob("*.md")),
            *(page for folder in folders for page in sorted((ROOT / folder).rglob("*.md")))]


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
        self_test_files(path)
        path.write_text("# A `b` c!\n[a](#a-b-c) [b](page.md#a-b-c) [c](https://x) [d](.)\n"
                        "```\n[e](nowhere)\n```\n[f](nowhere.md) [g](#nowhere) [h](page.md#no)\n")
        assert [line.split(": ")[1] for line in dead_links(path)] == [
            "nowhere.md", "#nowhere", "page.md#no"], dead_links(path)
    print("check_docs: self-test passed")


def self_test_files(path):
    rows = ('```cpp file=src/a/rows.hpp\n#pragma once\n#include "src/kernels/row.hpp"\n'
            'constexpr tessera::planning::KernelRow kRows[] = {{.name = "a"}};\n```\n'
            .replace('{.name = "a"}', '{.name = "a", .tile = {}, .dtypes = 0, .why = "", '
                                      '.measured = ""}'))
    user = ('```cpp file=src/a/plan.cpp\n#include "src/a/rows.hpp"\n'
            'const char* a() { return kRows[0].name; }\n```\n')
    edit = "```diff file=src/a/rows.hpp\n@@\n #pragma once\n+#include <string>\n```\n"

    def failures_of(text):
        path.write_text(text)
        return compile_files(path, "c++")

    assert failures_of(rows + user + edit) == (3, []), failures_of(rows + user + edit)
    # Without nvcc, CUDA is not compiled.
    assert failures_of("```cuda file=src/a/kernel.cuh\nnonsense\n```\n") == (1, [])
    for broken in (rows + user.replace("[0].name", "[0].nam"), user,
                   rows + edit.replace("#pragma once", "#pragma twice"),
                   rows.replace("};\n```", "}\n```")):
        assert len(failures_of(broken)[1]) == 1, broken
    sources = row_sources(ROOT, "src/kernels/cuda/merge/rows.hpp")
    assert len(sources) == 2 and "kSm80MergeRows[0]" in sources[1] and "@" not in sources[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--nvcc", help="also compile the CUDA files of the pages")
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
    total, files, failed = 0, 0, []
    for path in paths:
        count, failures = run_document(path, build, arguments.cxx)
        written, wrong = compile_files(path, arguments.cxx, arguments.nvcc)
        total += count
        files += written
        failed += failures + wrong
    for page in arguments.files or pages():
        failed += dead_links(page)
    for failure in failed:
        print(failure, file=sys.stderr)
    if total + files == 0:
        print("check_docs: found no example: are they marked?", file=sys.stderr)
        return 1
    print(f"check_docs: {total} examples and {files} files, {len(failed)} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
