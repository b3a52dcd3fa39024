"""The truth in double precision for sampled rows; whole results of large cases would take longer
than the measurement. It shares no code with the library."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import arrays
from .cases import FP8, LISTS
from .flops import visible_range

ROWS, COLUMNS, HEADS = 16, 256, 4

# The relative difference, as a norm over the sample, that another implementation may have: enough
# to show that it computes the same operation in the same precision.
SAME_RESULT = {"f32": 1e-4, "f16": 5e-3, "bf16": 2e-2, "e4m3": 1e-1}
# Of FP8: P is multiplied by UNIT_OF_P before it is rounded, and sums in tensor cores have an error.
UNIT_OF_P, FP8_SUMS = {FP8: np.float32(256)}, 2.0**-10


class WrongResult(RuntimeError):
    pass


@dataclass
class Sample:
    """Sampled elements, their true values and the error budgets of our result."""

    pick: Callable[[Any], np.ndarray]  # a result -> the sampled elements, in double precision
    truth: np.ndarray
    budget: np.ndarray

    def compare(self, result):
        """Error and budget of the element that uses the largest share of its budget, and the norm
        of the difference over the norm of the truth."""
        found = self.pick(result)
        if found.shape != self.truth.shape:
            raise WrongResult(f"result of shape {found.shape}, expected {self.truth.shape}")
        error = np.abs(found - self.truth)
        if not np.isfinite(error).all():
            raise WrongResult(f"{int((~np.isfinite(error)).sum())} of {error.size} not finite")
        worst = np.unravel_index(np.argmax(error / self.budget), error.shape)
        norm = np.linalg.norm(self.truth)
        relative = np.linalg.norm(error) / norm if norm else float(np.abs(found).max(initial=0))
        return float(error[worst]), float(self.budget[worst]), float(relative)


def check_same(sample, result, dtype):
    """Raises WrongResult unless the result equals the reference up to the dtype's precision."""
    error, budget, relative = sample.compare(result)
    if not relative <= SAME_RESULT[dtype]:
        raise WrongResult(f"relative difference {relative:.2g}, at most {SAME_RESULT[dtype]:g}")
    return error, budget


class SampledLists:
    """Sampled rows of lists, which have to be equal."""

    def __init__(self, rows, lists):
        self.rows, self.lists = rows, lists

    def compare(self, result):
        counts, indices = (arrays.to_f64(array).astype(np.int64)[0] for array in result)
        for head, wanted in enumerate(self.lists):
            for row, entries in zip(self.rows, wanted, strict=True):
                found = indices[head, row, : counts[head, row]]
                if counts[head, row] != len(entries) or not np.array_equal(found, entries):
                    raise WrongResult(f"the list of row {row} of head {head}: {len(found)} blocks, "
                                      f"expected {len(entries)}, or others")
        return 0.0, 0.0, 0.0


def make_reference(problem):
    if problem.op in LISTS:
        return _lists(problem)
    if problem.op == "attention_backward":
        from .gradients import make_reference as of_gradients

        return of_gradients(problem)
    return _attention(problem) if problem.op == "attention" else _product(problem)


