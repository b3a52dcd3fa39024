"""FlashInfer: the faster of its two backends. It builds kernels at first use, which takes one or
two minutes per variant."""

from .. import arrays
from ..timing import Prepared
from .base import Peer, fastest, need

WORKSPACE = 512 << 20


class FlashInfer(Peer):
    ops = ("attention",)

    module = "flashinfer"

    def refuse(self, case):
        p = case.params
        if "pattern" in p and (p["causal"] or "window" in p):
            return "block lists without causality or windows only"
        if "pattern" in p and (p["lists"] != "shared" or p["b"] != 1 or p["d"] != p["dv"]):
            return "block lists shared by all heads, one sequence, equal head dimensions only"
        if "window" in p and not p["causal"]:
            return "windows in causal attention only"
        return None

    def prepare(self, problem):
        torch, module = need("torch"), need("flashinfer")
        runs = {}

        def first(backend):
            if backend not in runs:
                runs[backend] = self._prepare(torch, module, problem, backend)
            return runs[backend](0)

        best = fastest({backend: lambda b=backend: first(b) for backend in ("fa3", "fa2")})
        return Prepared(runs[best], version=f"{self.version()} ({best})")

    def _prepare(self, torch, module, problem, backend):
        p = problem.params
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=problem.device)
        kind = arrays.torch_dtype(problem.dtype)
        heads = (p["h"], p["hk"])
        cap = float(p["softcap"]) if "softcap" in p else None
        flat = [[one[name].reshape(-1, *one[name].shape[-2:]) for name in ("q", "k", "v", "out")]
                for one in problem.sets]
        if problem.lists:
            lists = problem.lists[0]
            wrapper = module.BlockSparseAttentionWrapper(workspace, backend=backend)
            wrapper.plan(arrays.integers(lists.offsets, problem.device),
                         arrays.integers(lists.indices, problem.device), p["s"], p["skv"],
                         p["block_q"], p["block_kv"], *heads, p["d"], q_data_type=kind,
                         kv_data_type=kind, o_data_type=kind, logits_soft_cap=cap)
        else:
            wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)
            if "sequences" in p:
                q_offsets = kv_offsets = problem.offsets
            else:
                q_offsets, kv_offsets = ([i * p[name] for i in range(p["b"] + 1)]
                                         for name in ("s", "skv"))
            wrapper.plan(arrays.integers(q_offsets, problem.device),
                         arrays.integers(kv_offsets, problem.device), *heads, p["d"], p["dv"],
                         causal=p["causal"], window_left=p.get("window", -1), logits_soft_cap=cap,
                         q_data_type=kind, kv_data_type=kind)

        def run(i):
            q, k, v, out = flat[i]
            return wrapper.run(q, k, v, out=out).view(problem.sets[i]["out"].shape)

        return run
