"""The command line: `python -m tessera.bench COMMAND`."""

import argparse
import itertools
import sys

from ..report import markdown
from . import ceilings, machine_code, results, suite, table
from . import peers as adapters
from .cases import (
    ABOUT_ATTENTION,
    ALL_PATTERN_ARGUMENTS,
    OPTIONAL,
    PATTERN_ARGUMENTS,
    REQUIRED,
    STATES,
    VOLUMES,
    CaseError,
    make_case,
    read_workload,
)
from .files import check_writable, in_words, write_json
from .machine import torch_with_gpu, why_no_gpu
from .measure import Settings
from .patterns import NoTessera
from .peers.base import Unavailable
from .tree import find_tree

MOST_SECONDS = 3600

EPILOG = """examples:
  python -m tessera.bench attention --q-length 8192 --causal --block-q 128 --density .25
  python -m tessera.bench bsr_matmul --m 4096 --n 4096 --k 4096 --block 64 --density .1 --device cpu
  python -m tessera.bench suite bench/workloads/quick.json --json out.json --budget 300 --resume
  python -m tessera.bench table out.json
"""


def add_common(parser):
    group = parser.add_argument_group("measuring")
    group.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one")
    group.add_argument("--peers", default="all", help="all, none, or names with commas between")
    group.add_argument("--no-ours", action="store_true", help="peers only")
    group.add_argument("--seconds", type=duration, default=2.0,
                       help="of the sustained state, for each competitor [2]")
    group.add_argument("--states", help="burst, sustained, graph, with commas between")
    group.add_argument("--json", metavar="FILE", help="write the results there")
    group.add_argument("--tree", help="the source tree whose kernels are measured [this folder's]")
    group.add_argument("--commit", help="its commit, where git cannot say")
    group.add_argument("--quiet", action="store_true", help="no progress")


def duration(text):
    """Seconds of measuring, as an option's value."""
    seconds = float(text)
    if not 0 < seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"expected more than 0, up to {MOST_SECONDS}, got {text}")
    return seconds


# `whole` and `number` read an option's value: one of that kind, or more for who takes several.


def add_pattern(parser, whole=int, number=float):
    group = parser.add_argument_group("pattern (sizes count blocks)")
    group.add_argument("--pattern", help="random where --density is given; see docs/gpu_check.md")
    kinds = {**dict.fromkeys(("density", "exponent", "zipf"), number),
             **dict.fromkeys(itertools.chain(*VOLUMES.values()), str)}
    for name in ALL_PATTERN_ARGUMENTS:
        kind = kinds.get(name, whole)
        group.add_argument("--" + name.replace("_", "-"), dest=name, type=kind,
                           help="as in 5x6x10" if kind is str else None)


def add_attention(one, whole=int, number=float, required=True):
    for name, letter in (("batch", "b"), ("heads", "h"), ("kv-heads", "hk"), ("q-length", "s"),
                         ("kv-length", "skv"), ("dim", "d"), ("dim-v", "dv")):
        one.add_argument("--" + name, dest=letter, type=whole, required=required and letter == "s")
    one.add_argument("--causal", action="store_true")
    one.add_argument("--window-left", dest="window", type=whole,
                     help="visible keys before the query")
    one.add_argument("--softcap", type=number)
    one.add_argument("--sequences", type=whole, help="pack so many sequences of uneven lengths")
    one.add_argument("--block-q", type=whole, help="queries per block [--block-kv]")
    one.add_argument("--block-kv", type=whole, help="keys per block [--block-q]")
    one.add_argument("--lists", choices=("shared", "per_head", "per_kv_head"))
    one.add_argument("--alike", type=whole, metavar="N",
                     help="number of adjacent block rows with identical lists")
    one.add_argument("--similar", type=number, help="share of the list that they have in common")


def add_transposes(one):
    one.add_argument("--transpose-a", action="store_true", help="A is stored transposed")
    one.add_argument("--transpose-b", action="store_true", help="B is stored transposed")


def add_sparse(one):
    one.add_argument("--sparse", choices=("a", "b"),
                     help="bsr_matmul: which operand is sparse; b only with --transpose-b: "
                          "x [m, k] times a sparse w [n, k] [a]")


