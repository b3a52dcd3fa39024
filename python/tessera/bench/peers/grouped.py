"""Dense products with a matrix per expert: PyTorch's grouped product, and a loop over cuBLASLt.
Sparse matrices are multiplied with their zeros."""

from .. import arrays
from ..timing import Prepared
from .base import Peer, Unavailable, need
from .cublaslt import CublasLt, Product


class GroupedMm(Peer):
    ops = ("matmul", "bsr_matmul")
    experts = (True,)

    def prepare(self, problem):
        torch = need("torch")
        function = getattr(torch.nn.functional, "grouped_mm", None)
        function = function or getattr(torch, "_grouped_mm", None)
        if function is None:
            raise Unavailable(f"PyTorch {torch.__version__} has no grouped product")
        ends = arrays.to_torch(problem.offsets_array[1:])
        transposed = problem.case.transpose[1] == "t"
        sets = [problem.dense_operands(one) for one in problem.sets]
        sets = [(a, b.transpose(1, 2) if transposed else b) for a, b in sets]
        return Prepared(lambda i: function(*sets[i], offs=ends), computed_flops=problem.dense_flops)


class CublasLtLoop(CublasLt):
    """A call per expert, each with its fastest algorithm."""

    ops = ("matmul", "bsr_matmul")
    experts = (True,)

    def prepare(self, problem):
        p = problem.params
        operands = [problem.dense_operands(one) for one in problem.sets]
        outs = [a.new_empty(p["m"], p["n"]) for a, _ in operands]
        products = []
        for expert, (begin, length) in enumerate(zip(problem.offsets, problem.lengths,
                                                     strict=False)):
            rows = slice(int(begin), int(begin + length))
            sets = [(a[rows], b[expert], out[rows])
                    for (a, b), out in zip(operands, outs, strict=True)]
            product = Product(sets, (int(length), p["n"], p["k"]), problem.case.transpose,
                              problem.dtype)
            products.append((product, product.choose()))

        def run(i):
            for product, best in products:
                product.run(i, best)
            return outs[i]

        return Prepared(run, computed_flops=problem.dense_flops)
