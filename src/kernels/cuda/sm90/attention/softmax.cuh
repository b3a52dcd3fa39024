#pragma once

#include <cmath>
#include <cstdint>

#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/product/activation.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The online softmax of one warpgroup's 64 rows: a thread holds parts of two rows, and the four
// lanes of a quad together hold them whole.
namespace tessera::cuda::sm90::attention {

using product::exp2_fast;

/// Reads 64 keys of an element mask, one bit each.
__device__ __forceinline__ std::uint64_t read_bits(const Arguments& args, std::int64_t place) {
  const std::uint8_t* from = args.bits + place;
  if (args.bits_aligned) return __ldg(reinterpret_cast<const unsigned long long*>(from));
  std::uint64_t bits = 0;
#pragma unroll 1
  for (int j = 0; j < 8; ++j, from += args.walk.bits_byte)
    bits = bits >> 8 | static_cast<std::uint64_t>(__ldg(from)) << 56;
  return bits;
}

/// Masks the scores of a thread's two rows, eight apart. Of each group of eight columns the thread
/// holds two.
template <class T>
__device__ __forceinline__ void mask_scores(float (&score)[T::kN / 2], const typename T::Step& step,
                                            const TileDescriptor& tile, const Arguments& args,
                                            int row, int first_column) {
  const int row_of_group = T::kOwnLists ? row % T::kRowGroupRows : row;
#pragma unroll
  for (int p = 0; p < T::kPieces; ++p) {
    std::uint64_t bits[2] = {kAllKeys, kAllKeys};
    if (step.bits[p] != kNoBits) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row_of_group + half * 8 >> args.walk.pack_shift;
        const std::int64_t word_row = args.walk.word_queries.quotient(query);
        bits[half] = read_bits(args, step.bits[p] + word_row * args.walk.bits_row);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = tile.first_query + (row + half * 8 >> args.walk.pack_shift);
      const std::uint64_t seen =
          bits[half] >> first_column & tile.sight.bits_of(query, step.key[p] + first_column);
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if ((seen >> (j / 2 * 8 + j % 2) & 1) == 0)
          score[(p * 8 + j / 2) * 4 + half * 2 + j % 2] = -INFINITY;
    }
  }
}

__device__ __forceinline__ float tanh_near_zero(float x) {
  const float square = x * x;
  float series = fmaf(square, -1382.0f / 155925.0f, 62.0f / 2835.0f);
  series = fmaf(fmaf(series, square, -17.0f / 315.0f), square, 2.0f / 15.0f);
  series = fmaf(series, square, -1.0f / 3.0f);
  return fmaf(x * square, series, x);
}

/// The largest absolute value, NaN excepted.
template <int kCount>
__device__ __forceinline__ float largest_of(const float (&score)[kCount]) {
  float part[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) part[i % 4] = fmaxf(part[i % 4], fabsf(score[i]));
  return fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
}

/// cap * tanh(x * scale / cap), or x * scale without a cap.
template <int kCount>
__device__ __forceinline__ void transform_scores(float (&score)[kCount],
                                                 const ScoreTransform& transform) {
  if (transform.cap == 0.0f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) score[i] *= transform.scale;
    return;
  }
  const float largest = largest_of(score);
  // Near zero, where most scores are, 1 - 2 / (e^2x + 1) would leave few digits.
  if (tile::agreed(!(largest <= transform.near))) {
    constexpr float kSmall = 0.4f;
    const float inner = transform.scale / transform.cap;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = score[i] * inner;
      const float far = 1.0f - __fdividef(2.0f, exp2_fast(x * 2.885390082f) + 1.0f);
      score[i] = transform.cap * (fabsf(x) <= kSmall ? tanh_near_zero(x) : far);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float square = score[i] * score[i];
      score[i] *=
          fmaf(fmaf(square, transform.series[2], transform.series[1]), square, transform.series[0]);
    }
  }
}

struct Softmax {
  // P is 2^(score * scale - row_max). `row_max` comes from the first scores that the row sees, and
  // moves only when P would get much larger than one.
  static constexpr float kNoRowMax = -3.4e38f;      // before the first key: hidden scores get P = 0
  static constexpr float kRescaleThreshold = 8.0f;  // as an exponent of two
  float row_max[2] = {kNoRowMax, kNoRowMax};
  float row_sum[2] = {0.0f, 0.0f};  // of this thread's columns alone

  __device__ __forceinline__ bool seen(int half) const { return row_max[half] != kNoRowMax; }

  /// The first scores of a row become P, and their maxima the row maxes.
  template <int kCount>
  __device__ __forceinline__ void start(float (&score)[kCount], const Exponents& exponents) {
    float total[2];
    set_row_maxes(score, exponents);
    compute_p(score, exponents, total);
    add(total);
  }

