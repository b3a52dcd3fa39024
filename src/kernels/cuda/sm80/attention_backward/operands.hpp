#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/swizzle.hpp"
#include "src/kernels/cuda/sm80/attention_backward/plan.hpp"

// Which address a lane passes to ldmatrix for an operand of a product, and where it writes scores:
// index arithmetic, which host tests check.
namespace tessera::cuda::sm80::attention_backward {

/// An operand whose depth lies along the rows in shared memory. A warp has adjacent blocks of 16
/// rows, which are rows of the left matrix or columns of the right one.
template <class Rows>
struct AlongRows {
  static constexpr bool kTransposed = false;
  unsigned from;  // the address of the lane's part of the first 16 x 16 elements

  TESSERA_HD static constexpr AlongRows left(unsigned rows, int first, int lane) {
    return of(rows, first, LaneChunk::of_queries(lane));
  }
  TESSERA_HD static constexpr AlongRows right(unsigned rows, int first, int lane) {
    return of(rows, first, LaneChunk::of_keys(lane));
  }
  /// Block `block` at depth 16 * i.
  TESSERA_HD constexpr unsigned at(int block, int i) const {
    return Rows::to_right(from, 2 * i) + static_cast<unsigned>(block * 16 * Rows::kLineBytes);
  }

 private:
  TESSERA_HD static constexpr AlongRows of(unsigned rows, int first, const LaneChunk& chunk) {
    return {rows + static_cast<unsigned>(Rows::offset(first + chunk.row, chunk.chunk))};
  }
};

/// An operand whose depth lies across the rows. A warp has blocks of 16 columns of the rows, of
/// which every `kStride`th one is its own.
template <class Rows, int kStride = 1>
struct AcrossRows {
  static constexpr bool kTransposed = true;
  unsigned from;

  TESSERA_HD static constexpr AcrossRows left(unsigned rows, int first, int lane) {
    return of(rows, first, LaneChunk::of_keys(lane));
  }
  TESSERA_HD static constexpr AcrossRows right(unsigned rows, int first, int lane) {
    return of(rows, first, LaneChunk::of_values(lane));
  }
  TESSERA_HD constexpr unsigned at(int block, int i) const {
    return Rows::to_right(from, 2 * block * kStride) +
           static_cast<unsigned>(i * 16 * Rows::kLineBytes);
  }

 private:
  /// `first`: the first column.
  TESSERA_HD static constexpr AcrossRows of(unsigned rows, int first, const LaneChunk& chunk) {
    return {rows + static_cast<unsigned>(Rows::offset(chunk.row, first / 8 + chunk.chunk))};
  }
};

/// Where a lane writes two adjacent scores: accumulators `i` and i + 1 of block `block` of a warp's
/// rows.
template <class Rows>
struct ScorePlaces {
  unsigned from;

  TESSERA_HD static constexpr ScorePlaces of(unsigned rows, int first_row, int first_column,
                                             int lane) {
    return {rows + static_cast<unsigned>(Rows::offset(first_row + lane / 4, first_column / 8) +
                                         lane % 4 * 4)};
  }
  TESSERA_HD constexpr unsigned at(int block, int i) const {
    return (from ^ static_cast<unsigned>(i / 4 * Rows::kChunkBytes)) +
           static_cast<unsigned>((block * 16 + i / 2 % 2 * 8) * Rows::kLineBytes);
  }
};

}  // namespace tessera::cuda::sm80::attention_backward
