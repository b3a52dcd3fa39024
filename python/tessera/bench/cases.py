"""Measured cases as data: a case is an operation and a flat dictionary of parameters."""

import itertools
import json
import math
import re
from dataclasses import dataclass

from . import schema
from .files import read_json

STATES = ("burst", "sustained", "graph")

PATTERN_DEFAULTS = {"pattern": None, "seed": 1}
# The parameters of a pattern besides its size, and the generator's names of those that cases name
# differently.
PATTERN_ARGUMENTS = {
    "random": ("density", "seed"),
    "banded": ("half_width",),
    "bigbird": ("half_width", "global", "random", "seed"),
    "block_diagonal": ("groups", "zipf", "seed"),
    "butterfly": ("levels",),
    "power_law": ("density", "exponent", "seed"),
    "power_law_graph": ("density", "exponent", "seed"),
    "n_of_m": ("keep", "of", "seed"),
    "vertical_slash": ("verticals", "slashes", "seed"),
    "heavy_hitters": ("best", "seed"),
    "sliding_tile": ("volume", "neighbourhood", "tile_blocks"),
    "mesh": ("nodes", "unknowns"),
}
GENERATORS_NAMES = {"global": "globals", "keep": "n", "of": "m", "best": "k",
                    "tile_blocks": "blocks"}
CAUSAL_PATTERNS = ("vertical_slash", "heavy_hitters")  # causal where the case is
# Sizes along three axes, as in "5x6x10", which determine the size of the pattern.
VOLUMES = {"sliding_tile": ("volume", "neighbourhood"), "mesh": ("nodes",)}
ALL_PATTERN_ARGUMENTS = tuple(dict.fromkeys(itertools.chain(*PATTERN_ARGUMENTS.values())))

# Operations that make the lists of an attention case: from its pattern as booleans, or from scores,
# of which they keep as many per row as the longest row has. Parameters are those of the attention
# case.
LISTS = ("list_blocks", "top_k_blocks")
# The backward pass computes dq, dk and dv from the gradient of out, and from out and lse of the
# forward pass.
ATTENTION_PASSES = ("attention", "attention_backward")
ABOUT_ATTENTION = (*ATTENTION_PASSES, *LISTS)
ATTENTION, PRODUCTS = "attention", "products"  # kinds of operations

# Parameters an operation must have, and those that have a default.
REQUIRED = {
    **dict.fromkeys(ATTENTION_PASSES, ("s",)),
    **dict.fromkeys(LISTS, ("s", "pattern")),
    "matmul": ("m", "n", "k"),
    "bsr_matmul": ("m", "n", "k", "block", "pattern"),
    "sddmm": ("m", "n", "k", "block", "pattern"),
    "spgemm": ("m", "n", "k", "block", "pattern"),
}
OPTIONAL: dict[str, dict] = {
    # alike: number of adjacent rows of blocks that share one list, or with `similar` that share of
    # a list. sequences: the s tokens are packed sequences whose lengths follow Zipf's law with the
    # exponent `lengths`. page: keys are in pages of that many; each of the b sequences has skv
    # keys, or with `lengths` the i-th longest skv / i^lengths.
    "attention": {"b": 1, "h": 16, "hk": None, "skv": None, "d": 128, "dv": None, "causal": False,
                  "window": None, "softcap": 0.0, "block_q": None, "block_kv": None,
                  "lists": "shared", "alike": 1, "similar": None, "sequences": None,
                  "lengths": None, "page": None,
                  **PATTERN_DEFAULTS},
    # experts: the number of matrices b, among which the rows of a are divided by Zipf's law with
    # the exponent `shares`.
    "matmul": {"transpose": None, "seed": 1, "experts": None, "shares": None, "factors": None},
    # side b is the linear layer: x [m, k] times the transpose of a sparse w [n, k].
    "bsr_matmul": {"side": None, "factors": None, "block_cols": None, "experts": None,
                   "shares": None, **PATTERN_DEFAULTS},
    "sddmm": {"block_cols": None, **PATTERN_DEFAULTS},
    "spgemm": {**PATTERN_DEFAULTS},
}
OPTIONAL.update(dict.fromkeys(LISTS, OPTIONAL["attention"]))
# factors: which values of q, k or v in e4m3 share a factor. Query heads of a group share theirs.
# v_layout: what of v in e4m3 is contiguous, if not the rows. kv_dtype: of k and v, if not dtype.
OPTIONAL["attention"] = {**OPTIONAL["attention"], "factors": None, "v_layout": None,
                         "kv_dtype": None}
