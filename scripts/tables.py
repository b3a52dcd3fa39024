#!/usr/bin/env python3
"""Writes the tables of README.md and docs/ from the files in bench/results. A table stands between
two lines, and nobody types into it:

  <!-- table: NAME -->
  <!-- end -->

Usage: scripts/tables.py            writes them all (make tables)
       scripts/tables.py --check    fails where a table is not what the files give

Where the kernel sources have changed since a file was measured, its tables say that they are stale.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from check_results import ROOT, bench_module

MARKED = re.compile(r"^<!-- table: (\S+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"^<!-- (table: .*|end) -->$", re.MULTILINE)
PRODUCTS = ("matmul", "bsr_matmul", "sddmm", "spgemm")
# A short look or one shard: in the folder while somebody works, never a result.
PASSING = re.compile(r"(^|-)quick\.json$|-\d+-of-\d+\.json$")


class Wrong(RuntimeError):
    """A page or a result that no table can be made from."""


def products(result):
    return [record for record in result["cases"] if record["op"] in PRODUCTS]


def attention(result):
    return [record for record in result["cases"] if record["op"] == "attention"]


def summary(result):
    """The products of `make gpu-check`, sustained."""
    cases = bench_module("cases")
    chosen = {case.key for case in cases.read_workload(ROOT / "bench" / "workloads" / "check.json")}
    return [record for record in products(result) if record["state"] == "sustained"
            and cases.case_key(record["op"], record["params"]) in chosen]


# Name -> what of a result it shows, and what of tessera.bench.report makes the lines of it.
TABLES = {
    "machine": (lambda result: result, "ceilings_and_tests"),
    "summary": (summary, "comparison"),
    "products": (products, "comparison"),
    "energy": (products, "energy"),
    "crossover": (products, "crossover"),
    "attention": (attention, "comparison"),
}


def read_results(root):
    """What was measured on GPUs, in the order of the files' names. Of a case that was measured
    several times on one kind of card, the newest counts."""
    read = []
    for path in sorted((root / "bench" / "results").glob("*.json")):
        if PASSING.search(path.name):
            continue
        try:
            result = json.loads(path.read_text())
        except ValueError as error:
            raise Wrong(f"{path}: {error}") from None
        if result["gpu"] is not None:
            read.append(result)
    key, seen = bench_module("results").record_key, set()
    for result in sorted(read, key=lambda result: result["date"], reverse=True):
        keys = [(result["gpu"]["name"], *key(record)) for record in result["cases"]]
        result["cases"] = [record for record, one in zip(result["cases"], keys) if one not in seen]
        seen.update(keys)
    return read


def table(name, results, current_hash):
    """The lines between the markers."""
    if name not in TABLES:
        raise Wrong(f"no table is called {name!r}: there are {', '.join(TABLES)}")
    choose, maker = TABLES[name]
    report = bench_module("report")
    lines = []
    for result in results:
        made = getattr(report, maker)(choose(result))
        if made:
            where = [f"*{line}*" for line in report.provenance(result, current_hash)]
            lines += ["\n\n".join(where), "", *made, ""]
    return "\n".join(["", *(lines or ["Not measured yet.", ""]), ""])


def rewritten(text, results, current_hash):
    """A page with its tables as they should be."""
    pairs = len(MARKED.findall(text))
    if len(MARKER.findall(text)) != 2 * pairs:
        raise Wrong("a <!-- table: NAME --> without its <!-- end -->, or the other way round")
    return MARKED.sub(lambda found: f"<!-- table: {found[1]} -->\n"
                      f"{table(found[1], results, current_hash)}<!-- end -->", text)


def pages(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree [this one]")
    options = parser.parse_args(arguments)
    current = bench_module("sources").source_hash(options.root)
    different = []
    try:
        results = read_results(options.root)
        for page in pages(options.root):
            text = page.read_text()
            try:
                wanted = rewritten(text, results, current)
            except Wrong as error:
                raise Wrong(f"{page}: {error}") from None
            if wanted != text:
                different.append(page.relative_to(options.root))
                if not options.check:
                    page.write_text(wanted)
    except Wrong as error:
        print(f"tables: {error}")
        return 1
    for page in different:
        print(f"tables: {page}: " + ("not what bench/results gives: run 'make tables'"
                                     if options.check else "written"))
    print(f"tables: {len(results)} results, kernel sources {current}")
    return 1 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