def build_parser():
    parser = argparse.ArgumentParser(prog="python -m tessera.bench", epilog=EPILOG,
                                     description="Measures tessera beside its peers.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    for op in ABOUT_ATTENTION:
        one = commands.add_parser(op, help=f"one {op} case")
        add_attention(one)
        add_pattern(one)
    for op in ("matmul", "bsr_matmul", "sddmm", "spgemm"):
        one_product = commands.add_parser(op, help=f"one {op} case")
        for name in "mnk":
            one_product.add_argument("--" + name, type=int, required=True)
        if op in ("matmul", "bsr_matmul"):
            one_product.add_argument("--experts", type=int, help="share the rows, each with its b")
            one_product.add_argument("--shares", type=float, help="how unevenly: 0 is evenly [0.6]")
        if op in ("matmul", "bsr_matmul"):
            add_transposes(one_product)
        if op == "matmul":
            continue
        one_product.add_argument("--block", type=int, required=True)
        if op != "spgemm":
            one_product.add_argument("--block-cols", type=int)
        if op == "bsr_matmul":
            add_sparse(one_product)
        add_pattern(one_product)

    for op in (*ABOUT_ATTENTION, "matmul", "bsr_matmul", "sddmm", "spgemm"):
        commands.choices[op].add_argument("--dtype", choices=("bf16", "f16", "f32"),
                                          help="bf16; on the CPU f32")
        add_common(commands.choices[op])

    many = commands.add_parser("suite", help="the cases of workload files")
    many.add_argument("workloads", nargs="+")
    many.add_argument("--shard", default="1/1", help="I/N: every N-th case, from the I-th on")
    many.add_argument("--budget", type=float, help="start no new case after so many seconds")
    many.add_argument("--resume", action="store_true", help="leave out what the file holds already")
    many.add_argument("--again", default="",
                      help="peers: measure again where they were unavailable")
    many.add_argument("--list", action="store_true", help="print the cases and stop")
    add_common(many)

    joined = commands.add_parser("merge", help="join result files of one card")
    joined.add_argument("files", nargs="+")
    joined.add_argument("--json", metavar="FILE", required=True)

    shown = commands.add_parser("table", help="print a result file")
    shown.add_argument("file")
    shown.add_argument("--markdown", action="store_true")
    shown.add_argument("--op", help="only this operation")
    shown.add_argument("--state", help="only this state")

    limits = commands.add_parser("ceilings", help="what this GPU gives at most")
    limits.add_argument("--program", metavar="PATH",
                        help=f"of bench/ceilings [{ceilings.PROGRAM} of the tree]")
    limits.add_argument("--seconds", type=float, default=2.0,
                        help="of each sustained measurement, 0.1 to 60 [2]")
    limits.add_argument("--json", metavar="FILE",
                        help="write them there; into a result of this card")
    limits.add_argument("--tree", help="the source tree [this folder's]")
    limits.add_argument("--commit", help="its commit, where git cannot say")
    limits.add_argument("--quiet", action="store_true", help="no progress")

    listed = commands.add_parser("peers", help="which peers are here, and why not")
    listed.add_argument("--device", choices=("cuda", "cpu"))
    return parser


# The options whose names are not those of the parameters that they set.
OPTIONS = {"b": "batch", "h": "heads", "hk": "kv-heads", "s": "q-length", "skv": "kv-length",
           "d": "dim", "dv": "dim-v", "window": "window-left"}
FIELDS = ("b", "h", "hk", "s", "skv", "d", "dv", "window", "softcap", "sequences", "block_q",
          "block_kv", "lists", "alike", "similar", "m", "n", "k", "block", "block_cols", "experts",
          "shares", "pattern")


def option_of(name: str) -> str:
    return "--" + OPTIONS.get(name, name.replace("_", "-"))


def case_of(arguments, device):
    """The one case that the options describe."""
    op = arguments.command
    params = {name: getattr(arguments, name, None) for name in (*FIELDS, *ALL_PATTERN_ARGUMENTS)}
    params["causal"] = getattr(arguments, "causal", None) or None
    params.update(layout_of(arguments))
    if params["density"] is not None and params["pattern"] is None:
        params["pattern"] = "random"
    params["dtype"] = arguments.dtype or ("bf16" if device == "cuda" else "f32")
    given = {name: value for name, value in params.items() if value is not None}
    refuse_unused(op, given)
    return make_case(op, given)


def layout_of(arguments) -> dict[str, str]:
    """--transpose-a, --transpose-b and --sparse as parameters."""
    op, sparse = arguments.command, getattr(arguments, "sparse", None)
    a, b = (getattr(arguments, f"transpose_{side}", False) for side in "ab")
    if sparse and op != "bsr_matmul":
        raise CaseError(f"{op}: --sparse applies to bsr_matmul")
    if op == "bsr_matmul":
        if a or b != (sparse == "b"):
            raise CaseError(f"{op}: expected --sparse b with --transpose-b, or neither of them and "
                            "no --transpose-a: other layouts are not measured")
        return {"side": sparse} if sparse else {}
    if (a or b) and op != "matmul":
        raise CaseError(f"{op}: --transpose-{'a' if a else 'b'} applies to matmul, bsr_matmul")
    return {"transpose": ("t" if a else "n") + ("t" if b else "n")} if a or b else {}


def refuse_unused(op: str, given: dict) -> None:
    """Raises CaseError where an option does not apply to the operation or the pattern."""
    pattern = given.get("pattern")
    in_blocks = ("block_q", "block_kv", "lists", "alike", "similar")
    for name in given:
        known = {"dtype", *REQUIRED[op], *OPTIONAL[op]}
        if name not in known and name not in ALL_PATTERN_ARGUMENTS:
            raise CaseError(f"{op}: {option_of(name)} does not apply to {op}")
        if pattern is None and name in in_blocks:
            raise CaseError(f"{op}: {option_of(name)} applies to block masks: give --density or "
                            "--pattern")
        users = [one for one, names in PATTERN_ARGUMENTS.items() if name in names]
        if users and pattern not in users and pattern in (None, *PATTERN_ARGUMENTS):
            raise CaseError(f"{op}: {option_of(name)} applies to the patterns {', '.join(users)}"
                            + (f", not to {pattern}" if pattern else ""))


def settings_of(arguments, device):
    names = arguments.peers
    if names not in ("all", "none"):
        known = adapters.peer_names()
        for name in names.split(","):
            if name not in known:
                raise CaseError(f"--peers: expected some of {', '.join(known)}, got {name!r}")
    wanted = "all" if names == "all" else () if names == "none" else tuple(names.split(","))
    states = tuple(arguments.states.split(",")) if arguments.states else None
    for state in states or ():
        if state not in STATES:
            raise CaseError(f"--states: expected {', '.join(STATES)}, got {state!r}")
    return Settings(device=device, seconds=arguments.seconds, states=states, peers=wanted,
                    ours=not arguments.no_ours)


def run_measuring(arguments):
    device = arguments.device or ("cuda" if torch_with_gpu() else "cpu")
    if device == "cuda" and not torch_with_gpu():
        raise CaseError(f"--device cuda: {why_no_gpu()}")
    many = arguments.command == "suite"
    if many:
        which, count = suite.parse_shard(arguments.shard)
        every = {}  # a case that several files hold is measured once
        for case in (case for path in arguments.workloads for case in read_workload(path)):
            every.setdefault(case.key, case)
        cases = list(every.values())[which::count]
        if arguments.list:
            for case in cases:
                print(case.label, "", ",".join(case.states))
            return 0
    else:
        cases = [case_of(arguments, device)]
    check_writable("--json", arguments.json)
    options = {}
    if many:
        again = [name for name in arguments.again.split(",") if name]
        options = {"resume": arguments.resume, "again": again, "budget": arguments.budget}
    run = suite.Suite(arguments.json, settings_of(arguments, device), tree=arguments.tree,
                      commit=arguments.commit, quiet=arguments.quiet,
                      ceilings=many or bool(arguments.json), **options)
    outcome = run.run(cases)
    if outcome == suite.STOPPED:
        print("tessera.bench: stopped; what was measured is kept", file=sys.stderr)
    keys = {case.key for case in cases}
    shown = [one for one in run.result["cases"] if results.record_key(one)[0] in keys]
    if shown:
        print(table.text_table(shown))
        print(*markdown.provenance(run.result))
    return outcome


def run_ceilings(arguments):
    if not 0.1 <= arguments.seconds <= 60:
        raise CaseError(f"--seconds: expected 0.1 to 60, got {arguments.seconds:g}")
    check_writable("--json", arguments.json)
    if not torch_with_gpu():
        raise CaseError(f"ceilings: {why_no_gpu()}")
    result = ceilings.measure_all(arguments.program, arguments.seconds, arguments.json,
                                  arguments.tree, arguments.commit, arguments.quiet)
    print("\n".join(markdown.ceilings(result)))
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
    lines = markdown.comparison(records) if arguments.markdown else [table.text_table(records)]
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
    run = {"ceilings": run_ceilings, "merge": run_merge, "table": run_table, "peers": run_peers}
    try:
        return run.get(arguments.command, run_measuring)(arguments)
    except (CaseError, NoTessera, results.Mixed, OSError, ValueError) as error:
        print(f"tessera.bench: {in_words(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tessera.bench: stopped", file=sys.stderr)
        return suite.STOPPED
