#include <algorithm>

#include "src/plan/check.hpp"

namespace tessera::planning {
namespace {

// Where row `batch` of a list [batch, n] or [n] begins.
std::int64_t row_of(const Tensor& list, std::int64_t batch) {
  return list.rank == 2 ? batch * list.stride(0) : 0;
}

}  // namespace

void check_pointer(const Where& where, const Tensor& tensor) {
  if (tensor && !tensor.data && tensor.numel() > 0) {
    refuse(where, words("data of ", to_string(tensor)), "a null pointer");
  }
}

void check_pointers(const Where& where, const BsrMatrix& matrix) {
  check_pointer(where / "values", matrix.values);
  check_pointer(where / "row_offsets", matrix.row_offsets);
  check_pointer(where / "col_indices", matrix.col_indices);
}

void check_offsets(const Where& where, const Tensor& list, std::int64_t base, std::int64_t segments,
                   const OffsetsRule& rule) {
  std::int64_t last = read_entry(list, base, 0);
  if (rule.from_zero ? last != 0 : last < 0 || last > rule.total) {
    refuse(where, rule.from_zero ? "offsets that start at 0" : words("offsets 0 to ", rule.total),
           words(last, " first"));
  }
  for (std::int64_t i = 1; i <= segments; ++i) {
    const std::int64_t next = read_entry(list, base, i);
    if (next < last) {
      refuse(where, "offsets that never decrease", words(next, " after ", last, " at entry ", i));
    }
    if (next > rule.total) {
      refuse(where, words("offsets 0 to ", rule.total), words(next, " at entry ", i));
    }
    if (next - last > rule.longest) {
      refuse(where, words("lengths up to ", rule.longest, ", the longest that the problem allows"),
             words(next - last, " at entry ", i - 1));
    }
    last = next;
  }
  if (rule.to_total && last != rule.total) {
    refuse(where, words("offsets that end at ", rule.total), words(last));
  }
}

void check_bsr_lists(const Where& where, const BsrMatrix& matrix, bool written) {
  const Tensor& offsets = matrix.row_offsets;
  const Tensor& columns = matrix.col_indices;
  if (!on_host(offsets)) return;
  const std::int64_t rows = matrix.rows / matrix.block_rows();
  const std::int64_t cols = matrix.cols / matrix.block_cols();
  const bool pool = matrix.values.rank == 3 && offsets.rank == 2;
  OffsetsRule rule;
  rule.total = matrix.stored_blocks();
  rule.from_zero = rule.to_total = !pool;
  const std::int64_t batch = offsets.rank == 2   ? offsets.size(0)
                             : columns.rank == 2 ? columns.size(0)
                                                 : 1;
  std::int64_t taken = 0;  // blocks of a written pool that the matrices so far have
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t at = row_of(offsets, b), column_at = row_of(columns, b);
    check_offsets(where / "row_offsets", offsets, at, rows, rule);
    if (written && pool) {
      const std::int64_t first = read_entry(offsets, at, 0);
      if (first < taken) {
        refuse(where / "row_offsets",
               words("matrix ", b, " of the batch to start at block ", taken,
                     " or later, as values are written"),
               words(first));
      }
      taken = read_entry(offsets, at, rows);
    }
    std::int64_t begin = read_entry(offsets, at, 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t end = read_entry(offsets, at, row + 1);
      std::int64_t last = -1;
      for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t column = read_entry(columns, column_at, p);
        if (column < 0 || column >= cols) {
          refuse(where / "col_indices", words("block columns in [0, ", cols, ")"),
                 words(column, " in block row ", row));
        }
        if (column <= last) {
          refuse(where / "col_indices", "block columns that are sorted and unique in a row",
                 words(column, " after ", last, " in block row ", row));
        }
        last = column;
      }
      begin = end;
    }
  }
}

}  // namespace tessera::planning
