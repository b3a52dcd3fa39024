"""NumPy with its BLAS: dense products, and attention made of them."""

import numpy as np

from ..flops import visible_range
from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention

ROWS = 512  # rows of scores at a time, so that they stay in the caches


class OpenBlas(Peer):
    ops = ("matmul", "bsr_matmul", "sddmm", "spgemm", "attention")

    def version(self):
        blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
        return f"{blas.get('name', 'unknown')} {blas.get('version', '')}, NumPy {np.__version__}"

    def refuse(self, case):
        if case.params["dtype"] != "f32":
            return "f32 only"
        return beyond_plain_attention(case, "window", "pattern")

    def prepare(self, problem):
        if problem.op == "attention":
            return Prepared(lambda i: attention(problem, problem.sets[i]))
        p, kind = problem.params, problem.case.transpose
        sets = []
        for one in problem.sets:
            a, b = problem.dense_operands(one)
            out = np.empty((p["m"], p["n"]), np.float32)
            sets.append((a.T if kind[0] == "t" else a, b.T if kind[1] == "t" else b, out))
        if problem.op == "sddmm":
            raise Unavailable("a sampled product is not adapted")
        return Prepared(lambda i: np.matmul(sets[i][0], sets[i][1], out=sets[i][2]),
                        computed_flops=problem.dense_flops)


def attention(problem, inputs):
    """Some rows of a head at a time. Lists select key blocks; a mask hides the other keys."""
    p = problem.params
    q, k, v, out = (inputs[name] for name in ("q", "k", "v", "out"))
    low, high = visible_range(p, p["s"], p["skv"])
    scale = np.float32(p["d"] ** -0.5)
    step = p["block_q"] if problem.lists else ROWS
    for b in range(p["b"]):
        for h in range(p["h"]):
            keys, values = k[b, :, h * p["hk"] // p["h"]], v[b, :, h * p["hk"] // p["h"]]
            for first in range(0, p["s"], step):
                rows = slice(first, min(first + step, p["s"]))
                if problem.lists:
                    lists = problem.lists[h % len(problem.lists)]
                    blocks = lists.row(first // step)[:, None] * p["block_kv"]
                    chosen = (blocks + np.arange(p["block_kv"])).ravel()
                    chosen = chosen[chosen < p["skv"]]
                else:
                    chosen = np.arange(int(low[rows].min()), int(high[rows].max()))
                scores = (q[b, rows, h] * scale) @ keys[chosen].T
                hidden = (chosen < low[rows, None]) | (chosen >= high[rows, None])
                scores[hidden] = -np.inf
                largest = scores.max(axis=1, keepdims=True, initial=-np.inf)
                weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
                total = weights.sum(axis=1, keepdims=True)
                out[b, rows, h] = weights @ values[chosen] / np.where(total > 0, total, 1)
    return out
