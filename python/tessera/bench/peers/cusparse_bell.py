"""cuSPARSE's Blocked-ELL: as many stored blocks in every row; shorter rows are padded."""

import ctypes

from .. import arrays
from .cusparse import BASE_ZERO, INDEX_32I, CuSparse
from .libraries import CUDA_TYPES, address

BLOCKED_ELL_ALG1 = 13


class BlockedEll(CuSparse):
    algorithm = BLOCKED_ELL_ALG1

    def refuse(self, case):
        return "square blocks only" if "block_cols" in case.params else None

    def sparse_matrix(self, problem, values, call):
        bsr = problem.bsr_a or problem.bsr_b
        lists, block = bsr.lists, bsr.block_rows
        _, table = lists.padded(fill=-1)
        width = table.shape[1]
        columns = arrays.integers(table, problem.device)
        # The values are one matrix, [rows, width * block], row after row.
        stored = values.new_zeros(lists.rows, width, block, block)
        stored[columns >= 0] = values
        stored = stored.transpose(1, 2).contiguous()
        matrix = ctypes.c_void_p()
        call("cusparseCreateBlockedEll", ctypes.byref(matrix), ctypes.c_int64(bsr.rows),
             ctypes.c_int64(bsr.cols), ctypes.c_int64(block), ctypes.c_int64(width * block),
             address(columns), address(stored), INDEX_32I, BASE_ZERO,
             CUDA_TYPES[problem.dtype])
        return matrix, (columns, stored)


PEERS = {"cusparse_bell": BlockedEll("cusparse_bell")}
