#pragma once

#include <cstdint>
#include <type_traits>

#include <cute/arch/mma_sm80.hpp>

#include "src/cuda/sm90/attention/notes.cuh"
#include "src/cuda/sm90/attention/traits.cuh"

// The scores of a step once more, by one warp, where its weights were too large: the scores are
// gone by then, and the keys may have left shared memory. Rare, so it is short rather than fast.
namespace tessera::cuda::sm90::attention {

/// Multiplies 16 rows by 8 keys, 16 deep. Its fragments are a part of wgmma's.
template <class Element>
using WarpMma =
    std::conditional_t<std::is_same_v<Element, __nv_bfloat16>, cute::SM80_16x8x16_F32BF16BF16F32_TN,
                       cute::SM80_16x8x16_F32F16F16F32_TN>;

/// Two neighbouring elements of a tile's rows.
template <class Rows>
__device__ __forceinline__ std::uint32_t pair_of(Rows& rows, int row, int column) {
  const int chunk = column % tile::kLine / 8 ^ row % 8;
  return *reinterpret_cast<const std::uint32_t*>(rows.panel(column / tile::kLine, row) + chunk * 8 +
                                                 column % 8);
}

/// Of the tile's rows from `first_row` on; keys that do not exist give zero.
template <class T>
__device__ __forceinline__ void score_again(float (&score)[T::kN / 2], const Arguments& args,
                                            typename T::Queries& queries, int first_row,
                                            const TileNote& note, const typename T::Step& step,
                                            int lane) {
  using Element = typename T::Element;
  const KeyTensor& keys = args.keys;
  const auto* of_head = static_cast<const Element*>(keys.data) + note.kv_head * keys.head +
                        (args.walk.sequences.kv_offsets.values ? 0 : note.batch) * keys.batch;
  const int row = first_row + lane / 4;
#pragma unroll
  for (float& value : score) value = 0.0f;
#pragma unroll 1
  for (int step_depth = 0; step_depth < T::kDim; step_depth += 16) {
    const int depth = step_depth + lane % 4 * 2;
    const std::uint32_t a[4] = {pair_of(queries, row, depth), pair_of(queries, row + 8, depth),
                                pair_of(queries, row, depth + 8),
                                pair_of(queries, row + 8, depth + 8)};
#pragma unroll
    for (int group = 0; group < T::kN / 8; ++group) {
      const int key = note.kv_begin + step.key[group / 8] + group % 8 * 8 + lane / 4;
      const Element* from = of_head + key * keys.row + depth;
      std::uint32_t b[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (key < keys.rows && depth + i * 8 < keys.dim)
          b[i] = __ldg(reinterpret_cast<const unsigned*>(from + i * 8));
      float* sum = score + group * 4;
      WarpMma<Element>::fma(sum[0], sum[1], sum[2], sum[3], a[0], a[1], a[2], a[3], b[0], b[1],
                            sum[0], sum[1], sum[2], sum[3]);
      asm volatile("" ::: "memory");  // else all loads come first: too many registers
    }
  }
}

}  // namespace tessera::cuda::sm90::attention
