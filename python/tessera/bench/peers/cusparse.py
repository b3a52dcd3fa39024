"""cuSPARSE's SpMM of a sparse A with a dense matrix: Blocked-ELL and BSR."""

import ctypes

from .. import arrays
from ..timing import Prepared
from .base import Peer, need
from .libraries import CUDA_TYPES, address, checker, current_stream, load

ORDER_COL, ORDER_ROW = 1, 2
BLOCKED_ELL_ALG1, BSR_ALG1 = 13, 14
INDEX_32I, BASE_ZERO, NO_TRANSPOSE, COMPUTE_F32 = 2, 0, 0, 0


class CuSparse(Peer):
    ops = ("bsr_matmul",)

    def version(self):
        need("torch")
        library = load("cusparse")
        parts = []
        for which in range(3):  # libraryPropertyType: major, minor, patch
            value = ctypes.c_int()
            library.cusparseGetProperty(which, ctypes.byref(value))
            parts.append(str(value.value))
        return ".".join(parts)

    def sparse_matrix(self, problem, values, call):
        """The descriptor of a set's sparse matrix, and the objects that it refers to."""
        raise NotImplementedError

    algorithm = 0

    def prepare(self, problem):
        torch = need("torch")
        call = checker(load("cusparse"), "cusparseGetErrorString")
        handle = ctypes.c_void_p()
        call("cusparseCreate", ctypes.byref(handle))
        runs = [self._spmm(problem, one, call, handle, torch) for one in problem.sets]
        return Prepared(lambda i: runs[i]())

    def _spmm(self, problem, inputs, call, handle, torch):
        p, kind = problem.params, CUDA_TYPES[problem.dtype]
        side = p["side"]
        matrix, kept = self.sparse_matrix(problem, inputs[side], call)
        # y = x w^T is y^T = w x^T, and a row-major x is a column-major x^T.
        dense, out = inputs["b" if side == "a" else "a"], inputs["out"]
        rows, cols = dense.shape if side == "a" else dense.shape[::-1]
        out_rows, out_cols = out.shape if side == "a" else out.shape[::-1]
        order = ORDER_ROW if side == "a" else ORDER_COL
        b = self._dense(call, rows, cols, dense, kind, order)
        c = self._dense(call, out_rows, out_cols, out, kind, order)
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        common = (handle, NO_TRANSPOSE, NO_TRANSPOSE, ctypes.byref(one), matrix, b,
                  ctypes.byref(zero), c, COMPUTE_F32, self.algorithm)
        size = ctypes.c_size_t()
        call("cusparseSpMM_bufferSize", *common, ctypes.byref(size))
        buffer = torch.empty(max(1, size.value), dtype=torch.uint8, device=problem.device)

        def run(memory=(kept, dense, one, zero)):  # `common` has pointers to it
            call("cusparseSetStream", handle, current_stream())
            call("cusparseSpMM", *common, address(buffer))
            return out

        return run

    def _dense(self, call, rows, cols, array, kind, order):
        pitch = cols if order == ORDER_ROW else rows
        matrix = ctypes.c_void_p()
        sizes = (ctypes.c_int64(size) for size in (rows, cols, pitch))
        call("cusparseCreateDnMat", ctypes.byref(matrix), *sizes, address(array), kind, order)
        return matrix


class BlockedEll(CuSparse):
    """The same number of blocks in every row; shorter rows are padded."""

    algorithm = BLOCKED_ELL_ALG1

    def refuse(self, case):
        return "square blocks only" if "block_cols" in case.params else None

    def sparse_matrix(self, problem, values, call):
        bsr = problem.bsr_a or problem.bsr_b
        lists, block = bsr.lists, bsr.block_rows
        _, table = lists.padded(fill=-1)
        width = table.shape[1]
        columns = arrays.integers(table, problem.device)
        # The values are one row-major matrix [rows, width * block].
        stored = values.new_zeros(lists.rows, width, block, block)
        stored[columns >= 0] = values
        stored = stored.transpose(1, 2).contiguous()
        matrix = ctypes.c_void_p()
        call("cusparseCreateBlockedEll", ctypes.byref(matrix), ctypes.c_int64(bsr.rows),
             ctypes.c_int64(bsr.cols), ctypes.c_int64(block), ctypes.c_int64(width * block),
             address(columns), address(stored), INDEX_32I, BASE_ZERO,
             CUDA_TYPES[problem.dtype])
        return matrix, (columns, stored)


class BlockRows(CuSparse):
    algorithm = BSR_ALG1

    def sparse_matrix(self, problem, values, call):
        bsr = problem.bsr_a or problem.bsr_b
        lists = bsr.lists
        sizes = (lists.rows, lists.cols, lists.stored, bsr.block_rows, bsr.block_cols)
        matrix = ctypes.c_void_p()
        call("cusparseCreateBsr", ctypes.byref(matrix), *(ctypes.c_int64(n) for n in sizes),
             address(bsr.row_offsets), address(bsr.col_indices), address(values), INDEX_32I,
             INDEX_32I, BASE_ZERO, CUDA_TYPES[problem.dtype], ORDER_ROW)
        return matrix, (bsr, values)
