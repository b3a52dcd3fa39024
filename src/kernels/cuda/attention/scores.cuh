#pragma once

#include <cmath>

#include "src/kernels/cuda/attention/softmax.cuh"

// Score transforms before the softmax.
namespace tessera::cuda::attention {

/// A score transform before the softmax: a softcap, or a scale of zero or less. For |x| up to
/// `near`, cap * tanh(x * scale / cap) is x times a polynomial in x * x (`series`).
struct ScoreTransform {
  float scale, cap, near, series[3];
  float slope_log2, series_log2[3];  // the same as exponents of two; each is below slope_log2 * |x|
};

inline ScoreTransform score_transform(float scale, float cap) {
  ScoreTransform transform{scale, cap, -1.0f, {}, 0.0f, {}};
  if (cap == 0.0f) return transform;
  const double inner = static_cast<double>(scale) / cap, square = inner * inner;
  // tanh(x) / x as a polynomial in x * x, accurate to 1.1e-7 up to 0.2, interpolated at Chebyshev
  // points.
  constexpr double kTerms[3] = {0.999999894639969, -0.33328587864406634, 0.13015331075783582};
  double power = scale;
  for (int i = 0; i < 3; ++i, power *= square)
    transform.series[i] = static_cast<float>(kTerms[i] * power);
  if (std::isfinite(transform.series[2]) && inner != 0)
    transform.near = static_cast<float>(0.2 / std::abs(inner));
  constexpr float kLog2e = 1.4426950408889634f;
  transform.slope_log2 = std::abs(scale) * kLog2e;
  for (int i = 0; i < 3; ++i) transform.series_log2[i] = transform.series[i] * kLog2e;
  return transform;
}

__device__ __forceinline__ float tanh_near_zero(float x) {
  const float square = x * x;
  float series = fmaf(square, -1382.0f / 155925.0f, 62.0f / 2835.0f);
  series = fmaf(fmaf(series, square, -17.0f / 315.0f), square, 2.0f / 15.0f);
  series = fmaf(series, square, -1.0f / 3.0f);
  return fmaf(x * square, series, x);
}

/// tanh(x); near zero 1 - 2 / (e^2x + 1) would cancel.
__device__ __forceinline__ float tanh_of(float x) {
  constexpr float kSmall = 0.4f;
  const float far = 1.0f - __fdividef(2.0f, exp2_fast(x * 2.885390082f) + 1.0f);
  return fabsf(x) <= kSmall ? tanh_near_zero(x) : far;
}

/// The largest absolute value; NaN is ignored.
template <int kCount>
__device__ __forceinline__ float largest_of(const float (&score)[kCount]) {
  float part[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) part[i % 4] = fmaxf(part[i % 4], fabsf(score[i]));
  return fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
}

/// cap * tanh(x * scale / cap), or x * scale without a cap, for a batch-invariant result: what a
/// score becomes does not depend on the others, which may be those of hidden keys.
template <int kCount>
__device__ __forceinline__ void transform_each(float (&score)[kCount],
                                               const ScoreTransform& transform) {
  const float inner = transform.cap == 0.0f ? 0.0f : transform.scale / transform.cap;
#pragma unroll
  for (float& x : score) {
    if (transform.cap == 0.0f) {
      x *= transform.scale;
      continue;
    }
    const float square = x * x;
    const float near = x * fmaf(fmaf(square, transform.series[2], transform.series[1]), square,
                                transform.series[0]);
    x = fabsf(x) <= transform.near ? near : transform.cap * tanh_of(x * inner);
  }
}

/// The same, faster. Which approximation is chosen depends on the largest score of the warp.
template <int kCount>
__device__ __forceinline__ void transform_scores(float (&score)[kCount],
                                                 const ScoreTransform& transform) {
  if (transform.cap == 0.0f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) score[i] *= transform.scale;
    return;
  }
  const float largest = largest_of(score);
  // Near zero, where most scores lie, a polynomial does.
  if (agreed(!(largest <= transform.near))) {
    const float inner = transform.scale / transform.cap;
#pragma unroll
    for (int i = 0; i < kCount; ++i) score[i] = transform.cap * tanh_of(score[i] * inner);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float square = score[i] * score[i];
      score[i] *=
          fmaf(fmaf(square, transform.series[2], transform.series[1]), square, transform.series[0]);
    }
  }
}

}  // namespace tessera::cuda::attention
