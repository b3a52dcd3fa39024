"""The command line: `python -m tessera.bench COMMAND`."""

import argparse
import sys
from dataclasses import replace

from ..report import card_tables, case_tables, markdown
from . import ceilings, machine_code, ratios, results, shapes, suite, sweep, table
from . import peers as adapters
from .cases import BACKENDS, REQUIRED, STATES, CaseError, read_workload
from .files import check_writable, run_program, write_json
from .machine import chosen_device, torch_with_gpu, why_no_gpu
from .measure import Settings
from .options import add_problem, case_of
from .peers.base import Unavailable
from .tree import find_tree

MOST_SECONDS = 3600
MAX_SHAPES = 10000

EPILOG = """examples:
  python -m tessera.bench attention --q-length 8192 --causal --block-q 128 --density .25
  python -m tessera.bench bsr_matmul --m 4096 --n 4096 --k 4096 --block 64 --density .1 --device cpu
  python -m tessera.bench suite bench/workloads/quick.json --json out.json --budget 300 --resume
  python -m tessera.bench table out.json
"""


def add_common(parser):
    group = parser.add_argument_group("measuring")
    group.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is a GPU")
    group.add_argument("--peers", default="all", help="all, none, or names separated by commas")
    group.add_argument("--backend", choices=BACKENDS,
                       help="tessera runs kernels of this backend only")
    group.add_argument("--no-ours", action="store_true", help="peers only")
    group.add_argument("--seconds", type=duration, default=2.0,
                       help="of the sustained state, for each competitor [2]")
    group.add_argument("--states", help="burst, sustained, graph, with commas between")
    add_file(group, "write the results there")


def add_file(group, about):
    """What every command has that measures into a file."""
    group.add_argument("--json", metavar="FILE", help=about)
    group.add_argument("--tree", help="the source tree whose kernels are measured [this folder's]")
    group.add_argument("--commit", help="its commit, if git cannot tell")
    group.add_argument("--quiet", action="store_true", help="no progress")


def duration(text):
    """The value of an option for seconds of measurement."""
    seconds = float(text)
    if not 0 < seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"expected more than 0, up to {MOST_SECONDS}, got {text}")
    return seconds


