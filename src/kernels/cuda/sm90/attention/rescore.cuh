#pragma once

#include <cstdint>

#include <cute/arch/mma_sm80.hpp>

#include "src/kernels/cuda/sm90/attention/traits.cuh"

// Recomputes the scores of one step with mma.sync, per warp, where P was not finite: by then P has
// overwritten the scores. Rare, so the code is short rather than fast.
namespace tessera::cuda::sm90::attention {

/// mma.sync of 16 rows x 8 keys x 16 of depth. Its accumulator fragment is a part of wgmma's.
template <class Element>
struct WarpMma {
  static_assert(sizeof(Element) == 0, "no mma.sync of 16 x 8 for this element type");
};
template <>
struct WarpMma<__half> : cute::SM80_16x8x16_F32F16F16F32_TN {};
template <>
struct WarpMma<__nv_bfloat16> : cute::SM80_16x8x16_F32BF16BF16F32_TN {};

/// A lane's two elements of an 8 x 8 operand fragment that begins at (`row`, `column`).
template <class Rows>
__device__ __forceinline__ std::uint32_t pair_of(Rows& rows, int row, int column, int lane) {
  return reinterpret_cast<const std::uint32_t*>(rows.chunk(row + lane / 4, column))[lane % 4];
}

/// score = Q K^T for 16 rows of Q, from `row` on, and all keys of a stage.
template <class T>
__device__ __forceinline__ void score_again(float (&score)[T::kN / 2], typename T::Queries& queries,
                                            int row, typename T::Keys& keys, int lane) {
#pragma unroll
  for (float& value : score) value = 0.0f;
#pragma unroll 1
  for (int depth = 0; depth < T::kDim; depth += 16) {
    const std::uint32_t a[4] = {
        pair_of(queries, row, depth, lane), pair_of(queries, row + 8, depth, lane),
        pair_of(queries, row, depth + 8, lane), pair_of(queries, row + 8, depth + 8, lane)};
#pragma unroll
    for (int group = 0; group < T::kN / 8; ++group) {
      float* acc = score + group * 4;
      WarpMma<typename T::Element>::fma(acc[0], acc[1], acc[2], acc[3], a[0], a[1], a[2], a[3],
                                        pair_of(keys, group * 8, depth, lane),
                                        pair_of(keys, group * 8, depth + 8, lane), acc[0], acc[1],
                                        acc[2], acc[3]);
    }
  }
}

}  // namespace tessera::cuda::sm90::attention
