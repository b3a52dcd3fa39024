"""Shapes drawn at random, of the sizes that people use: what `sweep` measures. One seed gives one
list of different cases on every machine; a longer list begins with the shorter one."""

import math
import random

from .cases import ATTENTION_PASSES, FP8, make_case

STATES = ("graph", "burst")
MAX_FLOPS, MAX_ELEMENTS = 8e12, 4e9
MAX_FLOPS_OF_MATMUL = 3e12
DENSITIES = (.05, .1, .2, .3, .5)
# Each entry has the same chance, so a size that is listed twice is drawn twice as often.
HEAD_DIMS = (64, 64, 80, 96, 128, 128, 128, 128, 192, 256)
KV_HEADS = (1, 2, 4, 8, 8, 16)
GROUPS = (1, 1, 2, 4, 5, 8)
BLOCKS = (16, 32, 64, 64, 128)


def draw(op, seed, count):
    """`count` different cases of the operation."""
    chance = random.Random(f"{op} {seed}")
    found = {}
    while len(found) < count:
        case = DRAWN[op](chance)
        found.setdefault(case.key, case)
    return list(found.values())


def log_uniform(chance, low, high):
    return round(math.exp(chance.uniform(math.log(low), math.log(high))))


def attention(chance):
    return drawn_attention("attention", chance)


def attention_fp8(chance):
    return drawn_attention("attention", chance, FP8)


def attention_backward(chance):
    return drawn_attention("attention_backward", chance)


def drawn_attention(op, chance, dtype=None):
    heads = chance.choice(KV_HEADS)
    p = {"dtype": dtype, "d": chance.choice(HEAD_DIMS),
         "hk": heads, "h": heads * chance.choice(GROUPS),
         "causal": chance.random() < .6, "s": log_uniform(chance, 64, 32768)}
    p["skv"] = p["s"]
    if chance.random() < .4:
        # A causal query without any key has nothing to compute: there the keys are no fewer.
        p["skv"] = log_uniform(chance, p["s"] if p["causal"] else 64, 131072)
    p["b"] = log_uniform(chance, 1, 32)
    kind = chance.random()
    if kind < .1:  # as many tokens as the batch has, in sequences of all lengths
        p.update(sequences=chance.randint(2, 32), lengths=chance.choice((.6, 1.2)), b=1,
                 skv=p["s"])
    elif kind < .2:
        p["window"] = log_uniform(chance, 64, 4096)
    elif kind < .4:
        p.update(lists_of_blocks(chance, p))
    return fitted(op, p, "b", "s", "skv")


