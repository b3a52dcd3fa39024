#pragma once

#include <cmath>
#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/math.cuh"

// The online softmax on MMA accumulators: a thread holds parts of two rows, eight apart; the four
// lanes of a quad together hold both rows.
namespace tessera::cuda::attention {

/// `scale` turns scores into exponents of two; none exceeds `ceiling`.
struct Exponents {
  static constexpr float kLift = 0.0f;
  float scale, ceiling = INFINITY;

  __device__ __forceinline__ float scale_of(int) const { return scale; }
};

/// The same with a scale for each of a thread's rows. P is 2^kLift times as large, for types of
/// little range.
struct RowExponents {
  static constexpr float kLift = 6.0f, ceiling = INFINITY;
  float scale[2];

  __device__ __forceinline__ float scale_of(int half) const { return scale[half]; }
};

struct Softmax {
  // P = 2^(score * scale - row_max). `row_max` is set by the first scores of the row, and moves
  // only when P would get much larger than one.
  static constexpr float kNoRowMax = -3.4e38f;      // before the first key; masked scores get P = 0
  static constexpr float kRescaleThreshold = 8.0f;  // exponent of two
  float row_max[2] = {kNoRowMax, kNoRowMax};
  float row_sum[2] = {0.0f, 0.0f};  // of this thread's columns

  __device__ __forceinline__ bool seen(int half) const { return row_max[half] != kNoRowMax; }

  /// First step: sets the row maxes and turns scores into P.
  template <int kCount>
  __device__ __forceinline__ void start(float (&score)[kCount], const Exponents& exponents) {
    float total[2];
    set_row_maxes(score, exponents);
    compute_p(score, exponents, total);
    add(total);
  }

