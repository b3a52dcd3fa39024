"""PyTorch's scaled_dot_product_attention, one backend at a time. flash is FlashAttention-2."""

import warnings

from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention, need, one_line

BACKENDS = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION",
            "sdpa_efficient": "EFFICIENT_ATTENTION"}


class Sdpa(Peer):
    ops = ("attention",)

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

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                run(0)
            except RuntimeError as error:
                reasons = [one_line(one.message) for one in told]
                # PyTorch also warns that the other backends are disabled here.
                reasons = [reason for reason in reasons if "runtime disabled" not in reason]
                raise Unavailable((reasons or [one_line(error)])[-1]) from error
        return Prepared(run)