def lists_of_blocks(chance, p):
    """A list for each KV head; one for all heads where it is local or clustered."""
    block = chance.choice((64, 128))
    rows, cols = (-(-p[name] // block) for name in ("s", "skv"))
    kind = chance.choice(("random", "banded", "vertical_slash", "block_diagonal"))
    shorter = max(1, min(rows, cols))
    more = {"random": {"density": density(chance, cols)},
            "banded": {"half_width": chance.randint(1, max(1, cols // 8))},
            "vertical_slash": {"verticals": chance.randint(1, max(1, cols // 8)),
                               "slashes": chance.randint(1, max(1, cols // 8))},
            "block_diagonal": {"groups": min(shorter, chance.randint(2, 16)), "zipf": .6}}[kind]
    per_kv_head = kind in ("random", "vertical_slash")
    return {"pattern": kind, "block_q": block, "block_kv": block,
            "lists": "per_kv_head" if per_kv_head else "shared", **more}


def matmul(chance):
    while True:
        m, n, k = (size(chance) for _ in range(3))
        if chance.random() < .7:
            n, k = (-(-extent // 8) * 8 for extent in (n, k))
        p = {"m": m, "n": n, "k": k, "transpose": chance.choice(("nn", "nt"))}
        if 2 * m * n * k <= MAX_FLOPS_OF_MATMUL:
            return make_case("matmul", p, STATES)


def size(chance):
    """Of one extent of a dense product."""
    return chance.choice((
        lambda: log_uniform(chance, 1, 64), lambda: log_uniform(chance, 64, 4096),
        lambda: log_uniform(chance, 1024, 16384), lambda: 128 * chance.randint(1, 96),
        lambda: 8 * chance.randint(1, 1500)))()


def density(chance, columns):
    """Of a matrix of so many columns of blocks: one block a row at least."""
    return max(chance.choice(DENSITIES), 1 / columns)


def tokens(chance):
    return chance.choice((lambda: 1, lambda: log_uniform(chance, 1, 64),
                          lambda: log_uniform(chance, 64, 1024),
                          lambda: log_uniform(chance, 1024, 16384)))()


def weights(chance):
    """Rows, columns and block of a sparse matrix."""
    block = chance.choice(BLOCKS)
    rows, cols = (max(1, round(log_uniform(chance, 512, 16384) / block)) * block for _ in range(2))
    return rows, cols, block


def linear(chance):
    """x [tokens, in] times the transpose of a sparse w [out, in]."""
    n, k, block = weights(chance)
    return fitted("bsr_matmul", {
        "side": "b", "m": tokens(chance), "n": n, "k": k, "block": block, "pattern": "random",
        "density": density(chance, k // block), "seed": chance.randint(1, 1000)}, "m")


def bsr_matmul(chance):
    """A sparse matrix times a dense one."""
    m, k, block = weights(chance)
    p = {"n": tokens(chance), "block": block, "seed": chance.randint(1, 1000)}
    kind = chance.choice(("random", "random", "random", "banded", "butterfly", "power_law",
                          "power_law_graph", "mesh"))
    if kind == "mesh":
        side, unknowns = chance.randint(8, 24), chance.choice((1, 3, 4, 8))
        p.update(nodes="x".join((str(side),) * 3), unknowns=unknowns)
        p.pop("seed")
        m = k = -(-side**3 * unknowns // block) * block
    elif kind == "power_law_graph":
        m = k
    p.update(m=m, k=k, pattern=kind, **{
        "random": lambda: {"density": density(chance, k // block)},
        "banded": lambda: {"half_width": chance.randint(1, 16)},
        "butterfly": lambda: {"levels": chance.randint(2, 8)},
        "power_law": lambda: {"density": chance.choice(DENSITIES), "exponent": 1.0},
        "power_law_graph": lambda: {"density": chance.choice((.002, .01, .05)), "exponent": 1.0},
        "mesh": dict}[kind]())
    return fitted("bsr_matmul", p, "n")


DRAWN = {one.__name__: one for one in (attention, attention_fp8, attention_backward, matmul, linear,
                                        bsr_matmul)}


def fitted(op, params, *extents):
    """The case; as long as it is too large, the first of these extents is halved, then the next."""
    for name in extents:
        while params[name] > 1 and (flops(op, params) > MAX_FLOPS or
                                    elements(op, params) > MAX_ELEMENTS):
            halved = -(-params[name] // 2)
            if params.get("skv") == params.get("s") and name == "s":
                params["skv"] = halved
            params[name] = halved
    return make_case(op, params, STATES)


def flops(op, p):
    """Of the case without its pattern."""
    if op in ATTENTION_PASSES:
        times = 4 if op == "attention" else 10
        return times * p["b"] * p["h"] * p["s"] * p["skv"] * p["d"] // (2 if p["causal"] else 1)
    return 2 * p["m"] * p["n"] * p["k"]


def elements(op, p):
    """Of all dense tensors; of linear layers and dense products, the weights among them."""
    if op in ATTENTION_PASSES:  # of the backward pass, each has a gradient besides
        times = 2 if op == "attention" else 4
        return times * p["b"] * p["d"] * (p["s"] * p["h"] + p["skv"] * p["hk"])
    sparse_left = p.get("side") == "a"
    return (0 if sparse_left else p["m"] * p["k"]) + p["k"] * p["n"] + p["m"] * p["n"]
