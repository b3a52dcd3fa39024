"""FlashAttention-4 (flash_attn.cute): compiles each new variant on first use."""

from ..problem import split_by_visibility
from ..timing import Prepared
from .base import Peer, need, version_of


class Fa4(Peer):
    ops = ("attention",)

    def version(self):
        need("flash_attn.cute")
        return version_of("flash-attn-4")

    def refuse(self, case):
        both = "page" in case.params and case.sparse
        return "no block lists over pages" if both else None

    def prepare(self, problem):
        interface = need("flash_attn.cute.interface")
        p = problem.params
        common = {"causal": p["causal"], "return_lse": False}
        if "softcap" in p:
            common["softcap"] = float(p["softcap"])
        if "window" in p:
            common["window_size_left"] = p["window"]
            common["window_size_right"] = 0 if p["causal"] else None
        if "sequences" in p:
            offsets = problem.offsets_array
            longest = int(problem.lengths.max())
            common.update(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=longest,
                          max_seqlen_k=longest)
        if problem.pages:
            common.update(page_table=problem.pages.table, seqused_k=problem.pages.ends)
        if problem.lists:
            common["block_sparse_tensors"] = block_lists(problem)
        forward = interface._flash_attn_fwd

        def run(i):
            one = problem.sets[i]
            return forward(one["q"], one["k"], one["v"], out=one["out"], **common)[0]

        run(0)
        return Prepared(run)


def block_lists(problem):
    sparsity = need("flash_attn.cute.block_sparsity")
    (counts, indices), (full_counts, full_indices) = split_by_visibility(problem)
    return sparsity.BlockSparseTensorsTorch(
        mask_block_cnt=counts, mask_block_idx=indices, full_block_cnt=full_counts,
        full_block_idx=full_indices,
        block_size=(problem.params["block_q"], problem.params["block_kv"]))
