"""PyTorch's own BSR matrices (Triton kernels on a GPU)."""

import warnings

from ..timing import Prepared
from .base import Peer, need


class TorchBsr(Peer):
    ops = ("bsr_matmul",)

    def version(self):
        return need("torch").__version__

    def prepare(self, problem):
        torch = need("torch")
        runs = [torch_bsr_product(torch, problem, one) for one in problem.sets]
        return Prepared(lambda i: runs[i]())


def torch_bsr_product(torch, problem, inputs):
    """A closure that multiplies one set's matrices."""
    from ..arrays import to_torch

    side = problem.params["side"]
    bsr = problem.bsr_a or problem.bsr_b
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "beta state"
        matrix = torch.sparse_bsr_tensor(to_torch(bsr.row_offsets), to_torch(bsr.col_indices),
                                         to_torch(inputs[side]), (bsr.rows, bsr.cols))  # fmt: skip
    dense = to_torch(inputs["b" if side == "a" else "a"])
    if side == "a":
        return lambda: matrix @ dense
    return lambda: torch.nn.functional.linear(dense, matrix)


PEERS = {"torch_bsr": TorchBsr("torch_bsr")}