  /// Later steps: turns scores into P. Raises the row maxes where P would exceed
  /// 2^kRescaleThreshold, which is rare after the first step; then calls `rescale` with the factors
  /// for the O accumulator, once for the whole warp, before any exponential.
  template <int kCount>
  __device__ __forceinline__ void update_by_max(float (&score)[kCount], const auto& exponents,
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

  /// Whether scores of at most `exponent`, as exponents of two, need no other row max.
  __device__ __forceinline__ bool fits(float exponent) const {
    return exponent <= fminf(row_max[0], row_max[1]) + kRescaleThreshold;
  }

  /// Turns scores for which fits() holds into P, by a polynomial in their squares that yields
  /// exponents of two.
  template <int kCount>
  __device__ __forceinline__ void update_by_series(float (&score)[kCount],
                                                   const float (&series)[3]) {
    float total[2];
    compute_by(score, total, [&](int, float x, float row_max) {
      const float square = x * x;
      return fmaf(x, fmaf(fmaf(square, series[2], series[1]), square, series[0]), -row_max);
    });
    add(total);
  }

  /// Later steps, for rows that all have a row max: like update_by_max, but checks the step's row
  /// sums, which are needed anyway, instead of the maxima. If a sum shows that P became too large,
  /// the row maxes are raised and P is rescaled; if some P is not finite, `again` recomputes the
  /// scores for a second try. The vote also keeps the compiler from hoisting later waits above it.
  template <int kCount>
  __device__ __forceinline__ void update_by_row_sum(float (&score)[kCount],
                                                    const Exponents& exponents, const auto& rescale,
                                                    const auto& again) {
    float total[2];
    compute_p(score, exponents, total);
    if (agreed(is_too_large(0, total) | is_too_large(1, total))) {
      if (agreed(!isfinite(total[0]) | !isfinite(total[1]))) {
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

  /// Sets the row maxes of rows that have none. Nothing has to be rescaled.
  template <int kCount>
  __device__ __forceinline__ void set_row_maxes(const float (&score)[kCount],
                                                const Exponents& exponents) {
    float top[2];
    find_maxes(score, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = quad_max(top[half]);
      if (!seen(half) & top[half] > -INFINITY)
        row_max[half] = row_max_for(half, top[half], exponents);
    }
  }

  /// Raises the row maxes to those of the scores, where these are higher; calls `rescale` like
  /// update_by_max.
  template <int kCount>
  __device__ __forceinline__ void raise_row_maxes_to(const float (&score)[kCount],
                                                     const auto& exponents, const auto& rescale) {
    float top[2];
    find_maxes(score, top);
    raise_row_maxes(top, exponents, rescale);
  }

  /// Raises the row maxes by integers, so that no row sum of the step's P (`total`, the same in all
  /// lanes of a quad) would have exceeded 2^kTarget; calls `rescale`. Rescaling by powers of two
  /// rounds nothing.
  template <int kTarget>
  __device__ __forceinline__ void raise_row_maxes_by(const float (&total)[2], const auto& rescale) {
    float rescale_factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int above = (__float_as_int(total[half]) >> 23) - 127 - (kTarget - 1);
      const int exponent = min(max(above, 0), 126);
      rescale_factor[half] = __int_as_float((127 - exponent) << 23);
      row_max[half] += static_cast<float>(exponent);
      row_sum[half] *= rescale_factor[half];
    }
    rescale(rescale_factor);
  }

  /// Turns scores into P with the row maxes as they are; `total`: sums of this thread's columns.
  template <int kCount>
  __device__ __forceinline__ void compute_p(float (&score)[kCount], const auto& exponents,
                                            float (&total)[2]) {
    compute_by(score, total, [&](int half, float x, float row_max) {
      return fmaf(x, exponents.scale_of(half), -row_max);
    });
  }

  /// The same without the sums, of scores `begin` to `end`.
  template <int kCount>
  __device__ __forceinline__ void compute_p(float (&score)[kCount], const auto& exponents,
                                            int begin = 0, int end = kCount) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i >= begin && i < end)
        score[i] = exp2_fast(fmaf(score[i], exponents.scale_of(i / 2 % 2), -row_max[i / 2 % 2]));
  }

  /// The sums of this thread's columns of P.
  template <int kCount>
  __device__ __forceinline__ static void sum_p(const float (&p)[kCount], float (&total)[2]) {
    float part[2][kChains] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        part[half][j % kChains] += p[j * 4 + 2 * half] + p[j * 4 + 2 * half + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      total[half] = (part[half][0] + part[half][1]) + (part[half][2] + part[half][3]);
  }

  /// Merges a row's softmax state with one over other keys (row max -inf: no key). Returns the
  /// factors for the two O accumulators.
  __device__ __forceinline__ float2 merge(int half, float other_max, float other_sum) {
    const float mine = seen(half) ? row_max[half] : -INFINITY;
    const float joint = fmaxf(mine, other_max);
    if (joint == -INFINITY) {  // no key seen, or only NaN
      row_sum[half] += other_sum;
      return {0.0f, 0.0f};
    }
    const float2 factor{exp2_fast(mine - joint), exp2_fast(other_max - joint)};
    row_max[half] = joint;
    row_sum[half] = __fmul_rn(factor.x, row_sum[half]) + __fmul_rn(factor.y, other_sum);
    return factor;
  }

 private:
  /// A warp scheduler has few consumer warps to choose from, so independent dependency chains hide
  /// latency: both rows, and several maxima and sums per row.
  static constexpr int kChains = 4;

  /// The maximum of this thread's scores of each row.
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

  /// An upper bound of the same: the maximum, or zero if all scores are negative. Non-negative
  /// floats compare like integers, and one instruction (vimax3) takes the maximum of three.
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

  /// Whether P would exceed 2^kRescaleThreshold.
  __device__ __forceinline__ bool exceeds(const float (&top)[2], const auto& exponents) const {
    return agreed(top[0] * exponents.scale_of(0) > row_max[0] + kRescaleThreshold |
                  top[1] * exponents.scale_of(1) > row_max[1] + kRescaleThreshold);
  }

  /// The row max for a row whose largest score is `top`: the P of that score becomes 7/8, exact in
  /// 16 bits. Reason: where nearly all scores of a row are equal, later ones lie slightly above the
  /// first, and a P just above one is rounded by up to twice as much as one just below, always in
  /// the same direction. Under a saturating cap most scores end at the cap, whatever the first one
  /// is; so P at the cap is made exact instead (four bits), and the P of `top` is at most 15/16.
  template <class OfExponents>
  __device__ __forceinline__ static float row_max_for(int half, float top,
                                                      const OfExponents& exponents) {
    constexpr float kAbove = 0.19264507794f - OfExponents::kLift, kFar = 120.0f;  // 2^120 is finite
    const float exponent = top * exponents.scale_of(half);
    const float below = exponents.ceiling - exponent;
    if (exponents.ceiling == INFINITY || !(below < kFar)) return exponent + kAbove;
    const int p_at_ceiling = __float_as_int(0.9375f * exp2_fast(below)) & ~0 << 20;
    return exponents.ceiling - __log2f(__int_as_float(p_at_ceiling)) - OfExponents::kLift;
  }

  __device__ __forceinline__ void raise_row_maxes(const float (&top)[2], const auto& exponents,
                                                  const auto& rescale) {
    float rescale_factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rescale_factor[half] = raise(half, row_max_for(half, quad_max(top[half]), exponents));
    rescale(rescale_factor);
  }

  /// P = 2^exponent(half, score, row_max); `total`: sums of this thread's columns.
  template <int kCount>
  __device__ __forceinline__ void compute_by(float (&score)[kCount], float (&total)[2],
                                             const auto& exponent) {
    float part[2][kChains] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& left = score[j * 4 + 2 * half];
        float& right = score[j * 4 + 2 * half + 1];
        left = exp2_fast(exponent(half, left, row_max[half]));
        right = exp2_fast(exponent(half, right, row_max[half]));
        part[half][j % kChains] += left + right;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      total[half] = (part[half][0] + part[half][1]) + (part[half][2] + part[half][3]);
  }

  /// Raises the row maxes by integers until no P exceeds two; rescaling by powers of two rounds
  /// nothing.
  template <int kCount>
  __device__ __forceinline__ void rescale_p(float (&p)[kCount], float (&total)[2],
                                            const auto& rescale) {
    float top[2], rescale_factor[2];
    find_maxes(p, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int exponent = min(max((__float_as_int(quad_max(top[half])) >> 23) - 127, 0), 126);
      rescale_factor[half] = __int_as_float((127 - exponent) << 23);
      row_max[half] += static_cast<float>(exponent);
      row_sum[half] *= rescale_factor[half];
      total[half] *= rescale_factor[half];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) p[i] *= rescale_factor[i / 2 % 2];
    rescale(rescale_factor);
  }

  /// P has to fit into f16, and P times V into f32. A sum that is NaN stays NaN.
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

/// FP8: `row_sum` adds up rounded P, and normalises out. LSE needs the sums of P before it is
/// rounded.
struct TwoSumSoftmax : Softmax {
  float exact_sum[2] = {0.0f, 0.0f};  // of this thread's columns

  /// The state of which the log-sum-exp is computed.
  __device__ __forceinline__ Softmax exact() const {
    Softmax of_exact = *this;
    of_exact.row_sum[0] = exact_sum[0], of_exact.row_sum[1] = exact_sum[1];
    return of_exact;
  }
};

}  // namespace tessera::cuda::attention
