"""FlashAttention-3: its own package, or fa3-fwd, which has its forward kernels built."""

from ..timing import Prepared
from .base import Peer, Unavailable, beyond_plain_attention, need, version_of

# Modules with the same functions, and their packages.
BUILDS = {"flash_attn_interface": "flash_attn_3", "fa3_fwd_interface": "fa3-fwd"}


class Fa3(Peer):
    ops = ("attention",)

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
        return beyond_plain_attention(case, "window", "softcap", "sequences")

    def prepare(self, problem):
        module, p = self._module(), problem.params
        function = module.flash_attn_func
        packing: tuple = ()
        if "sequences" in p:
            offsets, longest = problem.offsets_array, int(problem.lengths.max())
            function, packing = module.flash_attn_varlen_func, (offsets, offsets, longest, longest)
        window = (p["window"], 0 if p["causal"] else -1) if "window" in p else (-1, -1)

        def run(i):
            one = problem.sets[i]
            out = function(one["q"], one["k"], one["v"], *packing, causal=p["causal"],
                           window_size=window, softcap=float(p.get("softcap", 0)))
            return out[0] if isinstance(out, tuple) else out

        run(0)
        return Prepared(run)
