#pragma once

#include <algorithm>
#include <cstdint>

#include <tessera/bsr.hpp>

#include "src/core/carver.hpp"
#include "src/problem/shape.hpp"
#include "src/walk/views.hpp"

// How the GPU backends cut a schedule: pure arithmetic, read by the planner (how many bytes), by
// the kernels that fill it and by those that walk it.
namespace tessera::planning {

/// How the rows of a pattern are cut while its lists are transposed: a block of threads takes a
/// chunk of bands, one after the other. A band has at most as many rows as a word has bits.
struct ListCut {
  static constexpr std::int64_t kBand = 16;
  static constexpr std::int64_t kMaxChunks = 128;
  std::int64_t chunks = 0, bands = 0;  // bands: of each chunk

  static constexpr ListCut of(std::int64_t rows) {
    const std::int64_t all = (rows + kBand - 1) / kBand;
    const std::int64_t each = std::max<std::int64_t>((all + kMaxChunks - 1) / kMaxChunks, 1);
    return {(all + each - 1) / each, each};
  }
};

/// A sparse operand's lists by column of blocks, and its lines by falling length. Empty where the
/// operand is walked as it is stored.
struct GpuLists : LineLists {
  IndexSink order;                  // [batch, lines]: longest first, ties by index
  std::uint32_t* counts = nullptr;  // [batch, chunks, lines]: scratch of `prepare`

  explicit operator bool() const { return static_cast<bool>(offsets); }
};

/// A matmul's schedule: lists where an operand is walked against its storage (a transposed, b not).
struct GpuMatmulSchedule {
  GpuLists a, b;
};

inline std::uint32_t* carve_list_counts(core::Carver& carver, std::int64_t batch, std::int64_t rows,
                                        std::int64_t lines) {
  return carver.add<std::uint32_t>(core::Size(batch) * ListCut::of(rows).chunks * lines);
}

inline GpuLists carve_gpu_lists(core::Carver& carver, const OperandShape& o) {
  using core::Size;
  const std::int64_t stored_rows = (o.transposed ? o.cols : o.rows) / o.block.rows;
  const std::int64_t lines = (o.transposed ? o.rows : o.cols) / o.block.cols;
  constexpr std::int64_t kNarrow = std::int64_t{1} << 31;
  const bool wide = std::max({stored_rows, lines, o.stored}) >= kNarrow;
  const auto add = [&](Size count) {
    IndexSink sink;
    if (wide)
      sink.wide = carver.add<std::int64_t>(count);
    else
      sink.narrow = carver.add<std::int32_t>(count);
    return sink;
  };
  GpuLists lists;
  lists.lines = lines;
  lists.stored = o.stored;
  lists.offsets = add(Size(o.batch) * (Size(lines) + 1));
  lists.rows = add(Size(o.batch) * o.stored);
  lists.positions = add(Size(o.batch) * o.stored);
  lists.order = add(Size(o.batch) * lines);
  lists.counts = carve_list_counts(carver, o.batch, stored_rows, lines);
  return lists;
}

inline GpuMatmulSchedule carve_gpu_matmul_schedule(core::Carver& carver, const MatmulShape& s) {
  GpuMatmulSchedule schedule;
  if (s.a.sparse && s.a.transposed) schedule.a = carve_gpu_lists(carver, s.a);
  if (s.b.sparse && !s.b.transposed) schedule.b = carve_gpu_lists(carver, s.b);
  return schedule;
}

inline std::int64_t gpu_matmul_schedule_bytes(const MatmulShape& s) {
  core::Carver carver;
  carve_gpu_matmul_schedule(carver, s);
  return carver.used();
}

/// What a kernel walks: a row of it is a line of the product's operand. The stored lists, or the
/// transposed ones where there are any.
inline BsrView walk_of(const BsrMatrix& matrix, const GpuLists& lists) {
  const BsrView stored = view_of(matrix);
  if (!lists) return stored;
  const bool shared = list_batches(matrix) == 1;
  BsrView view;
  view.offsets = lists.offsets;
  view.indices = lists.rows;
  view.positions = lists.positions;
  view.offset_batch = shared ? 0 : lists.lines + 1;
  view.index_batch = view.position_batch = shared ? 0 : lists.stored;
  view.block_rows = stored.block_cols;
  view.block_cols = stored.block_rows;
  view.stored = stored.stored;
  return view;
}

/// From one batch's order of lines to the next one's.
inline std::int64_t order_stride(const BsrMatrix& matrix, const GpuLists& lists) {
  return list_batches(matrix) == 1 ? 0 : lists.lines;
}

}  // namespace tessera::planning