def spread_over(count, wanted):
    """Up to `wanted` numbers of [0, count), among them the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(np.int64))


def _lists(problem):
    rows = spread_over(problem.lists[0].rows, ROWS)
    if problem.op == "list_blocks":
        return SampledLists(rows, [[one.row(row) for row in rows] for one in problem.lists])
    scores = problem.sets[0]["scores"]
    # Of equal scores, the first ones are kept.
    kept = [np.sort(np.argsort(-arrays.take(scores, 0, head, rows), axis=-1, kind="stable")
                    [:, : problem.longest_row]) for head in range(len(problem.lists))]
    return SampledLists(rows, kept)


# ---- Products ----------------------------------------------------------------------------------


def _product(problem):
    """Sampled rows; with experts, some rows of each expert."""
    p = problem.params
    if problem.op == "sddmm":
        return _sddmm(problem)
    columns = spread_over(p["n"], COLUMNS)
    parts: list = [(None, spread_over(p["m"], ROWS))]
    if "experts" in p:
        parts = [(expert, int(begin) + spread_over(int(length), ROWS // 4)) for expert, (
            begin, length) in enumerate(zip(problem.offsets, problem.lengths, strict=False))]
    truth, budget = [], []
    for expert, rows in parts:
        a, b = _rows_of_a(problem, rows), _columns_of_b(problem, columns, expert)
        truth.append(a @ b.T)
        budget.append(_budget(a, b, truth[-1], problem))
    sampled = np.concatenate([rows for _, rows in parts])

    def pick(result):
        if hasattr(result, "dense_rows"):
            return result.dense_rows(sampled)[:, columns]
        return arrays.take(result, sampled, columns)

    return Sample(pick, np.concatenate(truth), np.concatenate(budget))


def _rows_of_a(problem, rows):
    a = problem.sets[0]["a"]
    if problem.bsr_a:
        return problem.bsr_a.dense_rows(a, rows)
    transposed = problem.case.transpose[0] == "t"
    found = arrays.take(a, slice(None), rows).T if transposed else arrays.take(a, rows)
    return found * _factors_of_lines(problem, "a", rows)


def _factors_of_lines(problem, name, lines, *place):
    """Of lines [lines, depth] of a dense operand in FP8, which are stored as rows; else 1."""
    factors = problem.sets[0].get(name + "_scale")
    if factors is None:
        return 1.0
    factors = arrays.to_f64(factors)
    if factors.ndim == 1:
        return factors[0]
    height, width = problem.box_of(name)
    factors = factors[place] if place else factors
    of_lines = factors[lines // height if height else np.zeros_like(lines)]
    depth = np.arange(problem.params["k"])
    return of_lines[:, depth // width if width else np.zeros_like(depth)]


def _columns_of_b(problem, columns, expert):
    """The chosen columns of B as rows of the result."""
    b = problem.sets[0]["b"]
    if problem.op == "spgemm":
        return _dense_columns(problem.bsr_b, b, columns)
    if problem.bsr_b:
        return problem.bsr_b.dense_rows(b, (expert or 0) * problem.params["n"] + columns,
                                        problem.sets[0].get("b_scale"))
    place = () if expert is None else (expert,)
    if problem.case.transpose[1] == "t":
        return arrays.take(b, *place, columns) * _factors_of_lines(problem, "b", columns, *place)
    return arrays.take(b, *place, slice(None), columns).T


def _budget(a, b, truth, problem):
    """The budget of summing the products in f32, in any order, and rounding the sum once. Of FP8,
    factors are four roundings more, and sums in tensor cores have few bits."""
    units = (np.count_nonzero(a, axis=1)[:, None] + 2) * 2.0**-24
    if problem.dtype == FP8:
        units = units + 4 * 2.0**-24 + (FP8_SUMS if problem.device == "cuda" else 0)
    half = 0.5 * arrays.ulp(truth, problem.out_dtype)
    return units * (np.abs(a) @ np.abs(b).T) + half + 1e-30


def _dense_columns(bsr, values, columns):
    """The chosen columns of a BSR matrix as rows of the result."""
    dense = np.zeros((len(columns), bsr.rows))
    row_of = bsr.lists.row_of_entry()
    for place, column in enumerate(columns):
        j, inside = divmod(int(column), bsr.block_cols)
        entries = np.flatnonzero(bsr.lists.indices == j)
        stored = arrays.take(values, entries, slice(None), inside)
        for row, part in zip(row_of[entries], stored, strict=True):
            dense[place, row * bsr.block_rows : (row + 1) * bsr.block_rows] = part
    return dense


def _sddmm(problem):
    inputs, bsr = problem.sets[0], problem.bsr_out
    entries = spread_over(bsr.lists.stored, ROWS)
    inside = np.arange(len(entries)) * 7 % bsr.block_rows
    row_of = bsr.lists.row_of_entry()
    truth, budget = [], []
    for entry, row in zip(entries, inside, strict=True):
        a = arrays.take(inputs["a"], np.array([row_of[entry] * bsr.block_rows + row]))
        first = int(bsr.lists.indices[entry]) * bsr.block_cols
        b = arrays.take(inputs["b"], slice(None), slice(first, first + bsr.block_cols)).T
        truth.append(a @ b.T)
        budget.append(_budget(a, b, truth[-1], problem))

    def pick(result):
        taken = arrays.take(result, entries)
        return taken[np.arange(len(entries)), inside][:, None, :].reshape(len(entries), -1)

    return Sample(pick, np.concatenate(truth), np.concatenate(budget))


# ---- Attention ---------------------------------------------------------------------------------


def sampled_heads(problem, count):
    """(head, index of its batch and tokens, first token, queries, keys) of some heads, each in
    another batch or packed sequence."""
    p = problem.params
    for number, head in enumerate(spread_over(p["h"], count)):
        if "sequences" in p:
            which = spread_over(p["sequences"], count)[number % min(p["sequences"], count)]
            begin, length = int(problem.offsets[which]), int(problem.lengths[which])
            yield int(head), (slice(begin, begin + length),), begin, length, length
        else:
            yield int(head), (number % p["b"], slice(None)), 0, p["s"], p["skv"]


def _attention(problem):
    p, inputs = problem.params, problem.sets[0]
    group = p["h"] // p["hk"]
    places, truth, budget = [], [], []
    for head, batch, begin, s, _ in sampled_heads(problem, HEADS):
        rows = spread_over(s, ROWS)
        q = arrays.take(inputs["q"], *batch, head)[rows] * _factor(inputs, "q", head)
        if problem.pages:
            k, v = (problem.pages.keys_of(inputs[name], batch[0], head // group) for name in "kv")
        else:
            k, v = (arrays.take(inputs[name], *batch, head // group) for name in "kv")
        k, v = (x * _factor(inputs, name, head // group) for name, x in (("k", k), ("v", v)))
        seen = seen_by(problem, head, rows, s, len(k))
        where = (*batch[:-1], rows + begin, head)
        exact, slack = _softmax_product(problem, q, k, v, seen)
        # The error of the dtype: f32 softmax, with P and the result rounded.
        rounded, _ = _softmax_product(problem, q, k, v, seen, emulated=True)
        cost = 2 * np.abs(rounded - exact).max() + arrays.ulp(np.abs(exact).max(),
                                                              problem.out_dtype)
        places.append(where)
        truth.append(exact)
        budget.append(cost + slack + 1e-30)

    def pick(result):
        return np.concatenate([arrays.take(result, *where) for where in places])

    return Sample(pick, np.concatenate(truth), np.concatenate(budget))


def _factor(inputs, name, head):
    """Of a head of q, k or v in FP8; else 1."""
    factors = inputs.get(name + "_scale")
    return 1.0 if factors is None else float(factors[head if len(factors) > 1 else 0])


def seen_by(problem, head, rows, s, skv, keys=None):
    """Booleans [rows, keys]: which of the keys (all by default) these queries of a head see."""
    p = problem.params
    low, high = visible_range(p, s, skv)
    keys = np.arange(skv) if keys is None else keys
    seen = (keys >= low[rows, None]) & (keys < high[rows, None])
    if problem.lists is not None:
        lists = problem.lists[head % len(problem.lists)]
        for place, row in enumerate(rows):
            stored = np.zeros(lists.cols, dtype=bool)
            stored[lists.row(int(row) // p["block_q"])] = True
            seen[place] &= stored[keys // p["block_kv"]]
    return seen


def _softmax_product(problem, q, k, v, seen, emulated=False):
    """The result, and its slack: the error of an f32 evaluation that an emulation may not show by
    chance. That is an exp with an error of a few ulps, scores with errors of a few ulps of their
    summands (in numerator and denominator), and one P that rounds the other way."""
    p, dtype = problem.params, problem.dtype
    kind = np.float32 if emulated else np.float64
    scores = (q.astype(kind) @ k.astype(kind).T) * kind(p["d"] ** -0.5)
    if "softcap" in p:
        scores = kind(p["softcap"]) * np.tanh(scores / kind(p["softcap"]))
    scores = np.where(seen, scores, -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=1, keepdims=True)
    total = np.where(total > 0, total, 1)
    if emulated:
        unit = UNIT_OF_P.get(dtype, np.float32(1))
        out = (arrays.round_to(weights * unit, dtype) / unit @ v.astype(kind)) / total
        return arrays.round_to(out, problem.out_dtype).astype(np.float64), None
    size = np.where(seen, np.abs(q) @ np.abs(k).T * p["d"] ** -0.5, 0).max(axis=1, keepdims=True)
    shares = weights / total
    of_scores = FP8_SUMS if dtype == FP8 and problem.device == "cuda" else 2.0**-24
    slack = (8 * 2.0**-24 + 4 * of_scores * size) * (shares @ np.abs(v))
    largest_terms = shares.max(axis=1, keepdims=True) * np.abs(v).max(axis=0)
    slack += 2.0**-arrays.PRECISION[dtype] * largest_terms
    return weights @ v / total, slack
