#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/sddmm/share.cuh"

// The epilogue, from accumulators to stored blocks: values = alpha * sum + beta * values.
namespace tessera::cuda::sm90::sddmm {

/// The values tensor: one matrix per stored block; strides in elements.
struct Values {
  void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t batch = 0, block = 0, row = 0, col = 0;
  int cols = 0;  // columns of a block
  int piece_shift = 0;
  float alpha = 1, beta = 0;
  bool wide = false;  // beta is 0, and rows of a block support 16-byte stores

  /// The index of the element at row `r` of the pass and column `column` of the stage.
  __device__ std::int64_t at(const GatherDescriptor& gather, int r, int column) const {
    const Pass& pass = gather.pass;
    const int piece = gather.piece[column >> piece_shift];
    const int inside = pass.col_inside + (piece << piece_shift) + column % (1 << piece_shift);
    const int ahead = inside / cols;
    return pass.batch * batch + (std::int64_t{pass.position} + ahead) * block +
           (pass.row_inside + r) * row + (inside - ahead * cols) * col;
  }
  __device__ std::uint32_t rounded(float low, float high) const {
    return pack(dtype, alpha * low, alpha * high);
  }
  __device__ void store_eight(std::int64_t element, const std::uint32_t (&pair)[4]) const {
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(data) + element) = {pair[0], pair[1],
                                                                              pair[2], pair[3]};
  }
};

/// Stores accumulators whose rows are rows of the pass: 64 x 2 * kSums, from (row, column) on.
template <int kSums>
__device__ __forceinline__ void store_direct(const Values& values, const GatherDescriptor& gather,
                                             const float (&sum)[kSums], int row, int column,
                                             int thread) {
  const Fragment fragment(thread);
  const int quad = fragment.lane % 4;
#pragma unroll
  for (int set = 0; set < kSums / 16; ++set) {
    const int at = column + (set * 4 + quad) * 8;
    const bool inside = at < gather.pass.columns;
    const std::int64_t element = inside ? values.at(gather, row + fragment.row(0), at) : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t pair[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const int i = (set * 4 + g) * 4 + half * 2;
        pair[g] = values.rounded(sum[i], sum[i + 1]);
      }
      transpose_in_quad(pair, quad);
      if (inside) values.store_eight(element + half * 8 * values.row, pair);
    }
  }
}

/// Stores accumulators whose rows are gathered columns: 64 x 2 * kSums, from `column` on. 8 x 8
/// blocks are transposed within the warp, then eight columns of a row are stored together.
template <int kSums>
__device__ __forceinline__ void store_transposed(const Values& values,
                                                 const GatherDescriptor& gather,
                                                 const float (&sum)[kSums], int column,
                                                 int thread) {
  const Fragment fragment(thread);
  const int quad = fragment.lane % 4;
  const int at = column + fragment.warp * 16 + quad % 2 * 8;
  const bool inside = at < gather.pass.columns;
  const std::int64_t first = inside ? values.at(gather, quad / 2 * 8 + fragment.lane / 4, at) : 0;
#pragma unroll
  for (int set = 0; set < kSums / 8; ++set) {
    std::uint32_t pair[4];  // (group, half) in order
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int s = (set * 2 + i / 2) * 4 + i % 2 * 2;
      pair[i] = product::transpose(values.rounded(sum[s], sum[s + 1]));
    }
    transpose_in_quad(pair, quad);
    if (inside) values.store_eight(first + set * 16 * values.row, pair);
  }
}

/// One round of store_any, for one dtype. All elements are read before any is written.
template <class T, int kCount>
__device__ __forceinline__ void store_elements(const Values& values, const float (&sum)[kCount],
                                               const std::int64_t (&element)[kCount],
                                               const bool (&inside)[kCount]) {
  T* data = static_cast<T*>(values.data);
  float before[kCount] = {};
  if (values.beta != 0.0f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (inside[i]) before[i] = values.beta * to_float(data[element[i]]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (inside[i]) data[element[i]] = from_float<T>(values.alpha * sum[i] + before[i]);
}

/// Stores with any dtype, strides and beta, one element at a time. Not unrolled, to keep the code
/// small: each round uses the same registers, into which the other accumulators move.
template <bool kTransposed, int kSums>
__device__ __forceinline__ void store_any(const Values& values, const GatherDescriptor& gather,
                                          float (&sum)[kSums], int row, int column, int thread) {
  const Fragment fragment(thread);
  constexpr int kRound = kSums < 16 ? kSums : 16;  // accumulators per round
  // Element offsets from a fragment's first accumulator to its lower half, and to the adjacent one.
  const std::int64_t lower = 8 * (kTransposed ? values.col : values.row);
  const std::int64_t neighbour = kTransposed ? values.row : values.col;
#pragma unroll 1
  for (int round = 0; round < kSums / kRound; ++round) {
    float now[kRound];
    std::int64_t element[kRound];
    bool inside[kRound];
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      now[i] = sum[i];
      if (i % 4 == 0) {
        const int down = fragment.row(0), across = fragment.col((round * kRound + i) / 4);
        const int c = column + (kTransposed ? down : across);
        inside[i] = c < gather.pass.columns;
        element[i] = inside[i] ? values.at(gather, row + (kTransposed ? across : down), c) : 0;
      } else {
        inside[i] = inside[i / 4 * 4];
        element[i] = element[i / 4 * 4] + i / 2 % 2 * lower + i % 2 * neighbour;
      }
    }
    if (values.dtype == DType::f32) {
      store_elements<float>(values, now, element, inside);
    } else if (values.dtype == DType::bf16) {
      store_elements<__nv_bfloat16>(values, now, element, inside);
    } else {
      store_elements<__half>(values, now, element, inside);
    }
#pragma unroll
    for (int j = 0; j + kRound < kSums; ++j) sum[j] = sum[j + kRound];
  }
}

}  // namespace tessera::cuda::sm90::sddmm