def build_parser():
    parser = argparse.ArgumentParser(prog="python -m tessera.bench", epilog=EPILOG,
                                     description="Measures tessera and its peers.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    for op in REQUIRED:
        one = commands.add_parser(op, help=f"one {op} case")
        one.set_defaults(resume=False, budget=None)
        add_problem(one, op)
        add_common(one)

    many = commands.add_parser("suite", help="the cases of workload files")
    many.add_argument("workloads", nargs="+")
    many.add_argument("--shard", default="1/1", help="I/N: every N-th case, from the I-th on")
    many.add_argument("--budget", type=float, help="start no case after this number of seconds")
    many.add_argument("--resume", action="store_true", help="skip cases that the file has already")
    many.add_argument("--list", action="store_true", help="print the cases and stop")
    add_common(many)

    drawn = commands.add_parser("sweep", help="shapes drawn at random, and how the ratios to the "
                                               "best alternative are distributed")
    drawn.add_argument("op", choices=tuple(shapes.DRAWN))
    drawn.add_argument("--seed", type=int, default=1, help="of the shapes [1]")
    drawn.add_argument("--count", type=int, default=120, help="of the shapes [120]")
    drawn.add_argument("--rows", action="store_true",
                       help="measure every kernel row as well: what the planner's choice costs")
    drawn.add_argument("--shard", default="1/1", help="I/N: every N-th shape, from the I-th on")
    drawn.add_argument("--budget", type=float, help="start no new shape after so many seconds")
    drawn.add_argument("--resume", action="store_true", help="leave out what the file has")
    drawn.add_argument("--list", action="store_true", help="print the shapes and stop")
    add_common(drawn)

    joined = commands.add_parser("merge", help="join result files of one card")
    joined.add_argument("files", nargs="+")
    joined.add_argument("--json", metavar="FILE", required=True)

    shown = commands.add_parser("table", help="print a result file")
    shown.add_argument("file")
    shown.add_argument("--markdown", action="store_true")
    shown.add_argument("--op", help="only this operation")
    shown.add_argument("--state", help="only this state")

    limits = commands.add_parser("ceilings", help="measure the limits of this GPU")
    limits.add_argument("--library", metavar="PATH",
                        help=f"of bench/ceilings [{ceilings.LIBRARY} of the tree]")
    limits.add_argument("--seconds", type=float, default=2.0,
                        help="of each sustained measurement, 0.1 to 60 [2]")
    add_file(limits, "write them there; into a result of this card")

    listed = commands.add_parser("peers", help="list the peers, and why some are unavailable")
    listed.add_argument("--device", choices=("cuda", "cpu"))
    return parser


def some_of(option, text, known):
    """The names that an option gives, with commas between."""
    for name in text.split(","):
        if name not in known:
            raise CaseError(f"{option}: expected some of {', '.join(known)}, got {name!r}")
    return tuple(text.split(","))


def settings_of(arguments, device):
    peers, states = arguments.peers, arguments.states
    if peers != "all":
        peers = () if peers == "none" else some_of("--peers", peers, adapters.peer_names())
    return Settings(device=device, seconds=arguments.seconds, peers=peers,
                    states=some_of("--states", states, STATES) if states else None,
                    ours=not arguments.no_ours)


def wanted_cases(arguments, device):
    """The case of the options, or this shard of the cases of workload files. A case of several
    files is measured once."""
    if arguments.command != "suite":
        return [case_of(arguments, device).on(arguments.backend)]
    which, count = suite.parse_shard(arguments.shard)
    every = {}
    for case in (case.on(arguments.backend) for path in arguments.workloads
                 for case in read_workload(path)):
        every.setdefault(case.key, case)
    return list(every.values())[which::count]


def run_measuring(arguments):
    device = chosen_device(arguments.device)
    many = arguments.command == "suite"
    cases = wanted_cases(arguments, device)
    if many and arguments.list:
        for case in cases:
            print(case.label, "", ",".join(case.states))
        return 0
    check_writable("--json", arguments.json)
    run = suite.Suite(arguments.json, settings_of(arguments, device), tree=arguments.tree,
                      commit=arguments.commit, resume=arguments.resume, budget=arguments.budget,
                      quiet=arguments.quiet, ceilings=many or bool(arguments.json))
    outcome = run.run(cases)
    if outcome == suite.STOPPED:
        print("tessera.bench: stopped; what was measured is kept", file=sys.stderr)
    keys = {case.key for case in cases}
    shown = [one for one in run.result["cases"] if results.record_key(one)[0] in keys]
    if shown:
        print(table.text_table(shown))
        print(*markdown.provenance(run.result))
    return outcome


def run_sweep(arguments):
    if arguments.seed < 0:
        raise CaseError(f"--seed: expected 0 or more, got {arguments.seed}")
    if not 1 <= arguments.count <= MAX_SHAPES:
        raise CaseError(f"--count: expected 1 to {MAX_SHAPES}, got {arguments.count}")
    if arguments.list:
        for case in shapes.draw(arguments.op, arguments.seed, arguments.count):
            print(case.on(arguments.backend).label)
        return 0
    check_writable("--json", arguments.json)
    if arguments.peers == "all":
        arguments.peers = ",".join(sweep.ALTERNATIVES[arguments.op])
    arguments.states = arguments.states or ",".join(ratios.STATES)
    settings = settings_of(arguments, chosen_device(arguments.device))
    run = sweep.Sweep(arguments.op, arguments.seed, arguments.count,
                      suite.parse_shard(arguments.shard), arguments.json,
                      replace(settings, rows=arguments.rows), backend=arguments.backend,
                      tree=arguments.tree,
                      commit=arguments.commit, quiet=arguments.quiet, resume=arguments.resume,
                      budget=arguments.budget)
    outcome = run.sweep()
    if outcome == suite.STOPPED:
        print("tessera.bench: stopped; what was measured is kept", file=sys.stderr)
    for one in sweep.report(run.result, arguments.op, arguments.seed, run.records()):
        print("\n".join(markdown.lines([one])))
    print(*markdown.provenance(run.result))
    return outcome


def run_ceilings(arguments):
    if not 0.1 <= arguments.seconds <= 60:
        raise CaseError(f"--seconds: expected 0.1 to 60, got {arguments.seconds:g}")
    check_writable("--json", arguments.json)
    if not torch_with_gpu():
        raise CaseError(f"ceilings: {why_no_gpu()}")
    result = ceilings.measure_all(arguments.library, arguments.seconds, arguments.json,
                                  arguments.tree, arguments.commit, arguments.quiet)
    print("\n".join(markdown.lines(card_tables.ceilings(result))))
    print(*markdown.provenance(result), sep="\n")
    return 0


def run_merge(arguments):
    check_writable("--json", arguments.json)
    merged = results.merge([results.read(path) for path in arguments.files], arguments.files)
    write_json(arguments.json, merged)
    print(f"{arguments.json}: {len(merged['cases'])} cases of {len(arguments.files)} files")
    return 0


def run_table(arguments):
    result = results.read(arguments.file)
    records = [one for one in result["cases"]
               if arguments.op in (None, one["op"])
               and arguments.state in (None, one["state"])]
    lines = (markdown.lines(case_tables.comparison(records)) if arguments.markdown else
             [table.text_table(records)])
    tree = find_tree()
    print("\n".join(lines) if records else "no such case")
    print()
    kernels = machine_code.committed(tree) if tree else None
    print(*markdown.provenance(result, kernels, records), sep="\n")
    return 0


def run_peers(arguments):
    for name in adapters.peer_names(arguments.device):
        try:
            print(f"{name:16} {adapters.get_peer(name).version()}")
        except Unavailable as error:
            print(f"{name:16} unavailable: {error}")
    return 0


def main(arguments=None):
    arguments = build_parser().parse_args(arguments)
    run = {"sweep": run_sweep, "ceilings": run_ceilings, "merge": run_merge, "table": run_table,
           "peers": run_peers}
    return run_program("tessera.bench", run.get(arguments.command, run_measuring), arguments)
