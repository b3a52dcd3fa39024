#pragma once

#include <tessera/matmul.hpp>

#include "src/kernels/cuda/common/math.cuh"

namespace tessera::cuda::product {

/// x * Phi(x), exact GELU. log2(erfc(z)) is nearly a parabola: a polynomial fitted on [0, 4] has an
/// error below 4e-6; beyond 4 it keeps falling, so the tail goes to zero.
__device__ __forceinline__ float gelu(float x) {
  const float z = 0.70710678f * fabsf(x);
  float p = -1.82893666e-6f;
  p = p * z + 7.61919182e-6f;
  p = p * z + 3.14566714e-4f;
  p = p * z - 4.68292832e-3f;
  p = p * z + 3.29843722e-2f;
  p = p * z - 1.51594058e-1f;
  p = p * z - 9.17432666e-1f;
  p = p * z - 1.62801456f;
  const float tail = exp2_fast(p * z);
  return 0.5f * x * (x < 0.0f ? tail : 2.0f - tail);
}

/// x / (1 + exp(-y)).
__device__ __forceinline__ float times_sigmoid(float x, float y) {
  return x * reciprocal(1.0f + exp2_fast(-1.44269504f * y));
}

/// Applies an activation to several values, with one branch for all of them.
template <int kCount>
__device__ __forceinline__ void activate(Activation activation, float (&x)[kCount]) {
  const auto each = [&](const auto& f) {
#pragma unroll
    for (float& value : x) value = f(value);
  };
  switch (activation) {
    case Activation::none:
      break;
    case Activation::relu:
      each([](float v) { return v < 0.0f ? 0.0f : v; });
      break;
    case Activation::gelu:
      each([](float v) { return gelu(v); });
      break;
    case Activation::gelu_tanh:
      // (1 + tanh(u)) / 2 is the sigmoid of 2 u.
      each([](float v) { return times_sigmoid(v, 1.5957691f * (v + 0.044715f * v * v * v)); });
      break;
    case Activation::silu:
      each([](float v) { return times_sigmoid(v, v); });
      break;
  }
}

}  // namespace tessera::cuda::product
