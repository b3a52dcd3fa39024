#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/mma.cuh"
#include "src/kernels/cuda/sm80/product/shape.cuh"

// Multiplies a step: a warp's columns by those pieces of its rows that are stored.
namespace tessera::cuda::sm80::product {

/// A warp's accumulators, and where it reads a step from.
template <class T>
class WarpTile {
 public:
  using Grid = typename T::Grid;
  static constexpr int kQuarters = Grid::kRows / 16, kPairs = Grid::kColumns / 16;
  static constexpr int kOfQuarter = Grid::kColumns / 2;  // accumulators

  __device__ __forceinline__ WarpTile(std::uint32_t stages, const Grid& grid, int lane)
      : dense_(stages + T::Dense::from(grid.first_column, lane)),
        pieces_(stages + T::Dense::Rows::kBytes + T::Pieces::from(grid.first_row, lane)) {}

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) sum[i] = 0.0f;
  }

  /// Multiplies kCount quarters from `kFirst` on by all of the step's depth. `between(u)` is called
  /// before the MMAs of each unit.
  template <int kFirst, int kCount, class Between>
  __device__ __forceinline__ void multiply_deep(int stage, const Between& between) {
    // Operands are loaded ahead of the MMAs before theirs. Right ones of the next unit take the
    // place of this one's during its last quarter, where enough MMAs lie between, or have registers
    // of their own.
    constexpr bool kInPlace = kPairs > 2;
    std::uint32_t left[2][4], right[kInPlace ? 1 : 2][kPairs * 4];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) load_right(right[0], stage, 0, pair);
    load_left(left[0], stage, kFirst, 0);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      between(unit);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int place = unit * kCount + i, ahead = place + 1;
        if (ahead < kUnits * kCount)
          load_left(left[ahead % 2], stage, kFirst + ahead % kCount, ahead / kCount);
        auto& now = right[kInPlace ? 0 : unit % 2];
        auto& next = right[kInPlace ? 0 : (unit + 1) % 2];
        const bool loads = unit + 1 < kUnits && i == (kInPlace ? kCount - 1 : kCount / 2);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          if (loads && !kInPlace) load_right(next, stage, unit + 1, pair);
          multiply(kFirst + i, left[place % 2], now, pair);
          if (loads && kInPlace) load_right(next, stage, unit + 1, pair);
        }
      }
    }
  }

  /// Multiplies pieces of kCount quarters and a depth of kDeep units that `mask` says are stored.
  template <int kCount, int kDeep>
  __device__ __forceinline__ void multiply_pieces(int stage, std::uint32_t mask) {
    constexpr std::uint32_t kAnyQuarter = 0x11111111u;
#pragma unroll
    for (int unit = 0; unit < kUnits; unit += kDeep) {
      if ((mask & kAnyQuarter << unit) == 0) continue;
      std::uint32_t right[kDeep][kPairs * 4];
#pragma unroll
      for (int u = 0; u < kDeep; ++u)
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) load_right(right[u], stage, unit + u, pair);
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; quarter += kCount) {
        if ((mask >> (quarter * kUnits + unit) & 1) == 0) continue;
        std::uint32_t left[kDeep][kCount][4];
#pragma unroll
        for (int u = 0; u < kDeep; ++u)
#pragma unroll
          for (int q = 0; q < kCount; ++q) load_left(left[u][q], stage, quarter + q, unit + u);
#pragma unroll
        for (int u = 0; u < kDeep; ++u)
#pragma unroll
          for (int q = 0; q < kCount; ++q)
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair)
              multiply(quarter + q, left[u][q], right[u], pair);
      }
    }
  }

  float sum[T::kSums];  // quarter by quarter

 private:
  static constexpr int kStageBytes = sizeof(typename T::Stage);

  __device__ __forceinline__ void load_right(std::uint32_t (&right)[kPairs * 4], int stage,
                                             int unit, int pair) const {
    const std::uint32_t at = T::Dense::at(dense_ + stage * kStageBytes, unit, pair);
    if constexpr (T::kDenseDeep) {
      load_left_operand(at, right + pair * 4);
    } else {
      load_transposed(at, right + pair * 4);
    }
  }
  __device__ __forceinline__ void load_left(std::uint32_t (&left)[4], int stage, int quarter,
                                            int unit) const {
    const std::uint32_t at = T::Pieces::at(pieces_ + stage * kStageBytes, quarter, unit);
    if constexpr (T::kBlocksDeep) {
      load_left_operand(at, left);
    } else {
      load_transposed(at, left);
    }
  }
  /// 16 rows by 16 columns, a depth of 16.
  __device__ __forceinline__ void multiply(int quarter, const std::uint32_t (&left)[4],
                                           const std::uint32_t (&right)[kPairs * 4], int pair) {
#pragma unroll
    for (int eight = pair * 2; eight < pair * 2 + 2; ++eight)
      mma<typename T::Element>(reinterpret_cast<float(&)[4]>(sum[quarter * kOfQuarter + eight * 4]),
                               left, right[eight * 2], right[eight * 2 + 1]);
  }

  std::uint32_t dense_, pieces_;  // shared addresses in stage 0
};

}  // namespace tessera::cuda::sm80::product
