"""FlashAttention-4 (flash_attn.cute): compiles each new variant on first use."""

from ..cases import ATTENTION_PASSES
from ..problem import split_by_visibility, transposed_by_visibility
from ..timing import Prepared
from .base import Peer, need, version_of


class Fa4(Peer):
    ops: tuple = ATTENTION_PASSES
    deterministic = False

    def version(self):
        need("flash_attn.cute")
        return version_of("flash-attn-4")

    def refuse(self, case):
        both = "page" in case.params and case.sparse
        return "no block lists over pages" if both else None

    def prepare(self, problem):
        interface = need("flash_attn.cute.interface")
        common = options_of(problem)
        if problem.op == "attention":
            run = self._forward(interface._flash_attn_fwd, problem, common)
        else:
            run = self._backward(interface._flash_attn_bwd, problem, common)
        run(0)
        return Prepared(run)

    def _forward(self, forward, problem, common):
        if problem.lists:
            common["block_sparse_tensors"] = block_lists(problem, split_by_visibility(problem))

        def run(i):
            one = problem.sets[i]
            return forward(one["q"], one["k"], one["v"], out=one["out"], return_lse=False,
                           **common)[0]

        return run

    def _backward(self, backward, problem, common):
        """From our out and lse: in its own layout and logarithm, these are the same."""
        if problem.lists:
            common["block_sparse_tensors"] = block_lists(problem, transposed_by_visibility(problem))
        common["deterministic"] = self.deterministic

        def run(i):
            one = problem.sets[i]
            return backward(*(one[name] for name in ("q", "k", "v", "out", "dout", "lse")),
                            **{name: one[name] for name in ("dq", "dk", "dv")}, **common)[:3]

        return run


class Fa4Deterministic(Fa4):
    """Its backward pass with sums in a fixed order."""

    ops = ("attention_backward",)
    deterministic = True

    def refuse(self, case):
        return "no fixed order over block lists is adapted" if "pattern" in case.params else None


def options_of(problem):
    p = problem.params
    common = {"causal": p["causal"]}
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
    return common


def block_lists(problem, lists):
    sparsity = need("flash_attn.cute.block_sparsity")
    (counts, indices), (full_counts, full_indices) = lists
    return sparsity.BlockSparseTensorsTorch(
        mask_block_cnt=counts, mask_block_idx=indices, full_block_cnt=full_counts,
        full_block_idx=full_indices,
        block_size=(problem.params["block_q"], problem.params["block_kv"]))
