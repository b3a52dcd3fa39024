"""cuSPARSE's BSR."""

import ctypes

from .cusparse import BASE_ZERO, INDEX_32I, ORDER_ROW, CuSparse
from .libraries import CUDA_TYPES, address

BSR_ALG1 = 14


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


PEERS = {"cusparse_bsr": BlockRows("cusparse_bsr")}
