#include <limits>

#include "src/core/check_lists.hpp"

namespace tessera::core {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// The element offset of matrix `batch` in a list [batch, n] or [n].
std::int64_t row_of(const Tensor& list, std::int64_t batch) {
  return list.rank == 2 ? batch * list.stride(0) : 0;
}

// Whether the matrices of a batch use parts of one pool: shared values, but batched offsets.
bool is_pool(const BsrMatrix& matrix) {
  return matrix.values.rank == 3 && matrix.row_offsets.rank == 2;
}

std::string of_matrix(std::int64_t matrix) {
  return matrix < 0 ? std::string() : words(" of matrix ", matrix);
}

void check_columns(const Where& where, const BsrMatrix& matrix, std::int64_t batch,
                   std::int64_t named) {
  const Tensor &offsets = matrix.row_offsets, &columns = matrix.col_indices;
  const std::int64_t rows = matrix.rows / matrix.block_rows();
  const std::int64_t cols = matrix.cols / matrix.block_cols();
  const std::int64_t at = row_of(offsets, batch), column_at = row_of(columns, batch);
  std::int64_t begin = read_entry(offsets, at, 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t end = read_entry(offsets, at, row + 1);
    std::int64_t last = -1;
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t column = read_entry(columns, column_at, p);
      if (column < 0 || column >= cols) {
        refuse(where, words("block columns in [0, ", cols, ")"),
               words(column, " in block row ", row, of_matrix(named)));
      }
      if (column <= last) {
        refuse(where, "block columns that are sorted and unique in a row",
               words(column, " after ", last, " in block row ", row, of_matrix(named)));
      }
      last = column;
    }
    begin = end;
  }
}

bool is_null(const Tensor& tensor) { return tensor && !tensor.data && tensor.numel() > 0; }

}  // namespace

void check_pointer(const Where& where, const Tensor& tensor) {
  if (is_null(tensor)) refuse(where, words("data of ", to_string(tensor)), "a null pointer");
}

void check_pointers(const Where& where, std::initializer_list<Field> fields) {
  for (const auto& [name, tensor] : fields)
    if (is_null(tensor)) check_pointer(where / name, tensor);
}

void check_pointers(const Where& where, const BsrMatrix& matrix) {
  check_pointers(where, {{"values", matrix.values},
                         {"row_offsets", matrix.row_offsets},
                         {"col_indices", matrix.col_indices}});
}

void check_offsets(const Where& where, const Tensor& list, std::int64_t base, std::int64_t segments,
                   const OffsetsRule& rule) {
  const auto reject = [&](const std::string& accepted, const std::string& came) {
    refuse(where, accepted, came + of_matrix(rule.matrix));
  };
  std::int64_t last = read_entry(list, base, 0);
  if (rule.from_zero ? last != 0 : last < 0 || last > rule.total) {
    reject(rule.from_zero ? "offsets that start at 0" : words("offsets 0 to ", rule.total),
           words(last, " at entry 0"));
  }
  for (std::int64_t i = 1; i <= segments; ++i) {
    const std::int64_t next = read_entry(list, base, i);
    if (next < last) {
      reject("offsets that never decrease", words(next, " after ", last, " at entry ", i));
    }
    if (next > rule.total) {
      reject(words("offsets 0 to ", rule.total), words(next, " at entry ", i));
    }
    if (next - last > rule.longest) {
      reject(words("lengths up to ", rule.longest, ", the longest that the problem allows"),
             words(next - last, " at entry ", i - 1));
    }
    last = next;
  }
  if (rule.to_total && last != rule.total) {
    reject(words("offsets that end at ", rule.total), words(last));
  }
}

