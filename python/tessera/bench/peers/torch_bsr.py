"""PyTorch's BSR matrices on a GPU: the faster of its operator and its Triton kernel."""

import warnings

from ..arrays import to_torch
from ..timing import Prepared
from .base import Peer, fastest, need


class TorchBsr(Peer):
    ops = ("bsr_matmul",)

    def prepare(self, problem):
        torch = need("torch")
        runs = {"operator": [torch_bsr_product(torch, problem, one) for one in problem.sets],
                "triton": [triton_product(torch, problem, one) for one in problem.sets]}
        best = fastest({name: some[0] for name, some in runs.items()})
        return Prepared(lambda i: runs[best][i](), version=f"{self.version()} ({best})")


def bsr_tensor(torch, problem, inputs):
    bsr = problem.bsr_a or problem.bsr_b
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "beta state"
        return torch.sparse_bsr_tensor(to_torch(bsr.row_offsets), to_torch(bsr.col_indices),
                                       to_torch(inputs[problem.params["side"]]),
                                       (bsr.rows, bsr.cols))


def torch_bsr_product(torch, problem, inputs):
    """A closure that multiplies one set's matrices as a user would."""
    matrix = bsr_tensor(torch, problem, inputs)
    if problem.params["side"] == "a":
        dense = to_torch(inputs["b"])
        return lambda: matrix @ dense
    dense = to_torch(inputs["a"])
    return lambda: torch.nn.functional.linear(dense, matrix)


def triton_product(torch, problem, inputs):
    """The same by a direct call of the kernel: out = 0 * out + matrix @ dense."""
    kernel = need("torch.sparse._triton_ops").bsr_dense_addmm
    matrix = bsr_tensor(torch, problem, inputs)
    on_the_left = problem.params["side"] == "a"
    dense = inputs["b"] if on_the_left else inputs["a"].t()
    out = dense.new_zeros(matrix.shape[0], dense.shape[1])

    def run():
        kernel(out, matrix, dense, beta=0, alpha=1, out=out)
        return out if on_the_left else out.t()

    return run
