"""PyTorch's own dense product on a GPU, as models call it; for a sparse case, the dense product of
the same size with random values."""

from ..timing import Prepared
from .base import Peer, need


class TorchDense(Peer):
    ops = ("matmul", "bsr_matmul")

    def prepare(self, problem):
        torch = need("torch")
        whole = problem if problem.op == "matmul" else problem.dense()
        first, second = (letter == "t" for letter in whole.case.transpose)
        sets = [(one["a"].T if first else one["a"], one["b"].T if second else one["b"], one["out"])
                for one in whole.sets]

        def run(i):
            a, b, out = sets[i]
            return torch.matmul(a, b, out=out)

        run(0)
        prepared = Prepared(run)
        return prepared if whole is problem else prepared.solving(whole)

