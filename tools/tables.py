#!/usr/bin/env python3
"""Writes the tables and the pictures of README.md and docs/ from the files in bench/results. They
stand between two lines, and nobody types into them:

  <!-- table: NAME -->
  <!-- end -->

or <!-- picture: NAME -->. Pictures are files in docs/images/measured, where nothing else lies.

Usage: tools/tables.py            writes them all (make tables)
       tools/tables.py --check    fails where one is not what the files give
       tools/tables.py --report FILE    writes all results as one page instead (make report)

Tables and pictures say how many of their cases are stale: their kernels have changed since. The
kernels are those of bench/machine_code.json.
"""

import argparse
import os
import re
import sys
from pathlib import Path

from check_results import ROOT, bench_module, package_module

card_tables, case_tables, headline, markdown, pictures, reading, report, sweep_tables = (
    package_module(f"report.{name}") for name in (
        "card_tables", "case_tables", "headline", "markdown", "pictures", "reading", "cli",
        "sweep_tables"))
cases, files, machine_code = map(bench_module, ("cases", "files", "machine_code"))

MARKED = re.compile(r"^<!-- (table|picture): (\S+) -->\n(.*?)^<!-- end -->$",
                    re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"^<!-- ((table|picture): .*|end) -->$", re.MULTILINE)
IMAGES = Path("docs") / "images" / "measured"
PRODUCTS = ("matmul", "bsr_matmul", "sddmm", "spgemm")
SHAPES = "shapes"  # a folder of bench/results: sweeps, a file per operation and seed
# A short look or one shard: in the folder while somebody works, never a result.
PASSING = re.compile(r"(^|-)quick\.json$|-\d+-of-\d+\.json$")


class Wrong(RuntimeError):
    """A page or a result that nothing can be made from."""


def everything(result):
    return result["cases"]


def of_ops(*ops, models=False, backend=None):
    """What chooses a result's records of these operations. What models and solvers do has a table
    of its own, and is in no other that lists cases; so have cases that name a backend."""
    def chosen(result):
        path = ROOT / "bench" / "workloads" / "models.json"
        known = {case.key for case in cases.read_workload(path)}
        return [record for record in result["cases"] if record["op"] in ops and (
            cases.case_key(record["op"], record["params"]) in known) == models
            and record["params"].get("backend") == backend]

    return chosen


# Tables of sweeps: of the files in bench/results/shapes.
OF_SWEEPS = ("shapes", "worst_shapes")
# Tables over all files of a card; else each file has its own, and the headline is of one card.
OF_A_CARD = ("glance", "model_error", *OF_SWEEPS)
HEADLINE = "headline"
HEADLINE_PICTURE = "attention_density"
# Name -> what of a result it shows, and what tells it.
TABLES = {
    "glance": (everything, card_tables.glance),
    "machine": (lambda result: result, card_tables.ceilings_and_tests),
    "ceilings": (lambda result: result, card_tables.ceilings),
    "products": (of_ops(*PRODUCTS), case_tables.comparison),
    "crossover": (of_ops(*PRODUCTS), case_tables.crossover),
    "attention": (of_ops("attention"), case_tables.comparison),
    "attention_backward": (of_ops("attention_backward"), case_tables.comparison),
    "lists": (of_ops("attention", *cases.LISTS), case_tables.lists),
    "workloads": (of_ops("attention", *PRODUCTS, models=True), case_tables.workloads),
    "sm80": (of_ops(*cases.ATTENTION_PASSES, *PRODUCTS, backend="sm80"), case_tables.comparison),
    "host": (lambda result: result.get("host", []), case_tables.host_times),
    "eager": (lambda result: result.get("eager", []), case_tables.eager_calls),
    "model_error": (everything, card_tables.predictions),
    "shapes": (everything, sweep_tables.distribution),
    "worst_shapes": (everything, sweep_tables.worst),
}


def result_paths(root, folder="."):
    return [path for path in sorted((root / "bench" / "results" / folder).glob("*.json"))
            if not PASSING.search(path.name)]


def read_results(root, folder="."):
    """{file: result} of what was measured on GPUs, in the order of the files' names. Of a case
    that was measured several times on one kind of card, the newest counts."""
    try:
        results = reading.read_all(result_paths(root, folder))
    except files.Unreadable as error:
        raise Wrong(str(error)) from None
    for file, result in results.items():
        if folder == SHAPES and not result.get("sweeps"):
            raise Wrong(f"{folder}/{file}: no sweeps: run the sweep on it with --resume")
    return {file: result for file, result in results.items() if result["gpu"] is not None}


def committed_kernels(root):
    kernels = machine_code.committed(root)
    if kernels is None:
        raise Wrong(f"{root}: no bench/machine_code.json, from which stale results are known")
    return kernels


def kinds(records):
    """Which kernels were measured, to begin a line about one file of several."""
    found = {cases.kind_of(record["op"]) for record in records}
    return " and ".join(sorted(found)) + ": " if found else ""


def cases_of(name, result, chosen):
    """The records whose stale ones a table counts: those that it shows, or all beside which tests
    ran. Ceilings and times of the host are not those of kernels."""
    if name in ("ceilings", "host", "eager"):
        return []
    return result["cases"] if name == "machine" else chosen


