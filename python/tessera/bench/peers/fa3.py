"""FlashAttention-3: PyTorch's build where there is one, else the prebuilt one for JAX. The latter
runs on JAX's own stream, so that the host's clock times it."""

import importlib.metadata
import os

from ..timing import Prepared
from .base import Peer, Unavailable, need, plain_attention_only


class Fa3(Peer):
    ops = ("attention",)

    def _module(self):
        try:
            return need("flash_attn_interface"), None
        except Unavailable as first:
            # JAX would take most of the card's memory for itself.
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            try:
                return None, need("flash_attn3_jax")
            except Unavailable as second:
                raise Unavailable(f"{first}; {second}") from None

    def version(self):
        native, _ = self._module()
        package = "flash_attn_3" if native else "flash-attn3-jax"
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "unknown"
        return found if native else f"{found} (JAX)"

    def refuse(self, case):
        return plain_attention_only(case, window=True, softcap=True, packed=True)

    def prepare(self, problem):
        native, prebuilt = self._module()
        return self._native(native, problem) if native else self._jax(prebuilt, problem)

    def _native(self, module, problem):
        p, function = problem.params, module.flash_attn_func
        packing: tuple = ()
        if "sequences" in p:
            offsets, longest = problem.offsets_array, int(problem.lengths.max())
            function, packing = module.flash_attn_varlen_func, (offsets, offsets, longest, longest)

        def run(i):
            one = problem.sets[i]
            out = function(one["q"], one["k"], one["v"], *packing, causal=p["causal"],
                           window_size=window_of(p), softcap=float(p.get("softcap", 0)))
            return out[0] if isinstance(out, tuple) else out

        run(0)
        return Prepared(run)

    def _jax(self, module, problem):
        p = problem.params
        if p["d"] != p["dv"] or p["d"] not in (64, 128, 256):
            raise Unavailable("the build for JAX has head dimensions 64, 128 and 256")
        if "softcap" in p:
            raise Unavailable("the build for JAX has no softcap")
        jax = need("jax")
        options = {"is_causal": p["causal"], "window_size": window_of(p)}
        mha, packing = module.flash_mha, []
        if "sequences" in p:
            longest = int(problem.lengths.max())
            mha = module.flash_mha_varlen
            options.update(max_seqlen_q=longest, max_seqlen_k=longest)
            packing = [jax.dlpack.from_dlpack(problem.offsets_array)] * 2
        function = jax.jit(lambda *inputs: mha(*inputs, **options))
        inputs = [[*(jax.dlpack.from_dlpack(one[name]) for name in "qkv"), *packing]
                  for one in problem.sets]
        last = [None]

        def run(i):
            last[0] = function(*inputs[i])
            return last[0]

        def finish():
            if last[0] is not None:
                last[0].block_until_ready()

        run(0)
        finish()
        return Prepared(run, finish)


def window_of(p):
    return (p["window"], 0 if p["causal"] else -1) if "window" in p else (-1, -1)


PEERS = {"fa3": Fa3("fa3")}
