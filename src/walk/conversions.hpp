#pragma once

#include <cstdint>

#include <tessera/convert.hpp>

#include "src/walk/transposed_lists.hpp"
#include "src/walk/views.hpp"

// Conversions after their tensors have been checked: pointers, strides and sizes, for the CPU and
// the GPU.
namespace tessera::planning {

/// A tensor [rows, cols] or [batch, rows, cols]. Strides count elements; the batch stride is 0 if
/// the matrix is shared.
struct Grid {
  void* data = nullptr;
  std::int64_t batch = 0, row = 0, col = 0;

  TESSERA_HD constexpr std::int64_t at(std::int64_t b, std::int64_t i, std::int64_t j) const {
    return b * batch + i * row + j * col;
  }
};
inline Grid grid_of(const Tensor& t) {
  return {t.data, t.rank == 3 && t.size(0) > 1 ? t.stride(0) : 0, t.stride(t.rank - 2),
          t.stride(t.rank - 1)};
}

/// The stored blocks of a BSR matrix, with strides like `Grid`.
struct Pool {
  void* data = nullptr;
  std::int64_t batch = 0, block = 0, row = 0, col = 0;

  TESSERA_HD constexpr std::int64_t at(std::int64_t b, std::int64_t p, std::int64_t r,
                                       std::int64_t c) const {
    return b * batch + p * block + r * row + c * col;
  }
};
inline Pool pool_of(const Tensor& t) {
  return {t.data, t.rank == 4 && t.size(0) > 1 ? t.stride(0) : 0, t.stride(t.rank - 3),
          t.stride(t.rank - 2), t.stride(t.rank - 1)};
}

/// A copy between a dense matrix and the blocks of a BSR matrix, in either direction.
struct BlockCopy {
  DType dtype = DType::none;
  std::int64_t batches = 1;
  BsrView lists;
  Grid dense;
  Pool pool;
  std::int64_t block_rows = 0, block_cols = 0;
};

inline BlockCopy block_copy(const BsrMatrix& matrix, const Tensor& dense, std::int64_t batches) {
  return {.dtype = dense.dtype,
          .batches = batches,
          .lists = view_of(matrix),
          .dense = grid_of(dense),
          .pool = pool_of(matrix.values),
          .block_rows = matrix.block_rows(),
          .block_cols = matrix.block_cols()};
}

struct NormsShape {
  DType dtype = DType::none;
  BlockNorm norm{};
  std::int64_t batches = 1, rows = 0, cols = 0;  // blocks
  std::int64_t block_rows = 0, block_cols = 0;
  Grid dense, norms;
};

/// Maps a norm to a key in the same order: -0 and 0 have equal keys, NaN has the largest one.
TESSERA_HD constexpr std::uint32_t norm_key(float x) {
  if (x != x) return 0xffffffffu;
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x == 0.0f ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct SelectShape {
  std::int64_t rows = 0, cols = 0, capacity = 0;
  Grid norms;
  bool by_count = false;
  std::int64_t keep = 0;    // by count: the number of blocks
  std::uint32_t above = 0;  // otherwise: blocks with larger keys
  IndexSink offsets, indices, count;
};

/// The result of a selection by count: keys above `key`, and the first `ties` keys equal to it.
struct SelectCut {
  std::uint32_t key = 0;
  std::int64_t ties = 0;
};

/// Scratch of select_blocks on a GPU.
struct SelectScratch {
  static constexpr std::int64_t kBins = 2048, kPasses = 3;
  std::uint64_t* bins = nullptr;                     // [passes, bins]
  SelectCut* cuts = nullptr;                         // [passes]: state after each pass
  std::uint32_t *larger = nullptr, *ties = nullptr;  // [rows]
};
inline SelectScratch carve_select_scratch(core::Carver& carver, std::int64_t rows) {
  SelectScratch scratch;
  scratch.bins = carver.add<std::uint64_t>(SelectScratch::kBins * SelectScratch::kPasses);
  scratch.cuts = carver.add<SelectCut>(SelectScratch::kPasses);
  scratch.larger = carver.add<std::uint32_t>(rows);
  scratch.ties = carver.add<std::uint32_t>(rows);
  return scratch;
}

/// Maps a score to a key in the same order; 0 for -inf and NaN, which are never selected.
TESSERA_HD constexpr std::uint32_t score_key(float x) {
  constexpr std::uint32_t kLowest = 0x007fffffu;  // of -inf
  const std::uint32_t key = norm_key(x);
  return x != x || key <= kLowest ? 0 : key;
}

/// Rows of a block mask to convert to lists of columns: nonzero blocks (u8), or the `keep` largest
/// scores.
struct MaskRows {
  DType dtype = DType::none;
  std::int64_t batch = 1, heads = 1, rows = 0, cols = 0, capacity = 0;
  const void* blocks = nullptr;
  ListStrides strides;
  const std::uint8_t* except = nullptr;  // optional: blocks set here are not listed
  ListStrides except_strides;
  std::int64_t keep = 0;
  IndexSink counts, indices;  // contiguous

  TESSERA_HD constexpr std::int64_t lines() const { return batch * heads * rows; }
  /// The element offset of a line; lines count the rows of all heads and batches.
  TESSERA_HD constexpr std::int64_t begin(const ListStrides& s, std::int64_t line) const {
    const std::int64_t set = line / rows;
    return s.at(set / heads, set % heads, line % rows);
  }
};

/// Lists by row of a block mask, to write by column.
struct MaskColumns {
  ListView stored;
  std::int64_t batch = 1, heads = 1, cols = 0, capacity = 0;
  IndexSink counts, rows, entries;  // contiguous; entries are optional

  TESSERA_HD constexpr std::int64_t sets() const { return batch * heads; }
};

inline IndexSink sink_of(const Tensor& t) {
  if (t.dtype == DType::i64) return {nullptr, static_cast<std::int64_t*>(t.data)};
  return {static_cast<std::int32_t*>(t.data), nullptr};
}

}  // namespace tessera::planning