def headline_lines(results, kernels):
    """The lines of the README, of the card that has most of them."""
    chosen = headline.lines_of(headline.best_card(results))
    if not chosen:
        return ["Not measured yet."]
    *_, (*_, result) = chosen
    stale = machine_code.in_words([record for _, record, _ in chosen], kernels)
    return [*markdown.lines([headline.table(chosen)]), "",
            "*" + "; ".join([markdown.card(result), *stale]) + "*"]


def table(name, results, kernels):
    """The lines between the markers."""
    if name == HEADLINE:
        return "\n".join(["", *headline_lines(results, kernels), "", ""])
    if name not in TABLES:
        raise Wrong(f"no table is called {name!r}: there are {', '.join([HEADLINE, *TABLES])}")
    choose, blocks = TABLES[name]
    groups, lines = [[result] for result in results], []
    if name in OF_A_CARD:
        groups = [[*card.results.values()] for card in reading.cards(dict(enumerate(results)))]
    for together in groups:
        chosen = [choose(result) for result in together]
        every = chosen[0] if len(chosen) == 1 else [one for some in chosen for one in some]
        made = markdown.lines(blocks(every))
        if made:
            several = len(together) > 1
            where = [f"*{line}*" for line in sweep_tables.provenance(together, kernels, every)] if (
                name in OF_SWEEPS) else [
                f"*{kinds(some) if several else ''}{line}*"
                for result, some in zip(together, chosen, strict=True)
                for line in markdown.provenance(result, kernels, cases_of(name, result, some))]
            lines += ["\n\n".join(where), "", *made, ""]
    return "\n".join(["", *(lines or ["Not measured yet.", ""]), ""])


def picture(name, results, kernels, images, folder):
    """The lines between the markers of a page in that folder; the files that they refer to are
    added to images, {path: content}."""
    if name == HEADLINE:
        name, results = HEADLINE_PICTURE, headline.best_card(results)
    if name not in pictures.PICTURES:
        names = ", ".join([HEADLINE, *pictures.PICTURES])
        raise Wrong(f"no picture is called {name!r}: there are {names}")
    lines = []
    for drawn in pictures.draw(name, results, kernels):
        path = IMAGES / drawn.file
        if images.setdefault(path, drawn.svg) != drawn.svg:
            raise Wrong(f"two pictures would be called {path}: the names of cards are too alike")
        lines.append(f"![{drawn.title}]({Path(os.path.relpath(path, folder)).as_posix()})")
    return "\n".join(["", *lines, "", ""]) if lines else ""


def rewritten(text, results, sweeps, kernels, images, folder):
    """A page in that folder of the tree, with its tables and pictures as they should be."""
    pairs = len(MARKED.findall(text))
    if len(MARKER.findall(text)) != 2 * pairs:
        raise Wrong("a <!-- table: NAME --> or <!-- picture: NAME --> without its <!-- end -->, or "
                    "the other way round")

    def filled(found):
        kind, name = found[1], found[2]
        known = OF_SWEEPS if kind == "table" else pictures.OF_SWEEPS
        shown = sweeps if name in known else results
        lines = (table(name, shown, kernels) if kind == "table"
                 else picture(name, shown, kernels, images, folder))
        return f"<!-- {kind}: {name} -->\n{lines}<!-- end -->"

    return MARKED.sub(filled, text)


def write_report(root, file):
    """`tessera report` with all results of the tree. Returns its exit status."""
    results = [*result_paths(root), *result_paths(root, SHAPES)]
    if not results:
        raise Wrong(f"{root}: no results in bench/results")
    words = [*results, "-o", file, "--tree", root]
    return report.main([str(word) for word in words])


def pages(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def wanted_files(root, results, sweeps, kernels):
    """{path in the tree: what it should hold, None where it should not be}."""
    wanted = {path.relative_to(root): None for path in (root / IMAGES).glob("*")}
    images: dict = {}
    for page in pages(root):
        path = page.relative_to(root)
        try:
            wanted[path] = rewritten(page.read_text(encoding="utf-8"), list(results.values()),
                                     list(sweeps.values()), kernels, images, path.parent)
        except Wrong as error:
            raise Wrong(f"{page}: {error}") from None
    return {**wanted, **images}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    instead.add_argument("--report", type=Path, metavar="FILE",
                         help="write all results as one page of HTML, and nothing else")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree [this one]")
    options = parser.parse_args(arguments)
    try:
        if options.report:
            return write_report(options.root, options.report)
        kernels = committed_kernels(options.root)
        results, sweeps = (read_results(options.root, folder) for folder in (".", SHAPES))
        wanted = wanted_files(options.root, results, sweeps, kernels)
    except Wrong as error:
        print(f"tables: {error}")
        return 1
    different = False
    for path, content in wanted.items():
        file = options.root / path
        if content == (file.read_text(encoding="utf-8") if file.exists() else None):
            continue
        different = True
        if options.check:
            print(f"tables: {path}: not what bench/results gives: run 'make tables'")
        elif content is None:
            file.unlink()
            print(f"tables: {path}: removed")
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
            print(f"tables: {path}: written")
    print(f"tables: {len(results) + len(sweeps)} results")
    return 1 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
