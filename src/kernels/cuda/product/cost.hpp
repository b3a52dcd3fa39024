#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <tessera/device.hpp>

#include "src/kernels/row.hpp"
#include "src/problem/shape.hpp"
#include "src/walk/arithmetic.hpp"

// What product families of the GPU have in common when they estimate their time.
namespace tessera::planning::product {

/// How much longer the steps of a Hopper row take on `device` than on the H100 or H200 that its
/// times (RowTimes) come from: by the tensor cores' rate or L2's, per SM. A rate of 0 is unknown.
inline double step_factor(const DeviceFacts& device) {
  constexpr double kTensorTflops = 970.0 / 132, kL2Tbs = 7.66 / 132;  // of one SM
  const double units = std::max(device.units, 1);
  const auto slower = [&](double measured, double rate) {
    return rate > 0 ? measured * units / rate : 0;
  };
  const double factor =
      std::max(slower(kTensorTflops, device.tensor_tflops), slower(kL2Tbs, device.l2_tbs));
  return factor > 0 ? factor : 1;
}

/// Seconds of a sparse product whose tiles' walks take `work`, including what remains of the
/// time to move its bytes (a share of .26 to .46 in fits to each family).
inline double with_memory(double work, double bytes, const DeviceFacts& device) {
  if (device.memory_tbs <= 0) return work;
  constexpr double kNotHidden = 0.35, kOfMemory = 0.9;
  const double memory = bytes / (device.memory_tbs * 1e12 * kOfMemory);
  return std::max(work + kNotHidden * memory, memory);
}

/// A product with one sparse side on tiles that walk the union of their lines' lists. Assumes
/// uniformly random blocks. The sparse side gives the rows of the product as computed; with groups
/// of rows b does, and a dense b has one block per group.
struct UnionWalk {
  /// Lines have 16, 32 or 64 rows; a group is 64 rows.
  static constexpr std::int64_t kGroup = 64;
  bool as_stored;  // otherwise lists are transposed first
  std::int64_t block_rows, block_depth;
  std::int64_t height, piece;  // of a line, of what a step holds of its block
  double rows, cols, depth, density;

  /// Blocks of no rows or columns have no walk: the caller excludes them.
  explicit UnionWalk(const MatmulShape& s) {
    const OperandShape& o = s.a.sparse ? s.a : s.b;
    as_stored = !o.sparse || (s.a.sparse ? !o.transposed : o.transposed);
    block_rows = !o.sparse ? s.n : as_stored ? o.block.rows : o.block.cols;
    block_depth = !o.sparse ? s.k : as_stored ? o.block.cols : o.block.rows;
    height = largest_part(block_rows);
    piece = largest_part(block_depth);
    rows = real(s.a.sparse ? s.m : s.n);
    cols = real(s.a.sparse ? s.n : s.m);
    depth = real(s.k);
    density = !o.sparse ? 1
                        : std::min(1.0, real(o.stored) * real(block_rows) * real(block_depth) /
                                            std::max(1.0, rows * depth));
  }
  /// The probability that some of `places` places for a block hold one.
  double any_of(double places) const { return 1 - std::pow(1 - density, places); }
  /// Steps of a tile: a step exists if any of the tile's lines has a block there.
  double steps(const Tile& tile) const {
    return depth / tile.k *
           any_of(std::max(1.0, real(tile.m) / real(block_rows)) *
                  std::max(1.0, real(tile.k) / real(block_depth)));
  }
  /// Pieces of a tile's groups: a group's piece exists if any of its lines has a block there.
  double pieces(const Tile& tile) const {
    return real(tile.m / kGroup) * (depth / real(piece)) *
           any_of(std::max(1.0, real(kGroup) / real(block_rows)));
  }
  double tiles(const Tile& tile, std::int64_t batch) const {
    return std::ceil(rows / tile.m) * std::ceil(cols / tile.n) *
           real(std::max<std::int64_t>(batch, 1));
  }

 private:
  static std::int64_t largest_part(std::int64_t length) {
    std::int64_t part = kGroup;
    while (part > 16 && length % part != 0) part /= 2;
    return part;
  }
};

/// Seconds to copy a dense operand to aligned rows first, by a kernel of its own that reads and
/// writes it. At all of the memory's rate, predictions of 231 x 12169 x 8235 and 5 x 7231 x 3968
/// lacked .2 us for each MB that is copied (H200).
inline double copy_seconds(const OperandShape& o, const DeviceFacts& device) {
  constexpr double kKernel = 3.5e-6, kOfMemory = 0.7;
  if (device.memory_tbs <= 0) return kKernel;
  const double elements =
      static_cast<double>(o.batch) * static_cast<double>(o.rows) * static_cast<double>(o.cols);
  return kKernel + 2.0 * size_of(o.dtype) * elements / (kOfMemory * device.memory_tbs * 1e12);
}

/// Seconds that a result takes whose rows do not begin at multiples of 16 bytes, as it is then
/// stored element by element: 9168 x 580 and 4608 x 1661 took 31 and 47 us longer on an H100.
/// Strides of the result are no part of a shape: its rows are taken to lie without padding.
inline double narrow_store_seconds(const MatmulShape& s, double units) {
  if (s.n * size_of(s.out) % 16 == 0) return 0;
  constexpr double kElement = 0.78e-9;                             // on one SM
  const bool rows = s.grouped && s.group_axis == GroupAxis::rows;  // m counts those of all groups
  const double results = rows ? 1 : static_cast<double>(s.batch);
  return kElement * results * static_cast<double>(s.m) * static_cast<double>(s.n) / units;
}

}  // namespace tessera::planning::product
