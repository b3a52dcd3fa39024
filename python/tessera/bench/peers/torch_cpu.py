"""PyTorch on the CPU: dense products, its BSR matrices, and scaled_dot_product_attention. Masks are
element masks there: it computes every pair."""

import numpy as np

from .. import arrays
from ..cases import ATTENTION_PASSES
from ..flops import flops_per_pair, visible_range
from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention, need, one_line
from .torch_bsr import torch_bsr_product


class TorchCpu(Peer):
    ops = ("matmul", "bsr_matmul", *ATTENTION_PASSES)

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
        views, forward, computed = self._forward(torch, problem)

        def run(i):
            with torch.inference_mode():
                return forward(*views[i]).transpose(1, 2)

        return Prepared(run, computed_flops=computed)

    def _attention_backward(self, torch, problem):
        """By autograd, after one forward pass."""
        views, forward, computed = self._forward(torch, problem)
        leaves = [[x.detach().requires_grad_() for x in one] for one in views]
        outs = [forward(*one) for one in leaves]
        douts = [arrays.to_torch(one["dout"]).transpose(1, 2) for one in problem.sets]

        def run(i):
            found = torch.autograd.grad(outs[i], leaves[i], douts[i], retain_graph=True)
            return tuple(x.transpose(1, 2) for x in found)

        return Prepared(run, computed_flops=computed)

    def _forward(self, torch, problem):
        """(q, k and v of each set, the function, the operations where hidden pairs are computed
        too)."""
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
        pairs = p["b"] * p["h"] * p["s"] * p["skv"]
        computed = None if mask is None else flops_per_pair(problem.op, p) * pairs
        return views, lambda q, k, v: sdpa(q, k, v, **options), computed


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