  /// Scores become P. The row maxes are raised where P would exceed 2^kRescaleThreshold, which is
  /// rare after the first scores. `rescale` then gets the factor for the O accumulator: for a whole
  /// warp, before any exponential.
  template <int kCount>
  __device__ __forceinline__ void update_by_max(float (&score)[kCount], const Exponents& exponents,
                                                const auto& rescale) {
    float top[2], total[2];
    find_max_bounds(score, top);
    if (exceeds(top, exponents)) {
      find_maxes(score, top);
      if (exceeds(top, exponents)) raise_row_maxes(top, exponents, rescale);
    }
    compute_p(score, exponents, total);
    add(total);
  }

  /// Whether scores of at most `exponent`, as exponents of two, leave the row maxes as they are.
  __device__ __forceinline__ bool fits(float exponent) const {
    return exponent <= fminf(row_max[0], row_max[1]) + kRescaleThreshold;
  }

  /// Scores that fit become P, by a series in their squares that yields exponents of two.
  template <int kCount>
  __device__ __forceinline__ void update_by_series(float (&score)[kCount],
                                                   const float (&series)[3]) {
    float total[2];
    compute_p(score, total, [&](float x, float row_max) {
      const float square = x * x;
      return fmaf(x, fmaf(fmaf(square, series[2], series[1]), square, series[0]), -row_max);
    });
    add(total);
  }

  /// The same without a check of the maxima, for rows that all have a row max: the step's row sums,
  /// needed anyway, tell if P became too large. Then the row maxes are raised and P is rescaled;
  /// where some of P is not finite, `again` recomputes the scores for another try. The vote also
  /// keeps waits behind it from moving up.
  template <int kCount>
  __device__ __forceinline__ void update_by_row_sum(float (&score)[kCount],
                                                    const Exponents& exponents, const auto& rescale,
                                                    const auto& again) {
    float total[2];
    compute_p(score, exponents, total);
    if (tile::agreed(is_too_large(0, total) | is_too_large(1, total))) {
      if (tile::agreed(!isfinite(total[0]) | !isfinite(total[1]))) {
        again([&](const auto& rescale_later) {
          float top[2];
          find_maxes(score, top);
          raise_row_maxes(top, exponents, rescale_later);
          compute_p(score, exponents, total);
        });
      } else {
        rescale_p(score, total, rescale);
      }
    }
    add(total);
  }

  /// Sets the row maxes of rows without one. There is nothing to rescale.
  template <int kCount>
  __device__ __forceinline__ void set_row_maxes(const float (&score)[kCount],
                                                const Exponents& exponents) {
    float top[2];
    find_maxes(score, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = max_of_quad(top[half]);
      if (!seen(half) & top[half] > -INFINITY) row_max[half] = row_max_for(top[half], exponents);
    }
  }

  /// Merges a row's state with that of other keys, whose row max is -inf if they were not seen.
  /// Returns the factors for the two O accumulators.
  __device__ __forceinline__ float2 merge(int half, float other_max, float other_sum) {
    const float mine = seen(half) ? row_max[half] : -INFINITY;
    const float joint = fmaxf(mine, other_max);
    if (joint == -INFINITY) {  // no key, or only NaN
      row_sum[half] += other_sum;
      return {0.0f, 0.0f};
    }
    const float2 factor{exp2_fast(mine - joint), exp2_fast(other_max - joint)};
    row_max[half] = joint;
    row_sum[half] = __fmul_rn(factor.x, row_sum[half]) + __fmul_rn(factor.y, other_sum);
    return factor;
  }

 private:
  /// Each warp scheduler has one warp here, so independent chains hide latency: both rows, and
  /// several maxima and sums per row.
  static constexpr int kChains = 4;

  /// The largest of this thread's scores of each row.
  template <int kCount>
  __device__ __forceinline__ void find_maxes(const float (&score)[kCount], float (&top)[2]) const {
    constexpr int kGroups = kCount / 4;
    static_assert(kGroups % kChains == 0);
    float part[2][kChains];
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float larger = fmaxf(score[j * 4 + 2 * half], score[j * 4 + 2 * half + 1]);
        float& mine = part[half][j % kChains];
        mine = j < kChains ? larger : fmaxf(mine, larger);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      top[half] = fmaxf(fmaxf(part[half][0], part[half][1]), fmaxf(part[half][2], part[half][3]));
  }

