#pragma once

#include <cstdint>

#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// A block-sparse-row matrix, exactly the layout of `torch.sparse_bsr`.
///
/// Stored block `p` of block row `i`, row_offsets[i] <= p < row_offsets[i + 1], covers rows
/// [i*r, (i+1)*r) and columns [col_indices[p]*c, (col_indices[p]+1)*c). Column indices are sorted
/// and unique within a row.
///
/// A batch is a leading dimension on any of the three: values [batch, nnzb, r, c], row_offsets
/// [batch, rows/r + 1], col_indices [batch, nnzb]. Those without it are shared. With shared values
/// and own offsets (absolute positions in the one pool) each matrix may store another number of
/// blocks: experts of unequal density, or the slices of one tall matrix.
struct BsrMatrix {
  Tensor values{};       ///< [nnzb, r, c] or [batch, nnzb, r, c]
  Tensor row_offsets{};  ///< [rows/r + 1] or [batch, rows/r + 1]; i32 or i64
  Tensor col_indices{};  ///< [nnzb] or [batch, nnzb]; same dtype
  std::int64_t rows = 0, cols = 0;

  explicit operator bool() const { return static_cast<bool>(values); }
  std::int64_t block_rows() const { return values.size(values.rank - 2); }
  std::int64_t block_cols() const { return values.size(values.rank - 1); }
  std::int64_t stored_blocks() const { return values.size(values.rank - 3); }
};

/// Checks the contents of a matrix whose lists are in host memory: offsets start at zero, never
/// decrease and end at the number of stored blocks; columns in range, sorted, unique.
/// Throws `Error` naming the first offence.
TESSERA_EXPORT void validate(const BsrMatrix& matrix);

}  // namespace tessera
