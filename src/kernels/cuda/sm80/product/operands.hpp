#pragma once

#include <type_traits>

#include "src/kernels/cuda/common/swizzle.hpp"

// Where the operands of a step lie in shared memory, which thread copies which chunk, and which
// address a lane passes to ldmatrix: index arithmetic, which host tests check. An operand is "deep"
// if it is contiguous along the depth.
namespace tessera::cuda::sm80::product {

inline constexpr int kDepth = 64;  // of a step
inline constexpr int kUnits = kDepth / 16;

/// How the warps of a thread block divide a tile of kM x kN: kRowWarps of them above each other.
template <int kM, int kN, int kWarps, int kRowWarps>
struct WarpGrid {
  static constexpr int kRows = kM / kRowWarps, kColumns = kN / (kWarps / kRowWarps);
  static_assert(kRows % 16 == 0 && kColumns % 32 == 0);
  int first_row, first_column;  // of a warp

  TESSERA_HD static constexpr WarpGrid of(int warp) {
    constexpr int kAcross = kWarps / kRowWarps;
    return {warp / kAcross * kRows, warp % kAcross * kColumns};
  }
};

/// How threads share the chunks of an operand: a thread copies chunk `chunk` of rows `row`, `row` +
/// kDown, ...; adjacent threads copy adjacent chunks.
template <class Rows, int kThreads>
struct ChunkShare {
  static constexpr int kDown = kThreads / Rows::kChunks;
  static constexpr int kBytesDown = kDown * Rows::kLineBytes;  // to the next chunk of a thread
  static_assert(kThreads % Rows::kChunks == 0 && kDown % 8 == 0);
  int row, chunk;

  TESSERA_HD static constexpr ChunkShare of(int thread) {
    return {thread / Rows::kChunks, thread % Rows::kChunks};
  }
  TESSERA_HD constexpr unsigned offset() const {
    return static_cast<unsigned>(Rows::offset(row, chunk));
  }
};

/// The dense side of a step: kColumns columns of the product.
template <int kColumns, bool kDeep>
struct DenseSide {
  using Rows =
      std::conditional_t<kDeep, SwizzledRows<kColumns, kDepth>, SwizzledRows<kDepth, kColumns>>;

  /// The offset that a lane passes to `at`. `first`: the warp's first column.
  TESSERA_HD static constexpr unsigned from(int first, int lane) {
    const LaneChunk at = kDeep ? LaneChunk::of_keys(lane) : LaneChunk::of_values(lane);
    const int row = kDeep ? first : 0, chunk = kDeep ? 0 : first / 8;
    return static_cast<unsigned>(Rows::offset(row + at.row, chunk + at.chunk));
  }
  /// The address of the right operands of two MMAs: depth 16 * unit, the warp's columns from 16 *
  /// pair on. Not deep: ldmatrix transposes.
  TESSERA_HD static constexpr unsigned at(unsigned from, int unit, int pair) {
    const int right = kDeep ? unit : pair, down = kDeep ? pair : unit;
    return Rows::to_right(from, 2 * right) + static_cast<unsigned>(down * 16 * Rows::kLineBytes);
  }
};

/// The pieces of stored blocks of a step: kRows rows of the product, in quarters of 16.
template <int kRows, bool kDeep>
struct PieceSide {
  using Rows = std::conditional_t<kDeep, SwizzledRows<kRows, kDepth>, SwizzledRows<kDepth, kRows>>;

  /// The offset that a lane passes to `at`. `first`: the warp's first row.
  TESSERA_HD static constexpr unsigned from(int first, int lane) {
    const LaneChunk at = kDeep ? LaneChunk::of_queries(lane) : LaneChunk::of_keys(lane);
    const int row = kDeep ? first : 0, chunk = kDeep ? 0 : first / 8;
    return static_cast<unsigned>(Rows::offset(row + at.row, chunk + at.chunk));
  }
  /// The address of the left operand of an MMA: the warp's rows from 16 * quarter on, depth 16 *
  /// unit. Not deep: ldmatrix transposes.
  TESSERA_HD static constexpr unsigned at(unsigned from, int quarter, int unit) {
    const int right = kDeep ? unit : quarter, down = kDeep ? quarter : unit;
    return Rows::to_right(from, 2 * right) + static_cast<unsigned>(down * 16 * Rows::kLineBytes);
  }
};

}  // namespace tessera::cuda::sm80::product
