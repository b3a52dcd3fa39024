#include <tessera/bsr.hpp>

#include <tessera/pattern.hpp>

#include "src/core/check_lists.hpp"
#include "src/core/checked.hpp"
#include "src/sparse/support.hpp"

namespace tessera {

void validate(const BsrMatrix& matrix) {
  const core::Where where("bsr");
  BsrMatrix lists = matrix;
  lists.values.device = {};  // values are not read, so they may be on any device
  core::check_bsr_layout(where, lists, Device{});
  core::check_pointer(where / "row_offsets", lists.row_offsets);
  core::check_pointer(where / "col_indices", lists.col_indices);
  core::check_bsr_lists(where, lists);
}

HostBsr make_bsr(const Pattern& pattern, std::int64_t block_rows, std::int64_t block_cols,
                 DType dtype, DType index) {
  validate(pattern);
  sparse::require_at_least(block_rows, 1, "block_rows");
  sparse::require_at_least(block_cols, 1, "block_cols");
  HostBsr bsr;
  bsr.rows = core::checked_multiply(pattern.rows, block_rows, "block_rows");
  bsr.cols = core::checked_multiply(pattern.cols, block_cols, "block_cols");
  bsr.row_offsets = sparse::index_tensor(pattern.offsets, index, "row_offsets");
  bsr.col_indices = sparse::index_tensor(pattern.indices, index, "col_indices");
  bsr.values = HostTensor(dtype, {pattern.stored(), block_rows, block_cols});
  return bsr;
}

Pattern pattern_of(const BsrMatrix& matrix) {
  validate(matrix);
  if (matrix.row_offsets.rank != 1 || matrix.col_indices.rank != 1) {
    core::refuse(core::Where("bsr"), "an unbatched matrix",
                 core::words("row_offsets ", to_string(matrix.row_offsets), " and col_indices ",
                             to_string(matrix.col_indices)));
  }
  Pattern pattern = sparse::open_pattern(matrix.rows / matrix.block_rows(),
                                         matrix.cols / matrix.block_cols(), "bsr");
  for (std::int64_t i = 1; i <= pattern.rows; ++i) {
    pattern.offsets.push_back(core::read_entry(matrix.row_offsets, 0, i));
  }
  for (std::int64_t p = 0; p < matrix.stored_blocks(); ++p) {
    pattern.indices.push_back(core::read_entry(matrix.col_indices, 0, p));
  }
  return pattern;
}

}  // namespace tessera
