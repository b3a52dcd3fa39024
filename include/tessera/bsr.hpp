#pragma once

#include <cstdint>

#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// A matrix in block-sparse-row format, with the layout of `torch.sparse_bsr`.
///
/// Block row `i` stores blocks row_offsets[i] <= p < row_offsets[i + 1]. Block `p` covers rows
/// [i*r, (i+1)*r) and columns [col_indices[p]*c, (col_indices[p]+1)*c). Column indices are sorted
/// and unique within a block row.
///
/// In a batch, each of the three tensors may have a leading batch dimension: values [batch, nnzb,
/// r, c], row_offsets [batch, rows/r + 1], col_indices [batch, nnzb]. A tensor without it is shared
/// by all matrices. If values are shared and offsets are not, the offsets are absolute positions in
/// one pool of blocks, and the matrices may store different numbers of blocks: experts of unequal
/// density, or slices of one tall matrix.
struct BsrMatrix {
  Tensor values{};                  ///< [nnzb, r, c] or [batch, nnzb, r, c]
  Tensor row_offsets{};             ///< [rows/r + 1] or [batch, rows/r + 1]; i32 or i64
  Tensor col_indices{};             ///< [nnzb] or [batch, nnzb]; dtype of row_offsets
  std::int64_t rows = 0, cols = 0;  ///< of the matrix, in elements

  /// True if the matrix is present.
  explicit operator bool() const { return static_cast<bool>(values); }
  /// Rows of a block, r.
  std::int64_t block_rows() const { return values.size(values.rank - 2); }
  /// Columns of a block, c.
  std::int64_t block_cols() const { return values.size(values.rank - 1); }
  /// Stored blocks, nnzb.
  std::int64_t stored_blocks() const { return values.size(values.rank - 3); }
};

/// Checks a matrix whose lists are in host memory: offsets start at 0, never decrease and end at
/// the number of stored blocks (a batch that shares one pool of values may start and end anywhere
/// in it); column indices are in range, sorted and unique. Values are not read. Throws `Error` for
/// the first violation.
TESSERA_EXPORT void validate(const BsrMatrix& matrix);

}  // namespace tessera