  /// The same, or zero if all are negative. Non-negative floats compare like integers, and one
  /// instruction compares three of these.
  template <int kCount>
  __device__ __forceinline__ void find_max_bounds(const float (&score)[kCount],
                                                  float (&bound)[2]) const {
    int part[2][kChains] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int& mine = part[half][j % kChains];
        mine = __vimax3_s32(mine, __float_as_int(score[j * 4 + 2 * half]),
                            __float_as_int(score[j * 4 + 2 * half + 1]));
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      bound[half] = __int_as_float(
          max(__vimax3_s32(part[half][0], part[half][1], part[half][2]), part[half][3]));
  }

  /// Whether P would be too large.
  __device__ __forceinline__ bool exceeds(const float (&top)[2], const Exponents& exponents) const {
    return tile::agreed(top[0] * exponents.scale > row_max[0] + kRescaleThreshold |
                        top[1] * exponents.scale > row_max[1] + kRescaleThreshold);
  }

  /// The row max for a row's largest score, chosen so that this score's P is 7/8, exact in 16 bits.
  /// Where nearly all scores of a row are equal, others are slightly above the first: just above
  /// one, their P would all be rounded the same way, by up to twice as much as just below one.
  /// Under a cap that saturates, most scores are at the cap, whatever the first is. So P at the cap
  /// is exact too, with four bits, and the first score's P is what this leaves below 15/16.
  __device__ __forceinline__ static float row_max_for(float top, const Exponents& exponents) {
    constexpr float kAbove = 0.19264507794f, kFar = 120.0f;  // two to that is finite
    const float exponent = top * exponents.scale;
    const float below = exponents.ceiling - exponent;
    if (exponents.ceiling == INFINITY || !(below < kFar)) return exponent + kAbove;
    const int p_at_ceiling = __float_as_int(0.9375f * exp2_fast(below)) & ~0 << 20;
    return exponents.ceiling - __log2f(__int_as_float(p_at_ceiling));
  }

  __device__ __forceinline__ static float max_of_quad(float top) {
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    return fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  }

  __device__ __forceinline__ void raise_row_maxes(const float (&top)[2], const Exponents& exponents,
                                                  const auto& rescale) {
    float rescale_factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rescale_factor[half] = raise(half, row_max_for(max_of_quad(top[half]), exponents));
    rescale(rescale_factor);
  }

  template <int kCount>
  __device__ __forceinline__ void compute_p(float (&score)[kCount], const Exponents& exponents,
                                            float (&total)[2]) {
    compute_p(score, total,
              [&](float x, float row_max) { return fmaf(x, exponents.scale, -row_max); });
  }

  /// P is two to the power of what `exponent` makes of a score and its row max.
  template <int kCount>
  __device__ __forceinline__ void compute_p(float (&score)[kCount], float (&total)[2],
                                            const auto& exponent) {
    float part[2][kChains] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& left = score[j * 4 + 2 * half];
        float& right = score[j * 4 + 2 * half + 1];
        left = exp2_fast(exponent(left, row_max[half]));
        right = exp2_fast(exponent(right, row_max[half]));
        part[half][j % kChains] += left + right;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      total[half] = (part[half][0] + part[half][1]) + (part[half][2] + part[half][3]);
  }

  /// Raises the row maxes by integers until no P is above two: nothing is rounded.
  template <int kCount>
  __device__ __forceinline__ void rescale_p(float (&p)[kCount], float (&total)[2],
                                            const auto& rescale) {
    float top[2], rescale_factor[2];
    find_maxes(p, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int exponent = min(max((__float_as_int(max_of_quad(top[half])) >> 23) - 127, 0), 126);
      rescale_factor[half] = __int_as_float((127 - exponent) << 23);
      row_max[half] += static_cast<float>(exponent);
      row_sum[half] *= rescale_factor[half];
      total[half] *= rescale_factor[half];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) p[i] *= rescale_factor[i / 2 % 2];
    rescale(rescale_factor);
  }

  /// P has to fit into f16, and V times P into f32. A sum that is NaN stays NaN.
  __device__ __forceinline__ bool is_too_large(int half, const float (&total)[2]) const {
    constexpr float kMax = 0x1p14f;
    return !(total[half] <= kMax) & row_sum[half] == row_sum[half];
  }

  __device__ __forceinline__ void add(const float (&total)[2]) {
    row_sum[0] += total[0];
    row_sum[1] += total[1];
  }

  /// Raises a row's max to `to`, if that is higher, and returns the rescale factor.
  __device__ __forceinline__ float raise(int half, float to) {
    if (!(to > row_max[half])) return 1.0f;
    const float rescale_factor = seen(half) ? exp2_fast(row_max[half] - to) : 1.0f;
    row_max[half] = to;
    row_sum[half] *= rescale_factor;
    return rescale_factor;
  }
};

}  // namespace tessera::cuda::sm90::attention
