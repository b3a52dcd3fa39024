#include "src/kernels/cpu/block_lists.hpp"

#include <algorithm>

namespace tessera::cpu {

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

void write_transposed_lists(const planning::BsrView& view, std::int64_t batches,
                            const planning::LineLists& out) {
  const planning::Indices ends = out.offsets;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::int64_t offsets = batch * (out.lines + 1), entries = batch * out.stored;
    const auto for_each_entry = [&](const auto& visit) {
      for (std::int64_t i = 0; i < view.block_rows; ++i) {
        const planning::BsrRow row = view.row(batch, i);
        for (std::int64_t p = row.begin; p < row.end; ++p)
          if (const std::int64_t column = row.column(p); column >= 0) visit(i, offsets + column, p);
      }
    };
    const auto add = [&](std::int64_t at, std::int64_t more) {
      out.offsets.set(at, ends[at] + more);
    };
    for (std::int64_t j = 0; j <= out.lines; ++j) out.offsets.set(offsets + j, 0);
    for_each_entry([&](std::int64_t, std::int64_t line, std::int64_t) { add(line + 1, 1); });
    for (std::int64_t j = offsets; j < offsets + out.lines; ++j) add(j + 1, ends[j]);
    // Filling has moved each column's offset to its end; shifting all offsets by one restores them.
    for_each_entry([&](std::int64_t i, std::int64_t line, std::int64_t p) {
      out.rows.set(entries + ends[line], i);
      out.positions.set(entries + ends[line], p);
      add(line, 1);
    });
    for (std::int64_t j = offsets + out.lines; j > offsets; --j) out.offsets.set(j, ends[j - 1]);
    out.offsets.set(offsets, 0);
  }
}

void write_transposed_lists(const BsrMatrix& matrix, const planning::ListBuffers& buffers) {
  const planning::BsrView view = planning::view_of(matrix);
  planning::LineLists lists;
  lists.offsets.wide = buffers.offsets;
  lists.rows.wide = buffers.others;
  lists.positions.wide = buffers.positions;
  lists.lines = view.block_cols;
  lists.stored = view.stored;
  write_transposed_lists(view, list_batches(matrix), lists);
}

}  // namespace tessera::cpu
