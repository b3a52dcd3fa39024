"""The command line: `python -m tessera.report RESULTS... -o PAGE`."""

import argparse

from ..bench.files import check_writable, run_program, write_whole
from ..bench.machine_code import committed
from ..bench.tree import find_tree
from . import page, reading

EPILOG = """examples:
  python -m tessera.report bench/results/*.json -o report.html

Files of one card are put together; of a case that several have, the newest counts. Each card has a
part of the page to itself. Where this runs within the source tree, the page says how many cases are
stale: their kernels have changed since. Nothing is written unless everything could be read:
otherwise the exit status is 2, with the reason.
"""


def build_parser():
    parser = argparse.ArgumentParser(
        prog="python -m tessera.report", epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Makes one self-contained page of HTML from files that tessera.bench wrote.")
    parser.add_argument("results", nargs="+", metavar="RESULTS.json")
    parser.add_argument("-o", "--output", required=True, metavar="PAGE.html")
    parser.add_argument("--tree", help="the source tree whose kernels are the current ones "
                                       "[this folder's]")
    return parser


def run(options):
    check_writable("--output", options.output)
    tree = find_tree(options.tree)
    kernels = committed(tree) if tree else None
    cards = reading.cards(reading.read_all(options.results), kernels)
    write_whole(options.output, page.make(cards))
    print(f"{options.output}: {sum(len(card.all('cases')) for card in cards)} cases, "
          f"{', '.join(card.title for card in cards)}")
    return 0


def main(arguments=None):
    return run_program("tessera.report", run, build_parser().parse_args(arguments))
