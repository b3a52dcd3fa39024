#include <tessera/bsr.hpp>

#include <string>

#include <tessera/pattern.hpp>

#include "src/core/checked.hpp"
#include "src/sparse/support.hpp"

namespace tessera {
namespace {

using sparse::refuse;
using std::to_string;

// Size of the leading batch dimension of a tensor that has `rank` dimensions without it; -1: none.
std::int64_t batch_of(const Tensor& tensor, int rank, const std::string& argument) {
  if (tensor.rank != rank && tensor.rank != rank + 1) {
    refuse(argument + ": expected " + to_string(rank) + " dimensions, or one more for a batch, " +
           "got " + tessera::to_string(tensor));
  }
  return tensor.rank == rank ? -1 : tensor.size(0);
}

// Checks shapes against each other; returns the number of matrices.
std::int64_t check_layout(const BsrMatrix& matrix) {
  if (!matrix.values) refuse("bsr: values: expected a tensor, got none");
  std::int64_t batch = -1;
  const auto join = [&](std::int64_t own, const Tensor& tensor, const std::string& argument) {
    if (own < 0) return;
    if (batch >= 0 && own != batch) {
      refuse(argument + ": expected a batch of " + to_string(batch) + " or none, got " +
             tessera::to_string(tensor));
    }
    batch = own;
  };
  join(batch_of(matrix.values, 3, "bsr: values"), matrix.values, "bsr: values");
  for (int i = 0; i < matrix.values.rank; ++i) {
    sparse::require_at_least(matrix.values.size(i), 0, "bsr: values: sizes");
  }
  sparse::require_host(matrix.row_offsets, "bsr: row_offsets");
  sparse::require_index_dtype(matrix.row_offsets, "bsr: row_offsets");
  join(batch_of(matrix.row_offsets, 1, "bsr: row_offsets"), matrix.row_offsets, "bsr: row_offsets");
  sparse::require_host(matrix.col_indices, "bsr: col_indices");
  join(batch_of(matrix.col_indices, 1, "bsr: col_indices"), matrix.col_indices, "bsr: col_indices");
  if (matrix.col_indices.dtype != matrix.row_offsets.dtype) {
    refuse("bsr: col_indices: expected " + std::string(to_string(matrix.row_offsets.dtype)) +
           " as in row_offsets, got " + tessera::to_string(matrix.col_indices));
  }
  sparse::require_at_least(matrix.rows, 0, "bsr: rows");
  sparse::require_at_least(matrix.cols, 0, "bsr: cols");
  sparse::require_divides(matrix.rows, matrix.block_rows(), "bsr: values: block rows", "rows");
  sparse::require_divides(matrix.cols, matrix.block_cols(), "bsr: values: block columns",
                          "columns");
  const std::int64_t block_rows = matrix.rows / matrix.block_rows();
  if (matrix.row_offsets.size(matrix.row_offsets.rank - 1) != block_rows + 1) {
    refuse("bsr: row_offsets: expected one more than the " + to_string(block_rows) +
           " block rows, got " + tessera::to_string(matrix.row_offsets));
  }
  if (matrix.col_indices.size(matrix.col_indices.rank - 1) != matrix.stored_blocks()) {
    refuse("bsr: col_indices: expected one for each of the " + to_string(matrix.stored_blocks()) +
           " stored blocks, got " + tessera::to_string(matrix.col_indices));
  }
  return batch < 0 ? 1 : batch;
}

// One batch entry of a list.
struct List {
  const Tensor& tensor;
  std::int64_t begin, stride;
  List(const Tensor& list, std::int64_t batch)
      : tensor(list),
        begin(list.rank == 2 ? batch * list.stride(0) : 0),
        stride(list.stride(list.rank - 1)) {}
  std::int64_t operator[](std::int64_t i) const {
    return sparse::load_index(tensor, begin + i * stride);
  }
};

void check_offsets(const List& offsets, std::int64_t block_rows, std::int64_t stored, bool pool,
                   const std::string& where) {
  const std::int64_t first = offsets[0], last = offsets[block_rows];
  if (pool ? (first < 0 || last > stored) : (first != 0 || last != stored)) {
    refuse("bsr: row_offsets: expected " + std::string(pool ? "a range within " : "") +
           "0 to the " + to_string(stored) + " stored blocks, got " + to_string(first) + " to " +
           to_string(last) + where);
  }
  for (std::int64_t i = 0; i < block_rows; ++i) {
    if (offsets[i] > offsets[i + 1]) {
      refuse("bsr: row_offsets: block row " + to_string(i) + " ends at " +
             to_string(offsets[i + 1]) + ", before its begin " + to_string(offsets[i]) + where);
    }
  }
}

void check_columns(const List& offsets, const List& columns, std::int64_t block_rows,
                   std::int64_t block_cols, const std::string& where) {
  for (std::int64_t i = 0; i < block_rows; ++i) {
    std::int64_t before = -1;
    for (std::int64_t p = offsets[i]; p < offsets[i + 1]; ++p) {
      const std::int64_t col = columns[p];
      if (col < 0 || col >= block_cols) {
        refuse("bsr: col_indices: block row " + to_string(i) + " holds block column " +
               to_string(col) + ", expected 0 to " + to_string(block_cols - 1) + where);
      }
      if (col <= before) {
        refuse("bsr: col_indices: block row " + to_string(i) + " holds block column " +
               to_string(col) + " after " + to_string(before) +
               ", expected sorted and unique columns" + where);
      }
      before = col;
    }
  }
}

}  // namespace

void validate(const BsrMatrix& matrix) {
  const std::int64_t batches = check_layout(matrix);
  const std::int64_t block_rows = matrix.rows / matrix.block_rows();
  const std::int64_t block_cols = matrix.cols / matrix.block_cols();
  const bool own_lists = matrix.row_offsets.rank == 2 || matrix.col_indices.rank == 2;
  // Matrices with their own offsets into shared values each use a part of one pool.
  const bool pool = matrix.row_offsets.rank == 2 && matrix.values.rank == 3;
  for (std::int64_t b = 0; b < (own_lists ? batches : 1); ++b) {
    const std::string where = own_lists ? " (batch " + to_string(b) + ")" : "";
    const List offsets(matrix.row_offsets, b), columns(matrix.col_indices, b);
    check_offsets(offsets, block_rows, matrix.stored_blocks(), pool, where);
    check_columns(offsets, columns, block_rows, block_cols, where);
  }
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
    refuse("bsr: expected an unbatched matrix, got row_offsets " +
           tessera::to_string(matrix.row_offsets) + " and col_indices " +
           tessera::to_string(matrix.col_indices));
  }
  Pattern pattern = sparse::open_pattern(matrix.rows / matrix.block_rows(),
                                         matrix.cols / matrix.block_cols(), "bsr");
  const List offsets(matrix.row_offsets, 0), columns(matrix.col_indices, 0);
  for (std::int64_t i = 1; i <= pattern.rows; ++i) pattern.offsets.push_back(offsets[i]);
  for (std::int64_t p = 0; p < matrix.stored_blocks(); ++p) pattern.indices.push_back(columns[p]);
  return pattern;
}

}  // namespace tessera
