"""PyTorch's scaled_dot_product_attention, one backend at a time. flash is FlashAttention-2."""

import warnings
from typing import Any

from ..cases import ATTENTION_PASSES
from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention, need, one_line

BACKENDS = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION",
            "sdpa_efficient": "EFFICIENT_ATTENTION"}


class Sdpa(Peer):
    def __init__(self, name):
        super().__init__(name)
        self.ops = ATTENTION_PASSES if name in GRADIENTS else ("attention",)

    def version(self):
        torch = need("torch")
        cudnn = f", cuDNN {torch.backends.cudnn.version()}" if self.name == "sdpa_cudnn" else ""
        return torch.__version__ + cudnn

    def refuse(self, case):
        p = case.params
        if p["causal"] and p["s"] != p["skv"]:
            return "causal from the top left only"
        return beyond_plain_attention(case)

    def prepare(self, problem):
        torch = need("torch")
        make = self._forward if problem.op == "attention" else self._backward
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                run = make(torch, problem)
                run(0)
            except RuntimeError as error:
                reasons = [one_line(one.message) for one in told]
                # PyTorch also warns that the other backends are disabled here.
                reasons = [reason for reason in reasons if "runtime disabled" not in reason]
                raise Unavailable((reasons or [one_line(error)])[-1]) from error
        return Prepared(run)

    def _forward(self, torch, problem):
        attention = need("torch.nn.attention")
        backend = getattr(attention.SDPBackend, BACKENDS[self.name])
        p = problem.params
        views = [[one[name].transpose(1, 2) for name in "qkv"] for one in problem.sets]
        grouped = p["hk"] != p["h"]
        sdpa = torch.nn.functional.scaled_dot_product_attention

        def run(i):
            with attention.sdpa_kernel(backend):
                out = sdpa(*views[i], is_causal=p["causal"], enable_gqa=grouped)
            return out.transpose(1, 2)

        return run

    def _backward(self, torch, problem):
        """The operators that autograd calls: it would add its own host time, and cannot be
        captured."""
        forward, backward = GRADIENTS[self.name]
        causal = problem.params["causal"]
        calls = [backward(torch.ops.aten, forward(torch.ops.aten, *(
            one[name].transpose(1, 2) for name in "qkv"), causal), one["dout"].transpose(1, 2),
            causal) for one in problem.sets]

        def run(i):
            return tuple(x.transpose(1, 2) for x in calls[i]())

        return run


def _flash_forward(aten, q, k, v, causal):
    return (q, k, v), aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)


def _flash_backward(aten, results, dout, causal):
    operands, (out, lse, offsets_q, offsets_k, longest_q, longest_k, seed, unused, _) = results
    return lambda: aten._scaled_dot_product_flash_attention_backward(
        dout, *operands, out, lse, offsets_q, offsets_k, longest_q, longest_k, 0.0, causal, seed,
        unused)


def _cudnn_forward(aten, q, k, v, causal):
    return (q, k, v), aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)


def _cudnn_backward(aten, results, dout, causal):
    operands, (out, lse, offsets_q, offsets_k, longest_q, longest_k, seed, offset, _) = results
    return lambda: aten._scaled_dot_product_cudnn_attention_backward(
        dout, *operands, out, lse, seed, offset, None, offsets_q, offsets_k, longest_q,
        longest_k, 0.0, causal)


GRADIENTS: dict[str, Any] = {
    "sdpa_flash": (_flash_forward, _flash_backward),
    "sdpa_cudnn": (_cudnn_forward, _cudnn_backward)}
