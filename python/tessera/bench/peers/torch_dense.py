"""PyTorch's own dense product on a GPU, as models call it; for a sparse case, the dense product of
the same size with random values. In FP8 that is torch._scaled_mm, without fast accumulation."""

from ..cases import FP8
from ..timing import Prepared
from .base import Peer, need


class TorchDense(Peer):
    ops = ("matmul", "bsr_matmul")
    fp8 = True

    def prepare(self, problem):
        torch = need("torch")
        whole = problem if problem.op == "matmul" else problem.dense()
        if problem.dtype == FP8:
            prepared = Prepared(scaled_product(torch, whole))
            return prepared if whole is problem else prepared.solving(whole)
        first, second = (letter == "t" for letter in whole.case.transpose)
        sets = [(one["a"].T if first else one["a"], one["b"].T if second else one["b"], one["out"])
                for one in whole.sets]

        def run(i):
            a, b, out = sets[i]
            return torch.matmul(a, b, out=out)

        run(0)
        prepared = Prepared(run)
        return prepared if whole is problem else prepared.solving(whole)


def scaled_product(torch, problem):
    """torch._scaled_mm of a [m, k] and the transpose of b [n, k]."""
    def arguments(one):
        a_scale, b_scale = one["a_scale"], one["b_scale"]
        if problem.params["factors"] == "tensor":
            a_scale, b_scale = a_scale.reshape(()), b_scale.reshape(())
        else:
            b_scale = b_scale.mT
        return one["a"], one["b"].T, a_scale, b_scale

    sets = [arguments(one) for one in problem.sets]

    def run(i):
        a, b, a_scale, b_scale = sets[i]
        return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale,
                                out_dtype=torch.bfloat16, use_fast_accum=False)

    run(0)
    return run
