"""FlashAttention-3: its own package, or fa3-fwd, which has its forward kernels built. In place of
pages it gets the same keys contiguously, which is its faster way."""

from typing import Any

from .. import arrays
from ..cases import ATTENTION_PASSES, FP8
from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention, need, version_of

# Modules with the same functions, and their packages.
BUILDS = {"flash_attn_interface": "flash_attn_3", "fa3_fwd_interface": "fa3-fwd"}


# Few queries: the function for caches of keys, which splits the keys among thread blocks.
MOST_QUERIES = 16


class Fa3(Peer):
    ops = ATTENTION_PASSES
    fp8 = True

    def _module(self):
        reasons = []
        for name in BUILDS:
            try:
                return need(name)
            except Unavailable as reason:
                reasons.append(str(reason))
        raise Unavailable("; ".join(reasons))

    def version(self):
        package = BUILDS[self._module().__name__]
        return f"{package} {version_of(package)}"

    def refuse(self, case):
        return beyond_plain_attention(case, "window", "softcap", "sequences", "page")

    def prepare(self, problem):
        module, p = self._module(), problem.params
        window = (p["window"], 0 if p["causal"] else -1) if "window" in p else (-1, -1)
        make = self._forward if problem.op == "attention" else self._backward
        run = make(module, problem, window)
        run(0)
        contiguous = f"{self.version()} (contiguous keys)" if problem.pages else None
        return Prepared(run, version=contiguous)

    def _forward(self, module, problem, window):
        p = problem.params
        function: Any = module.flash_attn_func
        packing: tuple = ()
        options = {}
        if "sequences" in p:
            offsets, longest = problem.offsets_array, int(problem.lengths.max())
            function, packing = module.flash_attn_varlen_func, (offsets, offsets, longest, longest)
        if problem.pages or (p["s"] <= MOST_QUERIES and not packing):
            function = module.flash_attn_with_kvcache
        if problem.pages:
            options["cache_seqlens"] = problem.pages.ends
            keys = [[problem.pages.contiguous(one[name]) for name in "kv"] for one in problem.sets]
        else:
            keys = [[one[name] for name in "kv"] for one in problem.sets]

        queries, scales = zip(*(in_fp8(problem, one) for one in problem.sets), strict=True)

        def run(i):
            out = function(queries[i], *keys[i], *packing, causal=p["causal"],
                           window_size=window, softcap=float(p.get("softcap", 0)), **options,
                           **scales[i])
            return out[0] if isinstance(out, tuple) else out

        return run

    def _backward(self, module, problem, window):
        """From our out and lse: in its own layout and logarithm, these are the same."""
        backward = getattr(module, "_flash_attn_backward", None)
        if backward is None:
            raise Unavailable(f"{BUILDS[module.__name__]} has no backward pass")
        p = problem.params
        packing: tuple = (None,) * 6  # offsets, used lengths and longest lengths of q and k
        if "sequences" in p:
            offsets, longest = problem.offsets_array, int(problem.lengths.max())
            packing = (offsets, offsets, None, None, longest, longest)
        # By place: the name of causal differs between versions.
        options = (p["d"] ** -0.5, p["causal"], *window, float(p.get("softcap", 0)))

        def run(i):
            one = problem.sets[i]
            results = tuple(one[name] for name in ("dq", "dk", "dv"))
            backward(*(one[name] for name in ("dout", "q", "k", "v", "out", "lse")), *packing,
                     *results, *options)
            return results

        return run


def in_fp8(problem, inputs):
    """q, and the factors of FP8. With k and v in FP8 it takes q in FP8 too."""
    if problem.kv_dtype != FP8 or problem.dtype == FP8:
        return inputs["q"], descales(problem, inputs)
    q, factors = arrays.quantized(inputs["q"], 1)
    return q, descales(problem, {**inputs, "q_scale": factors})


def descales(problem, inputs):
    """The factors of FP8 [sequences, heads of keys] as options; none of other dtypes."""
    p = problem.params
    shape = p.get("sequences", p["b"]), p["hk"]
    found = {}
    for name in "qkv":
        factors = inputs.get(name + "_scale")
        if factors is not None:  # heads of a group share theirs
            of_groups = factors[:: max(1, len(factors) // p["hk"])]
            found[name + "_descale"] = of_groups.expand(shape).contiguous()
    return found
