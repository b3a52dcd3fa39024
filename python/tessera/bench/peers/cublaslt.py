"""cuBLASLt, dense: the fastest of the first eight algorithms of its heuristics. `cublaslt`
multiplies sparse matrices as dense ones, with their zeros. `cublaslt_dense` has random values
instead of zeros, which take less power and so less time: it is the rate of dense products that
sparse cases are compared with."""

import ctypes
import statistics

from ..timing import Prepared
from .base import Peer, Unavailable, need
from .libraries import CUDA_TYPES, address, checker, current_stream, load

COMPUTE_32F = 68
TRANSA, TRANSB = 3, 4
MAX_WORKSPACE_BYTES = 1
WORKSPACE = 64 << 20
CANDIDATES = 8


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class CublasLt(Peer):
    ops: tuple[str, ...] = ("matmul", "bsr_matmul", "sddmm", "spgemm")

    def version(self):
        need("torch")
        library = load("cublasLt")
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        number = library.cublasLtGetVersion()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def prepare(self, problem):
        product = DenseProduct(problem)
        best = product.choose()
        return Prepared(lambda i: product.run(i, best), computed_flops=problem.dense_flops)


class CublasLtDense(CublasLt):
    # Not sddmm: its operands are dense, so `cublaslt` has no zeros.
    ops = ("bsr_matmul", "spgemm")

    def prepare(self, problem):
        whole = problem.dense()
        return super().prepare(whole).solving(whole)


class Product:
    """out = A B in row-major storage, which is the column-major product out^T = B^T A^T. Each set
    is (A, B, out) on the device, of sizes (m, n, k); `kind` is the transposition, such as "nt"."""

    def __init__(self, sets, sizes, kind, dtype):
        self.torch = need("torch")
        self.sets = sets
        self.call = checker(load("cublasLt"), "cublasLtGetStatusString")
        m, n, k = sizes
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))
        self.product = ctypes.c_void_p()
        self.call("cublasLtMatmulDescCreate", ctypes.byref(self.product), COMPUTE_32F, 0)
        for name, letter in ((TRANSA, kind[1]), (TRANSB, kind[0])):
            self._set("cublasLtMatmulDescSetAttribute", self.product, name,
                      ctypes.c_int32(letter == "t"))
        rows_a, cols_a = (m, k) if kind[0] == "n" else (k, m)
        rows_b, cols_b = (k, n) if kind[1] == "n" else (n, k)
        self.a = self._layout(dtype, cols_a, rows_a)
        self.b = self._layout(dtype, cols_b, rows_b)
        self.out = self._layout(dtype, n, m)
        self.workspace = self.torch.empty(WORKSPACE, dtype=self.torch.uint8,
                                          device=sets[0][0].device)
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)
        self.algorithms = self._heuristics()

    def _set(self, function, target, name, value):
        self.call(function, target, ctypes.c_int(name), ctypes.byref(value),
                  ctypes.c_size_t(ctypes.sizeof(value)))

    def _layout(self, dtype, rows, cols):
        layout = ctypes.c_void_p()
        self.call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), CUDA_TYPES[dtype],
                  ctypes.c_uint64(rows), ctypes.c_uint64(cols), ctypes.c_int64(rows))
        return layout

    def _heuristics(self):
        preference = ctypes.c_void_p()
        self.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        self._set("cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE_BYTES,
                  ctypes.c_uint64(WORKSPACE))
        found, count = (Heuristic * CANDIDATES)(), ctypes.c_int()
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, self.product, self.b, self.a,
                  self.out, self.out, preference, CANDIDATES, found,
                  ctypes.byref(count))
        good = [one for one in found[: count.value] if one.state == 0]
        if not good:
            raise Unavailable("cuBLASLt's heuristics return no algorithm")
        return good

    def run(self, i, algorithm):
        a, b, out = self.sets[i]
        chosen = self.algorithms[algorithm]
        self.call("cublasLtMatmul", self.handle, self.product, ctypes.byref(self.one), address(b),
                  self.b, address(a), self.a, ctypes.byref(self.zero), address(out), self.out,
                  address(out), self.out, ctypes.byref(chosen.algo), address(self.workspace),
                  ctypes.c_size_t(chosen.workspace_bytes), current_stream())
        return out

    def choose(self):
        """The fastest algorithm, by the median of short turns."""
        torch, times = self.torch, {}
        for _ in range(5):
            for number in range(len(self.algorithms)):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                try:
                    self.run(0, number)
                    start.record()
                    for i in range(3):
                        self.run(i % len(self.sets), number)
                    end.record()
                    end.synchronize()
                except Unavailable:
                    continue
                times.setdefault(number, []).append(start.elapsed_time(end))
        if not times:
            raise Unavailable("none of cuBLASLt's algorithms ran")
        return min(times, key=lambda number: statistics.median(times[number]))


class DenseProduct(Product):
    """The product of a case, with the zeros of sparse operands."""

    def __init__(self, problem):
        p = problem.params
        sizes = p["m"], p["n"], p["k"]
        # Sampled and sparse results are dense here. Each set of inputs has its own buffers.
        sets = [(*problem.dense_operands(one), problem.sets[0]["a"].new_empty(sizes[:2]))
                for one in problem.sets]
        super().__init__(sets, sizes, problem.case.transpose, problem.dtype)
        self.bsr_out = problem.bsr_out

    def run(self, i, algorithm):
        """Returns the stored blocks if the result is sampled. They are selected only for the check,
        which is not timed."""
        out = super().run(i, algorithm)
        return SampledView(out, self.bsr_out) if self.bsr_out else out


class SampledView:
    """A view of a dense result at the blocks of a BSR pattern, without a copy."""

    def __init__(self, dense, bsr):
        rows, cols = bsr.block_rows, bsr.block_cols
        self.blocks = dense.reshape(bsr.lists.rows, rows, bsr.lists.cols, cols)
        self.bsr = bsr

    def index_select(self, axis, entries):
        """The stored blocks with these numbers; axis is 0."""
        lists = self.bsr.lists
        picked = entries.cpu().numpy()
        row, col = lists.row_of_entry()[picked], lists.indices[picked]
        return self.blocks.permute(0, 2, 1, 3)[row.tolist(), col.tolist()]

    @property
    def device(self):
        return self.blocks.device
