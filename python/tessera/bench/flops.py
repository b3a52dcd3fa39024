"""Useful work: the exact number of operations on unmasked elements and stored blocks. Operations
whose results a kernel discards do not count."""

import numpy as np

from .cases import block_shape


def sequence_lengths(params):
    """Lengths of the packed sequences."""
    return zipf_lengths(params["sequences"], params["s"], params["lengths"])


def key_lengths(params):
    """Keys of each sequence over pages, in a fixed order; the longest one has skv."""
    count = params["b"]
    ranks = np.arange(1, count + 1) ** float(params.get("lengths", 0))
    return _shuffled(np.maximum(1, np.round(params["skv"] / ranks)).astype(np.int64))


def expert_rows(params):
    """The number of rows of each expert."""
    return zipf_lengths(params["experts"], params["m"], params["shares"])


def zipf_lengths(count, total, exponent):
    """Shares of the total by Zipf's law, each at least one, in a fixed order."""
    weights = 1.0 / np.arange(1, count + 1) ** float(exponent)
    shares = np.maximum(1, np.floor(total * weights / weights.sum())).astype(np.int64)
    shares[0] += total - shares.sum()
    return _shuffled(shares)


def _shuffled(values):
    """In a fixed order that mixes large and small values."""
    count = len(values)
    stride = next(s for s in range(max(1, int(count * 0.618)), count + 1) if np.gcd(s, count) == 1)
    return values[np.arange(count) * stride % count]


def visible_range(params, s, skv):
    """Per query, the keys [low, high) that are visible by causality and window. Positions are
    aligned bottom-right: the last query is at the position of the last key."""
    position = np.arange(s) + skv - s
    high = np.full(s, skv)
    low = np.zeros(s, dtype=np.int64)
    if params["causal"]:
        high = np.clip(position + 1, 0, skv)
    if "window" in params:
        low = np.clip(position - params["window"], 0, skv)
    return low, np.maximum(low, high)


def visible_pairs(params, lists=None):
    """(query, key) pairs that are computed, over all batches and query heads."""
    heads = params["b"] * params["h"]
    if "sequences" in params:
        return heads * sum(_pairs(params, int(n), int(n)) for n in sequence_lengths(params))
    if "page" in params and lists is None:
        return params["h"] * sum(_pairs(params, params["s"], int(n)) for n in key_lengths(params))
    if lists is None:
        return heads * _pairs(params, params["s"], params["skv"])
    # Heads of a group share their lists, so each list is counted only once.
    distinct = {id(one): one for one in lists}
    each = {key: _pairs_of_lists(params, one) for key, one in distinct.items()}
    return sum(each[id(one)] for one in lists) * heads // len(lists)


def _pairs(params, s, skv):
    low, high = visible_range(params, s, skv)
    return int((high - low).sum())


def _pairs_of_lists(params, lists):
    block_q, block_kv, skv = params["block_q"], params["block_kv"], params["skv"]
    low, high = visible_range(params, params["s"], skv)
    begin = lists.indices * block_kv
    end = np.minimum(begin + block_kv, skv)
    pairs = 0
    for row in range(lists.rows):
        entries = slice(lists.offsets[row], lists.offsets[row + 1])
        queries = slice(row * block_q, (row + 1) * block_q)
        from_key = np.maximum(begin[entries], low[queries, None])
        to_key = np.minimum(end[entries], high[queries, None])
        pairs += int(np.maximum(to_key - from_key, 0).sum())
    return pairs


def classify(params, lists):
    """Splits one head's lists into (full, partial) blocks by causality and window. Blocks without a
    visible pair are dropped."""
    block_q, block_kv, s, skv = (params[n] for n in ("block_q", "block_kv", "s", "skv"))
    shift = skv - s
    first_query = lists.row_of_entry() * block_q + shift
    last_query = np.minimum(first_query + block_q, skv) - 1
    first_key = lists.indices * block_kv
    last_key = np.minimum(first_key + block_kv, skv) - 1
    some = np.ones(lists.stored, dtype=bool)
    whole = np.ones(lists.stored, dtype=bool)
    if params["causal"]:
        some &= first_key <= last_query
        whole &= last_key <= first_query
    if "window" in params:
        some &= last_key >= first_query - params["window"]
        whole &= first_key >= last_query - params["window"]
    return lists.keep(whole), lists.keep(some & ~whole)


def attention_flops(params, lists=None, op="attention"):
    return flops_per_pair(op, params) * visible_pairs(params, lists)


def flops_per_pair(op, params):
    """Of the products q k^T and P v; of the gradients, of q k^T and dout v^T, of dq, dk and dv."""
    d, dv = params["d"], params["dv"]
    return 2 * (d + dv) if op == "attention" else 2 * (3 * d + 2 * dv)


def product_flops(op, params, lists=None):
    m, n, k = params["m"], params["n"], params["k"]
    if op == "matmul":
        return 2 * m * n * k
    if op == "spgemm":
        a, b = lists
        return 2 * params["block"] ** 3 * int(b.counts[a.indices].sum())
    rows, cols = block_shape(params)
    if "experts" in params:
        stored = lists.counts.reshape(params["experts"], -1).sum(axis=1)
        return 2 * rows * cols * int(stored @ expert_rows(params))
    other = {"sddmm": k, "bsr_matmul": n if params.get("side") == "a" else m}[op]
    return 2 * lists.stored * rows * cols * other
