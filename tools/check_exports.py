#!/usr/bin/env python3
"""Checks that a shared library exports only the public API.

  check_exports.py [--self-test] LIBRARY
"""

import re
import subprocess
import sys

PUBLIC = re.compile(r"((vtable|typeinfo|typeinfo name) for )?tessera::")
INTERNAL = re.compile(r"tessera::(planning|cpu|cuda|[a-z_]*detail)::|tessera::\(anonymous")


def strays(names):
    """Names that should not be exported, such as public functions with internal parameter types."""
    return [name for name in names if not PUBLIC.match(name) or INTERNAL.search(name)]


def exported(library):
    said = subprocess.run(["nm", "-D", "-C", "--defined-only", library], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    return [line.split(maxsplit=2)[2] for line in said.splitlines()]


def self_test():
    good = ["tessera::run(tessera::Plan const&)", "vtable for tessera::Error",
            "typeinfo name for tessera::Error"]
    bad = ["cudaMalloc", "std::vector<tessera::Tensor>::~vector()", "tessera::planning::select()",
           "tessera::cpu::run(int)", "tessera::(anonymous namespace)::f()"]
    assert strays(good + bad) == bad, strays(good + bad)


def main(arguments):
    self_test()
    if arguments == ["--self-test"]:
        return 0
    names = exported(arguments[0])
    if not names:
        print(f"{arguments[0]}: nothing is exported", file=sys.stderr)
        return 1
    found = strays(names)
    for name in found:
        print(f"{arguments[0]}: should not be exported: {name}", file=sys.stderr)
    if not found:
        print(f"check_exports: {len(names)} symbols, all of the public API")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
