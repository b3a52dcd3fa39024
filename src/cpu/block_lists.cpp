#include "src/cpu/block_lists.hpp"

#include <algorithm>

#include "src/plan/views.hpp"

namespace tessera::cpu {

std::int64_t list_batches(const BsrMatrix& matrix) {
  std::int64_t batches = 1;
  for (const Tensor& list : {matrix.row_offsets, matrix.col_indices})
    if (list.rank == 2) batches = std::max(batches, list.size(0));
  return batches;
}

BlockLists lists_by_row(const BsrMatrix& matrix, std::int64_t batch) {
  return {planning::view_of(matrix), batch, nullptr};
}

BlockLists lists_by_column(const planning::ListBuffers& buffers, const BsrMatrix& matrix,
                           std::int64_t batch) {
  const planning::BsrView stored = planning::view_of(matrix);
  const std::int64_t list_batch = list_batches(matrix) == 1 ? 0 : batch;
  planning::BsrView lists;
  lists.offsets.wide = buffers.offsets + list_batch * (stored.block_cols + 1);
  lists.indices.wide = buffers.others + list_batch * stored.stored;
  lists.block_rows = stored.block_cols;
  lists.block_cols = stored.block_rows;
  lists.stored = stored.stored;
  return {lists, 0, buffers.positions + list_batch * stored.stored};
}

void write_transposed_lists(const BsrMatrix& matrix, const planning::ListBuffers& buffers) {
  const planning::BsrView view = planning::view_of(matrix);
  for (std::int64_t batch = 0; batch < list_batches(matrix); ++batch) {
    std::int64_t* offsets = buffers.offsets + batch * (view.block_cols + 1);
    std::int64_t* others = buffers.others + batch * view.stored;
    std::int64_t* positions = buffers.positions + batch * view.stored;
    const auto for_each_entry = [&](const auto& visit) {
      for (std::int64_t i = 0; i < view.block_rows; ++i) {
        const planning::BsrRow row = view.row(batch, i);
        for (std::int64_t p = row.begin; p < row.end; ++p)
          if (const std::int64_t column = row.column(p); column >= 0) visit(i, column, p);
      }
    };
    std::fill(offsets, offsets + view.block_cols + 1, 0);
    for_each_entry([&](std::int64_t, std::int64_t j, std::int64_t) { ++offsets[j + 1]; });
    for (std::int64_t j = 0; j < view.block_cols; ++j) offsets[j + 1] += offsets[j];
    // Filling moves each column's offset to its end; moving all one place up restores them.
    for_each_entry([&](std::int64_t i, std::int64_t j, std::int64_t p) {
      const std::int64_t slot = offsets[j]++;
      others[slot] = i;
      positions[slot] = p;
    });
    for (std::int64_t j = view.block_cols; j > 0; --j) offsets[j] = offsets[j - 1];
    offsets[0] = 0;
  }
}

}  // namespace tessera::cpu
