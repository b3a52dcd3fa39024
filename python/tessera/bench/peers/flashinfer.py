"""FlashInfer: the fastest of its two backends, and over pages its decode kernels. It builds kernels
at first use, which takes one or two minutes per variant."""

import numpy as np

from .. import arrays
from ..cases import FP8
from ..timing import Prepared
from .base import Peer, fastest, need

WORKSPACE = 512 << 20


class FlashInfer(Peer):
    ops = ("attention",)
    fp8 = True

    module = "flashinfer"

    def applies(self, case):
        return super().applies(case) and case.params["dtype"] != FP8

    def refuse(self, case):
        p = case.params
        if case.fp8 and ("page" not in p or p["factors"] != "tensor"):
            return "keys and values in FP8 in pages with one factor each only"
        if "pattern" in p and "page" in p:
            return "no block lists over pages"
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

        p = problem.params
        backends = ["fa3", "fa2"]
        if problem.pages and p["s"] == 1 and p["d"] == p["dv"] and "window" not in p:
            backends.append("decode")
        best = fastest({backend: lambda b=backend: first(b) for backend in backends})
        return Prepared(runs[best], version=f"{self.version()} ({best})")

    def _prepare(self, torch, module, problem, backend):
        p = problem.params
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=problem.device)
        kind = arrays.torch_dtype(problem.dtype)
        heads = (p["h"], p["hk"])
        cap = float(p["softcap"]) if "softcap" in p else None
        if problem.pages:
            wrapper = self._over_pages(module, problem, backend, workspace, kind, cap)
            factors = [{name: float(one[name]) for name in ("k_scale", "v_scale") if name in one}
                       for one in problem.sets]

            def run_over_pages(i):
                one = problem.sets[i]
                q, out = (one[name].flatten(0, 1) for name in ("q", "out"))
                return wrapper.run(q, (one["k"], one["v"]), out=out,
                                   **factors[i]).view(one["out"].shape)

            return run_over_pages
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

    @staticmethod
    def _over_pages(module, problem, backend, workspace, kind, cap):
        """The planned wrapper. Its plan, which the host makes for each step, is not timed."""
        p, pages = problem.params, problem.pages
        last = (pages.lengths - 1) % pages.size + 1
        where = [arrays.integers(one, problem.device)
                 for one in (pages.offsets, pages.numbers, last)]
        heads, kinds = (p["h"], p["hk"], p["d"]), {
            "q_data_type": kind, "kv_data_type": arrays.torch_dtype(problem.kv_dtype)}
        if backend == "decode":
            wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD",
                                                                use_tensor_cores=True)
            wrapper.plan(*where, *heads, pages.size, logits_soft_cap=cap, **kinds)
            return wrapper
        wrapper = module.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
        queries = arrays.integers(np.arange(p["b"] + 1) * p["s"], problem.device)
        wrapper.plan(queries, *where, *heads, pages.size, head_dim_vo=p["dv"],
                     causal=p["causal"], window_left=p.get("window", -1), logits_soft_cap=cap,
                     **kinds)
        return wrapper
