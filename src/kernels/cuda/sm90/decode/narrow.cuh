#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/decode/traits.cuh"

// Keys and values in e4m3. They become f16 in registers, where f16 holds each exactly. Words that
// ldmatrix loads hold four of them, so the order of the depth, and of the result's columns, is
// another one than with 16-bit elements.
namespace tessera::cuda::sm90::decode {

/// The first of the two columns, among the 16 of an MMA, that a lane has in word pair `pair` of an
/// A operand of QK. Narrow keys: four columns of a lane are adjacent.
template <bool kNarrow>
__device__ __forceinline__ int column_of_operand(int pair, int lane) {
  return kNarrow ? lane % 4 * 4 + pair * 2 : pair * 8 + lane % 4 * 2;
}

/// The bytes of a word with columns 0 and 1 of two keys, column by column.
__device__ __forceinline__ std::uint32_t by_columns(std::uint32_t word) {
  return __byte_perm(word, 0, 0x3120);
}

/// A power of two by which a row of Q is multiplied so that f16 holds it, and its inverse. The
/// row's largest element, of magnitude `largest`, becomes at least 2^14, so that elements down to
/// 2^-28 of it keep all their bits.
struct RowFactor {
  float to_f16, of_scores;

  __device__ explicit RowFactor(float largest) {
    const int biased = __float_as_int(largest) >> 23;
    const bool usual = biased > 0 && biased < 255;  // not zero or tiny, nor infinite
    const int exponent = usual ? max(biased - 141, -126) : 0;
    to_f16 = __int_as_float((127 - exponent) << 23);
    of_scores = __int_as_float((127 + exponent) << 23);
  }
};

/// Multiplies scores by the factors of their rows, eight apart, and then of their keys.
template <int kCount>
__device__ __forceinline__ void scale_scores(float (&score)[kCount], const NarrowStep& step,
                                             const float (&of_rows)[2]) {
#pragma unroll
  for (int i = 0; i < NarrowStep::kCount; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      score[i * 4 + j] = score[i * 4 + j] * of_rows[j / 2] * step.k_factors[i];
}

/// What a warp knows of the factors of values; nothing if they have 16 bits.
template <bool kNarrow>
struct NarrowState {};

template <>
struct NarrowState<true> {
  // O is in units of this factor of values; 0: no values so far, or only such with factors of 0.
  float unit = 0.0f, largest_unit = 0.0f;

  /// Multiplies P, of at most 2^8, by the factors of values in units of O; `rescale(factor)`
  /// multiplies O. If all factors of a step are equal, their value is the unit, and P stays as it
  /// is. Else the unit is 2^-7 of the largest: f16 keeps the products up to 2^15 and many bits of
  /// small ones. It never falls so far below an earlier one that O could overflow.
  template <int kCount>
  __device__ __forceinline__ void weigh(float (&p)[kCount], const NarrowStep& step,
                                        const auto& rescale) {
    float largest = 0.0f;
#pragma unroll
    for (float factor : step.v_factors) largest = fmaxf(largest, fabsf(factor));
    bool equal = true;
#pragma unroll
    for (float factor : step.v_factors) equal &= factor == largest;
    if (agreed(largest > 0.0f)) {
      const float aim = agreed(equal) ? largest : largest * 0x1p-7f;
      const float wanted = fmaxf(aim, fmaxf(largest_unit * 0x1p-60f, 0x1p-120f));
      largest_unit = fmaxf(largest_unit, wanted);
      if (agreed(wanted != unit)) {
        rescale(unit / wanted);
        unit = wanted;
      }
    }
    if (agreed(equal && largest == unit)) return;
    const float inverse = unit > 0.0f ? 1 / unit : 1.0f;
#pragma unroll
    for (int i = 0; i < NarrowStep::kCount; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) p[i * 4 + j] *= step.v_factors[i] * inverse;
  }
};

/// Puts the columns of a chunk in order. Of each 16, a lane has four adjacent ones: the even ones
/// in one group of accumulators, the odd ones in the next. Afterwards it has two adjacent ones in
/// each group of eight.
template <int kColumns>
__device__ __forceinline__ void order_columns(OAccumulator<kColumns>& o_acc, int lane) {
  const int quad = lane / 4 * 4, mine = lane % 4;
#pragma unroll
  for (int first = 0; first < kColumns / 2; first += 8)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const even = &o_acc[first + half * 2];
      float* const odd = even + 4;
      const float from[4] = {even[0], odd[0], even[1], odd[1]};  // adjacent columns
      float to[4];
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        const int source = quad + group * 2 + mine / 2;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float low = __shfl_sync(kAllLanes, from[i], source);
          const float high = __shfl_sync(kAllLanes, from[2 + i], source);
          to[group * 2 + i] = mine % 2 == 0 ? low : high;
        }
      }
      even[0] = to[0], even[1] = to[1], odd[0] = to[2], odd[1] = to[3];
    }
}

}  // namespace tessera::cuda::sm90::decode
