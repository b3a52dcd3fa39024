"""SciPy's BSR matrices, on one thread."""

from ..timing import Prepared
from .base import Peer, need


class SciPy(Peer):
    ops = ("bsr_matmul", "spgemm")

    module = "scipy"

    def refuse(self, case):
        return None if case.params["dtype"] == "f32" else "f32 only"

    def prepare(self, problem):
        sparse = need("scipy.sparse")

        def matrix(bsr, values):
            return sparse.bsr_matrix((values, bsr.lists.indices, bsr.lists.offsets),
                                     shape=(bsr.rows, bsr.cols))

        def operand(bsr, values):
            return matrix(bsr, values) if bsr else values

        sets = [(operand(problem.bsr_a, one["a"]), operand(problem.bsr_b, one["b"]))
                for one in problem.sets]
        if problem.op == "spgemm":
            return Prepared(lambda i: Product(sets[i][0] @ sets[i][1]))
        if problem.params["side"] == "b":
            return Prepared(lambda i: (sets[i][1] @ sets[i][0].T).T)
        return Prepared(lambda i: sets[i][0] @ sets[i][1])


class Product:
    """A sparse result with access by rows."""

    def __init__(self, matrix):
        self.matrix = matrix

    def dense_rows(self, rows):
        return self.matrix.tocsr()[rows].toarray().astype(float)
