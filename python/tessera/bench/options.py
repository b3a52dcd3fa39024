"""The command-line options of a problem, and the case that they describe, for tessera.bench and
the programs in tools/."""

import argparse
import itertools
import shlex
from typing import Any

from .cases import (
    ALL_PATTERN_ARGUMENTS,
    OPTIONAL,
    PATTERN_ARGUMENTS,
    REQUIRED,
    V_LAYOUTS,
    VOLUMES,
    CaseError,
    dtypes_of,
    factors_of,
    make_case,
)

# {parameter: (option, type or choices, help)}
OPTIONS: dict[str, tuple[str, Any, str]] = {
    "b": ("batch", int, ""), "h": ("heads", int, ""), "hk": ("kv-heads", int, ""),
    "s": ("q-length", int, ""), "skv": ("kv-length", int, ""),
    "d": ("dim", int, ""), "dv": ("dim-v", int, ""),
    "window": ("window-left", int, "visible keys before the query"),
    "softcap": ("softcap", float, ""),
    "sequences": ("sequences", int, "number of packed sequences of uneven lengths"),
    "lengths": ("lengths", float, "exponent of Zipf's law for their lengths [1.2]; with --page for "
                                  "the lengths of all sequences [all have --kv-length]"),
    "page": ("page", int, "keys per page, which are in any order"),
    "block_q": ("block-q", int, "queries per block [--block-kv]"),
    "block_kv": ("block-kv", int, "keys per block [--block-q]"),
    "lists": ("lists", ("shared", "per_head", "per_kv_head"), ""),
    "alike": ("alike", int, "number of adjacent block rows with identical lists"),
    "similar": ("similar", float, "share of the list that these rows have in common"),
    "m": ("m", int, ""), "n": ("n", int, ""), "k": ("k", int, ""),
    "experts": ("experts", int, "number of experts that divide the rows of A, each with a B"),
    "shares": ("shares", float, "how unevenly: 0 is evenly [0.6]"),
    "block": ("block", int, "rows of a block"),
    "block_cols": ("block-cols", int, "columns of a block [--block]"),
    "dtype": ("dtype", str, "bf16; on the CPU f32; of inputs in e4m3 the result is in bf16"),
    "factors": ("factors", str, "which values of an input in e4m3 share a factor [the first]"),
    "kv_dtype": ("kv-dtype", str, "of k and v: e4m3 [--dtype]"),
    "v_layout": ("v-layout", V_LAYOUTS, "what of v in e4m3 is contiguous: the rows or the keys "
                                        "[rows]"),
    "pattern": ("pattern", str, "[random with --density]; sizes count blocks; see "
                                "docs/gpu_check.md"),
    **{name: (name.replace("_", "-"), int, "") for name in ALL_PATTERN_ARGUMENTS},
    **{name: (name, float, "") for name in ("density", "exponent", "zipf")},
    **{name: (name, str, "as in 5x6x10") for name in itertools.chain(*VOLUMES.values())},
}


def add_problem(parser, op):
    """Adds the options of problems of an operation."""
    known = {"dtype", *REQUIRED[op], *OPTIONAL[op]}
    known |= set(ALL_PATTERN_ARGUMENTS) if "pattern" in known else set()
    for name, (option, kind, text) in OPTIONS.items():
        if name in known:
            chosen = {"dtype": dtypes_of, "factors": factors_of}.get(name)
            values = chosen(op) if chosen else kind
            reads = {"choices" if isinstance(values, tuple) else "type": values}
            needed = name in REQUIRED[op] and name != "pattern"
            parser.add_argument("--" + option, dest=name, required=needed, help=text, **reads)
    if "causal" in known:
        parser.add_argument("--causal", action="store_true")
    if "any_order" in known:
        parser.add_argument("--any-order", action="store_true",
                            help="gradients need not have the same bits every time")
    if op in ("matmul", "bsr_matmul"):
        for side in "ab":
            parser.add_argument(f"--transpose-{side}", action="store_true",
                                help=f"{side.upper()} is stored transposed")
    if op == "bsr_matmul":
        parser.add_argument("--sparse", choices=("a", "b"),
                            help="which operand is sparse; b only with --transpose-b: x [m, k] "
                                 "times a sparse w [n, k] [a]")


def option_of(name: str) -> str:
    return "--" + OPTIONS.get(name, (name.replace("_", "-"),))[0]


def case_of(arguments, device):
    """The case that the options describe."""
    op = arguments.command
    params = {name: getattr(arguments, name, None) for name in OPTIONS}
    for flag in ("causal", "any_order"):
        params[flag] = getattr(arguments, flag, None) or None
    params.update(layout_of(arguments))
    if params["density"] is not None and params["pattern"] is None:
        params["pattern"] = "random"
    params["dtype"] = params["dtype"] or ("bf16" if device == "cuda" else "f32")
    given = {name: value for name, value in params.items() if value is not None}
    refuse_unused(op, given)
    return make_case(op, given)


def layout_of(arguments) -> dict[str, str]:
    """--transpose-a, --transpose-b and --sparse as parameters."""
    op, sparse = arguments.command, getattr(arguments, "sparse", None)
    a, b = (getattr(arguments, f"transpose_{side}", False) for side in "ab")
    if op == "bsr_matmul":
        if a or b != (sparse == "b"):
            raise CaseError(f"{op}: expected --sparse b with --transpose-b, or neither of them and "
                            "no --transpose-a: other layouts are not measured")
        return {"side": sparse} if sparse else {}
    return {"transpose": ("t" if a else "n") + ("t" if b else "n")} if a or b else {}


def refuse_unused(op: str, given: dict) -> None:
    """Raises CaseError if an option does not apply to the pattern."""
    pattern = given.get("pattern")
    in_blocks = ("block_q", "block_kv", "lists", "alike", "similar")
    if "lengths" in given and "sequences" not in given and "page" not in given:
        raise CaseError(f"{op}: --lengths applies to packed sequences and to pages: give "
                        "--sequences or --page")
    for name in given:
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
    """The case of a text such as "attention --q-length 16384 --causal"."""
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
