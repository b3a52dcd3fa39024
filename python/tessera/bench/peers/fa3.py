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
        return plain_attention_only(case, window=True, packed=True)

    def prepare(self, problem):
        native, prebuilt = self._module()
        return self._native(native, problem) if native else self._jax(prebuilt, problem)

    def _native(self, module, problem):
        p = problem.params
        window = window_of(p)
        if "sequences" in p:
            offsets = problem.offsets_array
            longest = int(problem.lengths.max())

            def run(i):
                one = problem.sets[i]
                out = module.flash_attn_varlen_func(
                    one["q"], one["k"], one["v"], offsets, offsets, longest, longest,
                    causal=p["causal"], window_size=window)
                return out[0] if isinstance(out, tuple) else out
        else:

            def run(i):
                one = problem.sets[i]
                out = module.flash_attn_func(one["q"], one["k"], one["v"], causal=p["causal"],
                                             window_size=window)
                return out[0] if isinstance(out, tuple) else out

        run(0)
        return Prepared(run)

    def _jax(self, module, problem):
        p = problem.params
        if p["d"] != p["dv"] or p["d"] not in (64, 128, 256):
            raise Unavailable("the build for JAX has head dimensions 64, 128 and 256")
        if "sequences" in p:
            raise Unavailable("packed sequences are not adapted to the build for JAX")
        jax = need("jax")
        function = jax.jit(lambda q, k, v: module.flash_mha(q, k, v, is_causal=p["causal"],
                                                            window_size=window_of(p)))
        inputs = [[jax.dlpack.from_dlpack(one[name]) for name in "qkv"] for one in problem.sets]
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