std::int64_t check_bsr_layout(const Where& where, const BsrMatrix& matrix, const Device& device) {
  const Tensor& blocks = matrix.values;
  check_tensor(where / "values", blocks, device);
  if (blocks.rank != 3 && blocks.rank != 4) {
    refuse(where / "values", "shape [stored, block rows, block cols] or [batch, ...]",
           to_string(blocks));
  }
  if (matrix.block_rows() < 1 || matrix.block_cols() < 1) {
    refuse(where / "values", "blocks of at least 1 x 1", to_string(blocks));
  }
  const auto check_side = [&](const char* name, std::int64_t size, std::int64_t block) {
    if (size < 0 || size > kMaxSize || size % block != 0) {
      refuse(where / name, words("a multiple of the block size ", block, ", 0 to 2^60"),
             words(size));
    }
  };
  check_side("rows", matrix.rows, matrix.block_rows());
  check_side("cols", matrix.cols, matrix.block_cols());
  const std::int64_t grid_rows = matrix.rows / matrix.block_rows();
  const std::int64_t grid_cols = matrix.cols / matrix.block_cols();

  // All tensors with a batch dimension have the same batch size.
  const Tensor &offsets = matrix.row_offsets, &columns = matrix.col_indices;
  std::int64_t batch = 1;
  if (blocks.rank == 4) {
    batch = blocks.size(0);
  } else if (offsets.rank == 2) {
    batch = offsets.size(0);
  } else if (columns.rank == 2) {
    batch = columns.size(0);
  }
  const std::int64_t stored = matrix.stored_blocks();
  const Dim offsets_dims[] = {{"batch", batch}, {"block rows + 1", grid_rows + 1}};
  const Dim columns_dims[] = {{"batch", batch}, {"stored blocks", stored}};
  check_list(where / "row_offsets", offsets, device,
             Dims(offsets_dims).subspan(offsets.rank == 2 ? 0 : 1));
  check_list(where / "col_indices", columns, device,
             Dims(columns_dims).subspan(columns.rank == 2 ? 0 : 1));
  check_same_dtype(where / "col_indices", columns, offsets.dtype, "row_offsets");

  if (offsets.dtype == DType::i32 && (stored > kMaxInt32 || grid_cols > kMaxInt32)) {
    refuse(where / "row_offsets", "dtype i64 for more than 2^31 - 1 blocks", to_string(offsets));
  }
  // Only a pool may store more blocks than a matrix has positions.
  std::int64_t grid = 0;
  if (!is_pool(matrix) && !__builtin_mul_overflow(grid_rows, grid_cols, &grid) && stored > grid) {
    refuse(
        where / "values",
        words("at most ", grid, " stored blocks, as the matrix has ", grid_rows, " x ", grid_cols),
        to_string(blocks));
  }
  return batch;
}

void check_bsr_lists(const Where& where, const BsrMatrix& matrix, bool written) {
  const Tensor &offsets = matrix.row_offsets, &columns = matrix.col_indices;
  if (!on_host(offsets)) return;
  const std::int64_t rows = matrix.rows / matrix.block_rows();
  const bool pool = is_pool(matrix), batched = offsets.rank == 2 || columns.rank == 2;
  OffsetsRule rule;
  rule.total = matrix.stored_blocks();
  rule.from_zero = rule.to_total = !pool;
  const std::int64_t batch = !batched ? 1 : (offsets.rank == 2 ? offsets : columns).size(0);
  std::int64_t taken = 0;  // end of the last matrix's blocks in a pool that is written
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t at = row_of(offsets, b);
    rule.matrix = batched ? b : -1;
    check_offsets(where / "row_offsets", offsets, at, rows, rule);
    if (written && pool) {
      const std::int64_t first = read_entry(offsets, at, 0);
      if (first < taken) {
        refuse(where / "row_offsets",
               words("matrix ", b, " of the batch to start at block ", taken,
                     " or later, as matrices may not share blocks of an output"),
               words(first));
      }
      taken = read_entry(offsets, at, rows);
    }
    check_columns(where / "col_indices", matrix, b, rule.matrix);
  }
}

}  // namespace tessera::core
