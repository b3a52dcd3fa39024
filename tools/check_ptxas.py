#!/usr/bin/env python3
"""Fails if ptxas spilled registers or serialised wgmma.

  check_ptxas.py --compile FOLDER NVCC ARGS...    run a compilation; keep its report in FOLDER/ptxas
                                                  and its hashes in FOLDER/machine_code; check it
  check_ptxas.py LOG...                           check reports
  check_ptxas.py --self-test                      prove that a bad report is found
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import machine_code

SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
SERIALISED = re.compile(r"\(C751[01]\)|wgmma\.mma_async instructions are serialized")
FUNCTION = re.compile(r"(?:Compiling entry function|Function properties for) '?([^' ]+)'?")


def offences(report):
    """The bad lines of a report, each with its kernel."""
    found = []
    function = "?"
    for line in report.splitlines():
        if match := FUNCTION.search(line):
            function = match.group(1)
        spill = SPILL.search(line)
        if (spill and (int(spill.group(1)) or int(spill.group(2)))) or SERIALISED.search(line):
            found.append(f"{function}: {line.strip()}")
    return found


def compile_and_check(folder, command):
    # Only a compilation to an object has a report; CMake's probes and dependency scans do not.
    if "-o" not in command or "-c" not in command:
        return subprocess.run(command, check=False).returncode
    object_file = pathlib.Path(command[command.index("-o") + 1])
    with tempfile.TemporaryDirectory() as kept:
        done = subprocess.run([*command, "--keep", "--keep-dir", kept], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        report = done.stdout
        quiet = [line for line in report.splitlines()
                 if not re.match(r"ptxas info|\s+\d+ bytes stack", line)]
        if quiet:
            print("\n".join(quiet), file=sys.stderr)
        if done.returncode != 0:
            return done.returncode
        folder = pathlib.Path(folder)
        machine_code.note(folder / "machine_code", object_file, kept)
    (folder / "ptxas").mkdir(parents=True, exist_ok=True)
    (folder / "ptxas" / f"{object_file.name}.ptxas").write_text(report)
    return tell(offences(report))


def tell(found):
    for line in found:
        print(f"ptxas: {line}", file=sys.stderr)
    return 1 if found else 0


def check(paths):
    found = []
    for path in paths:
        report = pathlib.Path(path).read_text()
        if "bytes spill stores" not in report:
            found.append(f"{path}: no report of spills: was it compiled with -Xptxas -v?")
        found += [f"{path}: {line}" for line in offences(report)]
    if not paths:
        found.append("no reports to check")
    return tell(found)


def self_test():
    head = "ptxas info    : Compiling entry function 'kernel_a' for 'sm_90a'\n"
    clean = head + "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    spilled = head + "    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
    loads = head + "    8 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads\n"
    serial = head + "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async ...\n"
    other = head + "ptxas info    : (C7511) Potential Performance Loss: ...\n"
    assert offences(clean) == []
    for bad in (spilled, loads, serial, other, clean + spilled):
        assert len(offences(bad)) == 1 and offences(bad)[0].startswith("kernel_a: "), bad
    assert len(offences(spilled + serial)) == 2
    print("check_ptxas: self-test passed")
    return 0


def main(arguments):
    if arguments[:1] == ["--self-test"]:
        return self_test()
    if arguments[:1] == ["--compile"] and len(arguments) > 2:
        return compile_and_check(arguments[1], arguments[2:])
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    return check(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
