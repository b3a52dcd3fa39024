"""The truth of attention's gradients in double precision, for sampled queries and keys. The forward
pass's out and lse are inputs of the operation, and are read as they are given."""

import numpy as np

from . import arrays
from .reference import HEADS, ROWS, Sample, sampled_heads, seen_by, spread_over

EPS = 2.0**-24
RESULTS = ("dq", "dk", "dv")


class Samples:
    """Samples of several results, which are a tuple: each has to be right by itself."""

    def __init__(self, parts):
        self.parts = parts

    def compare(self, results):
        """As `Sample.compare`: the element that uses the largest share of its budget, and the
        largest relative norm."""
        found = [part.compare(result) for part, result in zip(self.parts, results, strict=True)]
        error, budget, _ = max(found, key=lambda one: one[0] / one[1])
        return error, budget, max(relative for _, _, relative in found)


def make_reference(problem):
    """Queries of some heads for dq, keys of their heads of keys for dk and dv."""
    group = problem.params["h"] // problem.params["hk"]
    taken: dict = {name: [] for name in RESULTS}
    for head, batch, begin, s, skv in sampled_heads(problem, HEADS):
        rows, keys = spread_over(s, ROWS), spread_over(skv, ROWS)
        kv_head = head // group
        k, v = (arrays.take(problem.sets[0][name], *batch, kv_head) for name in "kv")
        place = (*batch[:-1], begin + rows, head)
        exact, rounded, slack = _gradient_of(
            problem, k, v, [_queries(problem, batch, head, rows, s, skv)], "q")
        taken["dq"].append((place, exact["dq"], rounded["dq"], slack["dq"]))
        queries = [_queries(problem, batch, one, np.arange(s), s, skv, keys)
                   for one in range(kv_head * group, kv_head * group + group)]
        exact, rounded, slack = _gradient_of(problem, k[keys], v[keys], queries, "kv")
        # Packed keys begin where the queries do.
        place = (*batch[:-1], begin + keys, kv_head)
        for name in ("dk", "dv"):
            taken[name].append((place, exact[name], rounded[name], slack[name]))
    return Samples([_sample(taken[name], problem.dtype) for name in RESULTS])


def _sample(taken, dtype):
    """Budgets: twice the error of the dtype's emulation, an ulp, and the slack of f32."""
    truth, budget = [], []
    for _, exact, rounded, slack in taken:
        cost = 2 * np.abs(rounded - exact).max() + arrays.ulp(np.abs(exact).max(), dtype)
        truth.append(exact)
        budget.append(cost + slack + 1e-30)
    places = [place for place, *_ in taken]

    def pick(result):
        return np.concatenate([arrays.take(result, *place) for place in places])

    return Sample(pick, np.concatenate(truth), np.concatenate(budget))


def _queries(problem, batch, head, rows, s, skv, keys=None):
    """Of chosen rows of a head: q, dout, lse, the sum of dout * out, |dout| |out|, and which of the
    keys each sees."""
    one = problem.sets[0]
    q, dout, out = (arrays.take(one[name], *batch, head)[rows] for name in ("q", "dout", "out"))
    # lse is [batch, heads, s], packed [heads, total].
    lse = arrays.take(one["lse"], *batch[:-1], head, *batch[-1:])[rows]
    seen = seen_by(problem, head, rows, s, skv, keys)
    return q, dout, lse, (dout * out).sum(1), (np.abs(dout) * np.abs(out)).sum(1), seen


def _gradient_of(problem, k, v, queries, wanted):
    """Exact, emulated and slack of dq (of one head) or of dk and dv (summed over the heads)."""
    p, dtype = problem.params, problem.dtype
    names = ("dq",) if wanted == "q" else ("dk", "dv")
    exact, rounded, slack = ({name: 0.0 for name in names} for _ in range(3))
    terms = dict.fromkeys(names, 0.0)
    for q, dout, lse, delta, delta_size, seen in queries:
        for into, kind in ((exact, np.float64), (rounded, np.float32)):
            weights, dscores = _scores(p, kind, q, k, v, dout, lse, delta, seen)
            if kind is np.float32:
                weights, dscores = (arrays.round_to(x, dtype) for x in (weights, dscores))
            for name in names:
                into[name] = into[name] + _product(name, weights, dscores, q, k, dout, kind)
        weights, dscores = _scores(p, np.float64, q, k, v, dout, lse, delta, seen)
        scale = p["d"] ** -0.5
        size = np.where(seen, np.abs(q) @ np.abs(k).T * scale, 0)
        # Errors of an f32 evaluation: of exp, of its argument, and of the two sums of dP - delta.
        off = EPS * (8 + 4 * (size + np.abs(lse)[:, None].clip(0, 1e6)))
        dp_size = np.abs(dout) @ np.abs(v).T + delta_size[:, None]
        off_scores = off * np.abs(dscores) + 8 * EPS * scale * weights * dp_size
        for name in names:
            whole = _product(name, weights, np.abs(dscores), np.abs(q), np.abs(k), np.abs(dout),
                             np.float64)
            part = _product(name, off * weights, off_scores, np.abs(q), np.abs(k), np.abs(dout),
                            np.float64)
            slack[name] = slack[name] + part + 8 * EPS * whole
            largest = _largest_term(name, weights, dscores, q, k, dout)
            terms[name] = np.maximum(terms[name], largest)
    for name in names:  # one P or dS that rounds the other way
        slack[name] = slack[name] + 2.0**-arrays.PRECISION[dtype] * terms[name]
        rounded[name] = arrays.round_to(rounded[name], dtype).astype(np.float64)
    return exact, rounded, slack


def _scores(p, kind, q, k, v, dout, lse, delta, seen):
    """P and the gradient of the scaled q k^T."""
    q, k, v, dout, lse, delta = (x.astype(kind) for x in (q, k, v, dout, lse, delta))
    scores, slope = (q @ k.T) * kind(p["d"] ** -0.5), kind(1)
    if "softcap" in p:
        bent = np.tanh(scores / kind(p["softcap"]))
        scores, slope = kind(p["softcap"]) * bent, 1 - bent * bent
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.where(seen, np.exp(scores - lse[:, None]), kind(0))
    dscores = weights * (dout @ v.T - delta[:, None]) * slope * kind(p["d"] ** -0.5)
    return weights, dscores


def _product(name, weights, dscores, q, k, dout, kind):
    if name == "dq":
        return dscores @ k.astype(kind)
    return dscores.T @ q.astype(kind) if name == "dk" else weights.T @ dout.astype(kind)


def _largest_term(name, weights, dscores, q, k, dout):
    left, right = {"dq": (dscores, k), "dk": (dscores.T, q), "dv": (weights.T, dout)}[name]
    return np.abs(left).max(axis=1, keepdims=True) * np.abs(right).max(axis=0)
