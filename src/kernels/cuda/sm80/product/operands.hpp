#pragma once

#include <type_traits>

#include "src/kernels/cuda/common/swizzle.hpp"

// Where the operands of a step lie in shared memory, which thread copies which chunk, and which
// address a lane passes to ldmatrix: index arithmetic, which host tests check. An operand is "deep"
// if it is contiguous along the depth.
namespace tessera::cuda::sm80::product {

inline constexpr int kDepth = 64;        // of a step
inline constexpr int kWarpColumns = 32;  // of a warp, which computes all rows of a tile
inline constexpr int kUnits = kDepth / 16;

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

  /// The offset that a lane of a warp passes to `at`.
  TESSERA_HD static constexpr unsigned from(int warp, int lane) {
    const LaneChunk at = kDeep ? LaneChunk::of_keys(lane) : LaneChunk::of_values(lane);
    const int row = kDeep ? warp * kWarpColumns : 0, chunk = kDeep ? 0 : warp * kWarpColumns / 8;
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

  /// The offset that a lane passes to `at`.
  TESSERA_HD static constexpr unsigned from(int lane) {
    const LaneChunk at = kDeep ? LaneChunk::of_queries(lane) : LaneChunk::of_keys(lane);
    return static_cast<unsigned>(Rows::offset(at.row, at.chunk));
  }
  /// The address of the left operand of an MMA: rows 16 * quarter, depth 16 * unit. Not deep:
  /// ldmatrix transposes.
  TESSERA_HD static constexpr unsigned at(unsigned from, int quarter, int unit) {
    const int right = kDeep ? unit : quarter, down = kDeep ? quarter : unit;
    return Rows::to_right(from, 2 * right) + static_cast<unsigned>(down * 16 * Rows::kLineBytes);
  }
};

}  // namespace tessera::cuda::sm80::product
