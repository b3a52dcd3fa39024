"""PyTorch on the CPU: dense products, its BSR matrices, and scaled_dot_product_attention. Masks are
element masks there: it computes every pair."""

import numpy as np

from .. import arrays
from ..flops import visible_range
from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention, need, one_line
from .torch_bsr import torch_bsr_product


class TorchCpu(Peer):
    ops = ("matmul", "bsr_matmul", "attention")

    def refuse(self, case):
        return beyond_plain_attention(case, "window", "pattern")

    def prepare(self, problem):
        torch = need("torch")
        try:
            prepared = getattr(self, "_" + problem.op)(torch, problem)
            prepared.run(0)
        except (RuntimeError, NotImplementedError) as error:
            raise Unavailable(one_line(error)) from error
        return prepared

    def _matmul(self, torch, problem):
        kind = problem.params["transpose"]
        sets = []
        for one in problem.sets:
            a, b, out = (arrays.to_torch(one[name]) for name in ("a", "b", "out"))
            sets.append((a.T if kind[0] == "t" else a, b.T if kind[1] == "t" else b, out))
        return Prepared(lambda i: torch.matmul(sets[i][0], sets[i][1], out=sets[i][2]))

    def _bsr_matmul(self, torch, problem):
        runs = [torch_bsr_product(torch, problem, one) for one in problem.sets]
        return Prepared(lambda i: runs[i]())

    def _attention(self, torch, problem):
        p = problem.params
        sdpa = torch.nn.functional.scaled_dot_product_attention
        views = [[arrays.to_torch(one[name]).transpose(1, 2) for name in "qkv"]
                 for one in problem.sets]
        top_left = p["s"] == p["skv"]
        mask = None
        if problem.lists or "window" in p or (p["causal"] and not top_left):
            mask = torch.from_numpy(element_mask(problem))
        options = {"attn_mask": mask, "is_causal": p["causal"] and mask is None,
                   "enable_gqa": p["hk"] != p["h"]}

        def run(i):
            with torch.inference_mode():
                out = sdpa(*views[i], **options)
            return out.transpose(1, 2)

        heads = p["b"] * p["h"]
        computed = 2 * (p["d"] + p["dv"]) * heads * p["s"] * p["skv"] if mask is not None else None
        return Prepared(run, computed_flops=computed)


def element_mask(problem):
    """Booleans [1, heads or 1, s, skv]: the visible pairs."""
    p = problem.params
    low, high = visible_range(p, p["s"], p["skv"])
    keys = np.arange(p["skv"])
    rule = (keys >= low[:, None]) & (keys < high[:, None])
    if problem.lists is None:
        return rule[None, None]
    blocks = np.stack([lists.blocks() for lists in problem.lists])
    whole = blocks.repeat(p["block_q"], axis=1).repeat(p["block_kv"], axis=2)
    return (whole[:, : p["s"], : p["skv"]] & rule)[None]
