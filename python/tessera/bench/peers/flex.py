"""PyTorch's FlexAttention, compiled, with the case's block lists as a BlockMask."""

import numpy as np

from .. import arrays
from ..cases import ATTENTION_PASSES
from ..problem import split_by_visibility
from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention, need


class Flex(Peer):
    ops = ATTENTION_PASSES

    def refuse(self, case):
        return beyond_plain_attention(case, "window", "softcap", "sequences", "pattern")

    def prepare(self, problem):
        torch = need("torch")
        flex = need("torch.nn.attention.flex_attention")
        p = problem.params
        views = [[batched(one[name]).transpose(1, 2) for name in "qkv"] for one in problem.sets]
        mask = block_mask(flex, problem)
        options = None
        if problem.lists and (p["block_q"] < 128 or p["block_kv"] < 128):
            options = {"BLOCK_M": min(p["block_q"], 128), "BLOCK_N": min(p["block_kv"], 128)}
        torch._dynamo.reset()  # compile for the shape of each case, not for dynamic shapes
        compiled = torch.compile(flex.flex_attention, dynamic=False)
        extra = {"score_mod": softcapped(torch, p["softcap"])} if "softcap" in p else {}

        def forward(views):
            return compiled(*views, block_mask=mask, enable_gqa=p["hk"] != p["h"],
                            kernel_options=options, **extra)

        if problem.op == "attention":
            def run(i):
                return forward(views[i]).transpose(1, 2).reshape(problem.sets[i]["out"].shape)
        else:
            run = gradients(torch, problem, views, forward)
        run(0)
        return Prepared(run)


def gradients(torch, problem, views, forward):
    """By autograd, after one forward pass: its backward pass has no function of its own."""
    leaves = [[x.detach().requires_grad_() for x in one] for one in views]
    outs = [forward(one) for one in leaves]
    douts = [batched(one["dout"]).transpose(1, 2) for one in problem.sets]

    def run(i):
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise Unavailable("autograd runs on the stream of the forward pass, not on a graph's")
        found = torch.autograd.grad(outs[i], leaves[i], douts[i], retain_graph=True)
        return tuple(x.transpose(1, 2).reshape(problem.sets[i][name].shape)
                     for name, x in zip("qkv", found, strict=True))

    return run


def batched(array):
    """Packed sequences become one long sequence."""
    return array if array.ndim == 4 else array[None]


def softcapped(torch, cap):
    def score_mod(score, b, h, q, kv):
        return cap * torch.tanh(score / cap)

    return score_mod


def visible(problem):
    """The rule of sequences, causality and window for a pair, or None if all pairs are visible."""
    p = problem.params
    shift, window = p["skv"] - p["s"], p.get("window")
    rules = []
    if "sequences" in p:
        which = arrays.integers(np.repeat(np.arange(p["sequences"]), problem.lengths),
                                problem.device)
        which = arrays.to_torch(which)
        rules.append(lambda b, h, q, kv: which[q] == which[kv])
    if p["causal"]:
        rules.append(lambda b, h, q, kv: kv <= q + shift)
    if window is not None:
        rules.append(lambda b, h, q, kv: kv >= q + shift - window)
    if not rules:
        return None

    def rule(b, h, q, kv):
        seen = rules[0](b, h, q, kv)
        for one in rules[1:]:
            seen = seen & one(b, h, q, kv)
        return seen

    return rule


def block_mask(flex, problem):
    p, rule = problem.params, visible(problem)
    if problem.lists is None:
        if rule is None:
            return None
        return flex.create_block_mask(rule, None, None, p["s"], p["skv"], device=problem.device)
    partial, whole = split_by_visibility(problem, problem.lists[0].cols)
    return flex.BlockMask.from_kv_blocks(*partial, *whole,
                                         BLOCK_SIZE=(p["block_q"], p["block_kv"]), mask_mod=rule,
                                         seq_lengths=(p["s"], p["skv"]))
