#pragma once

#include <algorithm>
#include <cstdint>

#include <tessera/bsr.hpp>

#include "src/core/carver.hpp"
#include "src/problem/shape.hpp"
#include "src/walk/views.hpp"

// The layout of a matmul schedule on a GPU: arithmetic for the planner (number of bytes), the
// kernels that fill the schedule and the kernels that walk it.
namespace tessera::planning {

/// The division of a pattern's rows while its lists are transposed: a thread block processes a
/// chunk of bands, one after the other. A band has at most as many rows as a word has bits.
struct ListCut {
  static constexpr std::int64_t kBand = 16;
  static constexpr std::int64_t kMaxChunks = 128;
  std::int64_t chunks = 0, bands = 0;  // bands: per chunk

  static constexpr ListCut of(std::int64_t rows) {
    const std::int64_t all = (rows + kBand - 1) / kBand;
    const std::int64_t each = std::max<std::int64_t>((all + kMaxChunks - 1) / kMaxChunks, 1);
    return {(all + each - 1) / each, each};
  }
};

/// A sparse operand's lists by block column, and its lines in descending order of length. Empty if
/// the kernel walks the operand as stored.
struct GpuLists : LineLists {
  IndexSink order;                  // [batch, lines]: longest first, ties by index
  std::uint32_t* counts = nullptr;  // [batch, chunks, lines]: scratch of `prepare`

  explicit operator bool() const { return static_cast<bool>(offsets); }
};

/// The schedule of a matmul: transposed lists for an operand that the kernel does not walk as
/// stored (a if transposed, b if not).
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

/// The lists that a kernel walks: the transposed lists if there are any, else the stored ones. A
/// row of the view is a line of the operand.
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

/// The batch stride of the order of lines.
inline std::int64_t order_stride(const BsrMatrix& matrix, const GpuLists& lists) {
  return list_batches(matrix) == 1 ? 0 : lists.lines;
}

}  // namespace tessera::planning