# any_order: gradients need not have the same bits every time.
OPTIONAL["attention_backward"] = {**OPTIONAL["list_blocks"], "any_order": False}
# backend: ours runs kernels of this one only.
for _op in OPTIONAL.keys() - set(LISTS):
    OPTIONAL[_op] = {**OPTIONAL[_op], "backend": None}
BACKENDS = ("cpu", "sm80", "sm90")
DTYPES = ("bf16", "f16", "f32")
FP8 = "e4m3"  # of inputs; the result is in bf16
FACTORS = ("head", "tensor")
V_LAYOUTS = ("rows", "keys")
# Of products: one for each operand; per row of a and column of b; 1x128 of a and 128x128 of b. A
# sparse b has a factor per stored block in the place of the latter two, experts one each in the
# place of the first.
PRODUCT_FACTORS = ("tensor", "row", "block")

# The schema of a workload file.
PARAMS = {"type": "object"}
WORKLOAD = {
    "type": "object", "required": ["cases"],
    "properties": {"cases": {"type": "array", "items": {
        "type": "object", "required": ["op"], "additionalProperties": False,
        "properties": {
            "op": {"type": "string"}, "about": {"type": "string"}, "params": PARAMS,
            "vary": {"type": "array", "items": {"type": "array", "items": PARAMS}},
            "states": {"type": "array", "items": {"type": "string"}},
            "peers": {"type": "array", "items": {"type": "string"}},
            "seconds": {"type": "number", "minimum": 0}}}}}}


class CaseError(ValueError):
    """An invalid case; the message names the parameter."""


@dataclass(frozen=True)
class Case:
    op: str
    params: dict
    states: tuple = ("burst", "sustained")
    peers: tuple | None = None  # None: all applicable peers
    seconds: float | None = None  # at most, per competitor in the sustained state

    @property
    def key(self):
        """The same case has the same key on every machine and in every file."""
        return case_key(self.op, self.params)

    @property
    def fp8(self):
        """Whether some of the inputs are in FP8."""
        return has_fp8(self.params)

    @property
    def sparse(self):
        return self.params.get("pattern") is not None

    @property
    def label(self):
        return label(self.op, self.params)

    @property
    def transpose(self):
        """Which operands of a product are stored transposed, as in "nt"."""
        return self.params.get("transpose", "nt" if self.params.get("side") == "b" else "nn")

    def dense(self):
        """The dense case of the same size: a dense product of the same layout, or attention that is
        full or causal, with as many KV heads as heads. Of a case with pages it is the same over
        contiguous keys."""
        names: tuple[str, ...]
        if self.op in ATTENTION_PASSES:
            names, more = ("b", "h", "s", "skv", "d", "dv", "causal"), {}
            names += ("hk",) if "page" in self.params else ()
            names += tuple(name for name in ("any_order", "factors", "v_layout", "kv_dtype")
                           if name in self.params)
        else:
            names = ("m", "n", "k", "experts", "shares", "factors")
            more = {"transpose": self.transpose}
        sizes = {name: self.params.get(name) for name in ("dtype", "backend", *names)}
        return make_case(self.op if self.op in ATTENTION_PASSES else "matmul", {**sizes, **more})


    def on(self, backend):
        """The case with kernels of this backend only, where the operation chooses kernels."""
        if backend is None or "backend" not in OPTIONAL[self.op]:
            return self
        return make_case(self.op, {**self.params, "backend": backend}, self.states, self.peers,
                         self.seconds)


def has_fp8(params):
    return FP8 in (params["dtype"], params.get("kv_dtype"))


def kind_of(op):
    """Whether an operation belongs to attention or to products."""
    return ATTENTION if op in ABOUT_ATTENTION else PRODUCTS


def dtypes_of(op):
    return (*DTYPES, FP8) if op in ("attention", "matmul", "bsr_matmul") else DTYPES


def factors_of(op):
    return FACTORS if op in ABOUT_ATTENTION else PRODUCT_FACTORS


def case_key(op, params):
    return op + json.dumps(params, sort_keys=True, separators=(",", ":"))


