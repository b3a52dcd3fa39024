"""One problem on the command line: its options, and the case that they describe. tessera.bench,
tessera.tune and the programs in tools/ read problems here."""

import argparse
import itertools
import shlex

from .cases import (
    ABOUT_ATTENTION,
    ALL_PATTERN_ARGUMENTS,
    DTYPES,
    OPTIONAL,
    PATTERN_ARGUMENTS,
    REQUIRED,
    VOLUMES,
    CaseError,
    make_case,
)

# `whole` and `number` read an option's value: one, or several of them for `tessera tune`.


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
    one.add_argument("--lengths", type=number, help="exponent of Zipf's law of their lengths [1.2]")
    one.add_argument("--block-q", type=whole, help="queries per block [--block-kv]")
    one.add_argument("--block-kv", type=whole, help="keys per block [--block-q]")
    one.add_argument("--lists", choices=("shared", "per_head", "per_kv_head"))
    one.add_argument("--alike", type=whole, metavar="N",
                     help="number of adjacent block rows with identical lists")
    one.add_argument("--similar", type=number, help="share of the list that they have in common")


def add_products(one, op=None, whole=int, number=float):
    """Those of one product, or with op=None of every product, none of them required."""
    for name in "mnk":
        one.add_argument("--" + name, type=whole, required=op is not None)
    if op in (None, "matmul", "bsr_matmul"):
        one.add_argument("--experts", type=whole, help="divide the rows of A, each expert has a B")
        one.add_argument("--shares", type=number, help="how unevenly: 0 is evenly [0.6]")
        one.add_argument("--transpose-a", action="store_true", help="A is stored transposed")
        one.add_argument("--transpose-b", action="store_true", help="B is stored transposed")
    if op != "matmul":
        one.add_argument("--block", type=whole, required=op is not None, help="rows of a block")
    if op not in ("matmul", "spgemm"):
        one.add_argument("--block-cols", type=whole, help="columns of a block [--block]")
    if op in (None, "bsr_matmul"):
        one.add_argument("--sparse", choices=("a", "b"),
                         help="bsr_matmul: which operand is sparse; b only with --transpose-b: "
                              "x [m, k] times a sparse w [n, k] [a]")


def add_dtype(one):
    one.add_argument("--dtype", choices=DTYPES, help="bf16; on the CPU f32")


def add_problem(parser, op):
    """All options of one problem of an operation."""
    if op in ABOUT_ATTENTION:
        add_attention(parser)
    else:
        add_products(parser, op)
    if op != "matmul":
        add_pattern(parser)
    add_dtype(parser)


# The options whose names are not those of the parameters that they set.
OPTIONS = {"b": "batch", "h": "heads", "hk": "kv-heads", "s": "q-length", "skv": "kv-length",
           "d": "dim", "dv": "dim-v", "window": "window-left"}
FIELDS = ("b", "h", "hk", "s", "skv", "d", "dv", "window", "softcap", "sequences", "lengths",
          "block_q", "block_kv", "lists", "alike", "similar", "m", "n", "k", "block", "block_cols",
          "experts", "shares", "pattern")


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
    if "lengths" in given and "sequences" not in given:
        raise CaseError(f"{op}: --lengths applies to packed sequences: give --sequences")
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


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise CaseError(f"{self.prog}: {message}")


def parse_case(text):
    """The case that a text names, as in "attention --q-length 16384 --causal"."""
    op, *words = shlex.split(text) or [""]
    if op not in REQUIRED:
        raise CaseError(f"op: expected one of {', '.join(REQUIRED)}, got {op!r}")
    for word in words:
        if "=" in word and not word.startswith("-"):
            raise CaseError(f"{op}: expected options (python -m tessera.bench {op} --help lists "
                            f"them), got {word!r}")
    parser = _Parser(prog=op, add_help=False)
    add_problem(parser, op)
    return case_of(parser.parse_args(words, argparse.Namespace(command=op)), "cuda")