def _size(op, name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CaseError(f"{op}: {name}: expected a whole number from 1, got {value!r}")
    return value


def make_case(op, params, states=("burst", "sustained"), peers=None, seconds=None):
    """Checks the parameters and adds the defaults, so that equal cases have equal parameters."""
    if op not in REQUIRED:
        raise CaseError(f"op: expected one of {', '.join(REQUIRED)}, got {op!r}")
    full = {"dtype": "bf16", **OPTIONAL[op]}
    known = {*full, *REQUIRED[op], *(ALL_PATTERN_ARGUMENTS if "pattern" in full else ())}
    for name, value in params.items():
        if name not in known:
            raise CaseError(f"{op}: no parameter {name!r}; there are {', '.join(sorted(known))}")
        if value is not None:
            full[name] = value
    for name in REQUIRED[op]:
        if full.get(name) is None:
            raise CaseError(f"{op}: {name} is missing")
    if full["dtype"] not in (known_dtypes := dtypes_of(op)):
        raise CaseError(f"{op}: dtype: expected one of {', '.join(known_dtypes)}, "
                        f"got {full['dtype']!r}")
    (_fill_attention if op in ABOUT_ATTENTION else _fill_product)(op, full)
    _check_pattern(op, full)
    if full.get("backend") not in (None, *BACKENDS):
        raise CaseError(f"{op}: backend: expected {', '.join(BACKENDS)}, got {full['backend']!r}")
    for state in states:
        if state not in STATES:
            raise CaseError(f"{op}: states: expected {', '.join(STATES)}, got {state!r}")
    params = {name: value for name, value in full.items() if value is not None}
    return Case(op, params, tuple(states), None if peers is None else tuple(peers), seconds)


def _fill_attention(op, p):
    p["hk"] = p["hk"] or p["h"]
    p["dv"] = p["dv"] or p["d"]
    p["skv"] = p["skv"] or p["s"]
    for name in ("b", "h", "hk", "s", "skv", "d", "dv", "alike"):
        _size(op, name, p[name])
    if p["h"] % p["hk"]:
        raise CaseError(f"{op}: h: expected a multiple of hk = {p['hk']}, got {p['h']}")
    if p["lists"] not in ("shared", "per_head", "per_kv_head"):
        raise CaseError(f"{op}: lists: expected shared, per_head or per_kv_head, "
                        f"got {p['lists']!r}")
    if p["pattern"] is None:
        p["block_q"] = p["block_kv"] = p["similar"] = None
        p["lists"], p["alike"], p["seed"] = None, None, None
    else:
        p["block_kv"] = p["block_kv"] or p["block_q"]
        p["block_q"] = p["block_q"] or p["block_kv"]
        for name in ("block_q", "block_kv"):
            _size(op, name, p[name])
        if p["similar"] is not None and not (p["alike"] > 1 and 0 < p["similar"] < 1):
            raise CaseError(f"{op}: similar: expected a share between 0 and 1 of rows alike, "
                            f"got {p['similar']!r}")
    if p["page"] is not None:
        _fill_pages(op, p)
    elif p["sequences"] is None:
        p["lengths"] = None
    else:
        _size(op, "sequences", p["sequences"])
        p["lengths"] = p["lengths"] or 1.2
        if p["b"] != 1 or p["s"] != p["skv"] or p["pattern"] is not None:
            raise CaseError(f"{op}: sequences: packed cases take b = 1, skv = s and no pattern")
    if p["softcap"] == 0:
        p["softcap"] = None
    _fill_kv_dtype(op, p)
    _fill_factors(op, p)
    _fill_v_layout(op, p)
    if not p.get("any_order"):
        p["any_order"] = None


def _fill_kv_dtype(op, p):
    if p.get("kv_dtype") in (None, p["dtype"]):
        p["kv_dtype"] = None
    elif p["kv_dtype"] != FP8:
        raise CaseError(f"{op}: kv_dtype: expected {FP8} or the dtype of q, got {p['kv_dtype']!r}")


def _fill_factors(op, p):
    known, narrow = factors_of(op), has_fp8(p)
    if narrow:
        p["factors"] = p["factors"] or known[0]
    if p.get("factors") not in (known if narrow else (None,)):
        raise CaseError(f"{op}: factors: expected {' or '.join(known)}, of {FP8} alone, "
                        f"got {p['factors']!r}")


def _fill_v_layout(op, p):
    layout = p.get("v_layout")
    if layout not in (None, *V_LAYOUTS):
        raise CaseError(f"{op}: v_layout: expected {' or '.join(V_LAYOUTS)}, got {layout!r}")
    dense = p["page"] is None and p["sequences"] is None
    if layout == "keys" and (p["dtype"] != FP8 or not dense):
        given = p["dtype"] if dense else "pages" if p["page"] is not None else "packed sequences"
        raise CaseError(f"{op}: v_layout: keys require dtype {FP8}, without pages or packed "
                        f"sequences, got {given}")
    if layout == "rows":
        p["v_layout"] = None


def _fill_pages(op, p):
    _size(op, "page", p["page"])
    if op == "attention_backward":
        raise CaseError(f"{op}: page: gradients require dense or packed keys")
    if p["sequences"] is not None:
        raise CaseError(f"{op}: page: packed cases have no pages")
    if p["lengths"] is not None and (p["pattern"] is not None
                                     or (p["causal"] and p["s"] > 1)):
        raise CaseError(f"{op}: lengths: with pages, sequences of several lengths have no pattern, "
                        "and one query if they are causal")


def _fill_product(op, p):
    for name in ("m", "n", "k"):
        _size(op, name, p[name])
    _fill_factors(op, p)
    if op == "matmul":
        p["seed"] = None
        p["transpose"] = p["transpose"] or ("nt" if p["dtype"] == FP8 else "nn")
        if p["dtype"] == FP8 and p["transpose"] != "nt":
            raise CaseError(f"{op}: transpose: expected nt of dtype {FP8}, as both operands lie "
                            f"along the depth, got {p['transpose']!r}")
        if p["transpose"] not in ("nn", "nt", "tn", "tt"):
            raise CaseError(f"{op}: transpose: expected nn, nt, tn or tt, got {p['transpose']!r}")
        _fill_experts(op, p)
        return
    _size(op, "block", p["block"])
    p["block_cols"] = _size(op, "block_cols", p.get("block_cols") or p["block"])
    if op == "bsr_matmul":
        p["side"] = p["side"] or ("b" if p["dtype"] == FP8 else "a")
        if p["dtype"] == FP8 and p["side"] != "b":
            raise CaseError(f"{op}: side: expected b of dtype {FP8}, as x lies along the depth, "
                            f"got {p['side']!r}")
    if op == "bsr_matmul" and p["side"] not in ("a", "b"):
        raise CaseError(f"{op}: side: expected a or b, got {p['side']!r}")
    _fill_experts(op, p)
    rows, cols = sparse_shape(op, p)
    if rows % p["block"] or cols % p["block_cols"]:
        raise CaseError(f"{op}: block: {p['block']} x {p['block_cols']} does not divide the "
                        f"sparse matrix, {rows} x {cols}")
    if op == "spgemm" and (p["block_cols"] != p["block"] or p["n"] % p["block"]):
        raise CaseError(f"{op}: block: expected square blocks that divide m, n and k")
    if p["block_cols"] == p["block"]:
        p["block_cols"] = None


def _fill_experts(op, p):
    if p.get("experts") is None:
        p["shares"] = None
        return
    _size(op, "experts", p["experts"])
    p["shares"] = 0.6 if p["shares"] is None else p["shares"]
    if isinstance(p["shares"], bool) or not isinstance(p["shares"], (int, float)) or not (
            p["shares"] >= 0):
        raise CaseError(f"{op}: shares: expected 0 or more, got {p['shares']!r}")
    if p.get("transpose", "nt")[0] == "t" or p.get("side", "b") == "a":
        raise CaseError(f"{op}: experts: a is dense and not transposed, each expert has a b")
    if p["m"] < p["experts"]:
        raise CaseError(f"{op}: experts: expected a row each at least, at most {p['m']}, "
                        f"got {p['experts']}")


def sparse_shape(op, p):
    """Rows and columns, in elements, of a product's sparse matrix; each expert has one."""
    if op == "sddmm":
        return p["m"], p["n"]
    if op == "bsr_matmul" and p["side"] == "b":
        return p["n"], p["k"]
    return p["m"], p["k"]


def block_shape(p):
    return p["block"], p.get("block_cols") or p["block"]


def _check_pattern(op, p):
    pattern = p.get("pattern")
    wanted: tuple[str, ...] = ()
    if pattern is not None:
        if pattern not in PATTERN_ARGUMENTS:
            known = ", ".join(PATTERN_ARGUMENTS)
            raise CaseError(f"{op}: pattern: expected one of {known}, got {pattern!r}")
        wanted = PATTERN_ARGUMENTS[pattern]
        missing = [name for name in wanted if p.get(name) is None]
        if missing:
            raise CaseError(f"{op}: pattern {pattern}: {missing[0]} is missing")
        if pattern in VOLUMES:
            _check_volume(op, p)
    for name in ALL_PATTERN_ARGUMENTS:
        if name not in wanted:
            p.pop(name, None)


def axes(text):
    """"5x6x10" -> (5, 6, 10)."""
    return tuple(int(part) for part in text.split("x"))


def _check_volume(op, p):
    """Checks that the pattern has the size of the case."""
    pattern = p["pattern"]
    for name in VOLUMES[pattern]:
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", str(p[name])):
            raise CaseError(f"{op}: {name}: expected three sizes as in 5x6x10, got {p[name]!r}")
    more = PATTERN_ARGUMENTS[pattern][-1]
    side = math.prod(axes(p[VOLUMES[pattern][0]])) * _size(op, more, p[more])
    if op in ABOUT_ATTENTION:
        rows, cols = p["s"] / p["block_q"], p["skv"] / p["block_kv"]
    else:
        rows, cols = (size / part for size, part in zip(sparse_shape(op, p), block_shape(p),
                                                        strict=True))
    if pattern == "mesh":
        if op in ABOUT_ATTENTION or p["block_cols"]:
            raise CaseError(f"{op}: pattern mesh: products in square blocks only")
        side = -(-side // p["block"])
    if rows != side or cols != side:
        raise CaseError(f"{op}: pattern {pattern}: its {side} x {side} blocks are not the case's "
                        f"{rows:g} x {cols:g}")


def pattern_words(p):
    """The parameters of a pattern, except its name, block and density, in words."""
    words = {"n_of_m": "{keep}:{of}", "vertical_slash": "{verticals}+{slashes}",
             "heavy_hitters": "{best} a row", "sliding_tile": "{neighbourhood} of {volume}",
             "mesh": "{nodes} of {unknowns}"}.get(p["pattern"])
    return [words.format(**p)] if words else []


def label(op, p):
    """A short name for tables: the parameters that differ between cases, in a fixed order."""
    if op in ABOUT_ATTENTION:
        words = [f"B{p['b']} H{p['h']}" + (f":{p['hk']}" if p["hk"] != p["h"] else ""),
                 f"S{p['s']}" + (f"/{p['skv']}" if p["skv"] != p["s"] else ""),
                 f"D{p['d']}" + (f":{p['dv']}" if p["dv"] != p["d"] else "")]
        words += ["causal"] if p["causal"] else []
        words += [f"window {p['window']}"] if "window" in p else []
        words += [f"softcap {p['softcap']:g}"] if "softcap" in p else []
        words += ["any order"] if "any_order" in p else []
        words += [f"k, v {p['kv_dtype']}"] if "kv_dtype" in p else []
        words += ["one factor"] if p.get("factors") == "tensor" else []
        words += ["v by keys"] if "v_layout" in p else []
        words += [f"{p['sequences']} sequences"] if "sequences" in p else []
        words += [f"page {p['page']}"] if "page" in p else []
        words += [f"lengths {p['lengths']:g}"] if "page" in p and "lengths" in p else []
        block = f"{p.get('block_q')}x{p.get('block_kv')}"
        words += [] if p.get("lists", "shared") == "shared" else [p["lists"].replace("_", " ")]
        part = f" by {p['similar']:g}" if "similar" in p else ""
        words += [] if p.get("alike", 1) == 1 else [f"{p['alike']} rows alike{part}"]
    else:
        words = [f"{p['m']}x{p['n']}x{p['k']}"]
        words += [p["transpose"]] if p.get("transpose", "nn") != "nn" else []
        words += [f"{p['experts']} experts"] if "experts" in p else []
        words += ["sparse w"] if p.get("side") == "b" else []
        words += [f"{p['factors']} factors"] if p.get("factors", "tensor") != "tensor" else []
        block = str(p.get("block")) + (f"x{p['block_cols']}" if "block_cols" in p else "")
    if "pattern" in p:
        words += [p["pattern"].replace("_", "-"), *pattern_words(p), f"block {block}"]
        words += [f"density {p['density']:g}"] if "density" in p else []
    by = [f"by {p['backend']}"] if "backend" in p else []
    return " ".join([op, *words, p["dtype"], *by])


def read_workload(path):
    """The cases of a workload file, in order.

    {"name", "about", "cases": [{"op", "params", "vary", "states", "peers", "seconds"}]}: `vary` is
    a list of lists of parameter dictionaries; every combination of one from each is a case.
    """
    workload = read_json(path)
    found = schema.problems(workload, WORKLOAD)
    if found:
        raise CaseError(f"{path}: {found[0]}")
    cases, seen = [], set()
    for number, entry in enumerate(workload["cases"]):
        for choice in itertools.product(*entry.get("vary", [])):
            params = dict(entry.get("params", {}))
            for part in choice:
                params.update(part)
            try:
                case = make_case(entry["op"], params, entry.get("states", ("burst", "sustained")),
                                 entry.get("peers"), entry.get("seconds"))
            except CaseError as error:
                raise CaseError(f"{path}: cases[{number}]: {error}") from None
            if case.key in seen:
                raise CaseError(f"{path}: cases[{number}]: {case.label} comes twice")
            seen.add(case.key)
            cases.append(case)
    return cases
