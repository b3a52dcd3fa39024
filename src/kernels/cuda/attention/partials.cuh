#pragma once

#include <cmath>

#include "src/kernels/cuda/attention/softmax.cuh"

// Partial results of KV splits, and their merging.
namespace tessera::cuda::attention {

/// A thread's part of the unnormalised output: two rows, in the layout of MMA accumulators.
template <int kDimV>
using OAccumulator = float[kDimV / 2];

template <int kDimV>
__device__ __forceinline__ void clear(OAccumulator<kDimV>& o_acc) {
#pragma unroll
  for (float& value : o_acc) value = 0.0f;
}

/// The unnormalised output of some rows over a part of their keys, in the register layout of the
/// threads that computed it.
template <int kDimV, int kThreads>
struct PartialResult {
  float4 o_acc[kDimV / 8][kThreads];
  float4 softmax_state[kThreads];  // row max of both rows (-inf: no key), row sum of both
};

/// The same of FP8: with the row sums of P before it was rounded.
template <int kDimV, int kThreads>
struct TwoSumPartial : PartialResult<kDimV, kThreads> {
  float2 exact_sum[kThreads];
};

/// Writes a consumer's partial result. The caller synchronises with the reader.
template <int kDimV, int kThreads>
__device__ __forceinline__ void store_partial(PartialResult<kDimV, kThreads>& to,
                                              const OAccumulator<kDimV>& o_acc,
                                              const Softmax& softmax, int thread) {
#pragma unroll
  for (int i = 0; i < kDimV / 8; ++i)
    to.o_acc[i][thread] = {o_acc[i * 4], o_acc[i * 4 + 1], o_acc[i * 4 + 2], o_acc[i * 4 + 3]};
  float row_max[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    row_max[half] = softmax.seen(half) ? softmax.row_max[half] : -INFINITY;
  to.softmax_state[thread] = {row_max[0], row_max[1], softmax.row_sum[0], softmax.row_sum[1]};
}

template <int kDimV, int kThreads>
__device__ __forceinline__ void store_partial(TwoSumPartial<kDimV, kThreads>& to,
                                              const OAccumulator<kDimV>& o_acc,
                                              const TwoSumSoftmax& softmax, int thread) {
  PartialResult<kDimV, kThreads>& rounded = to;
  const Softmax& of_rounded = softmax;
  store_partial<kDimV>(rounded, o_acc, of_rounded, thread);
  to.exact_sum[thread] = {softmax.exact_sum[0], softmax.exact_sum[1]};
}

/// Adds another consumer's partial result: from shared memory (kSameCta), or from another CTA
/// through global memory, bypassing L1.
template <bool kSameCta, int kDimV, int kThreads>
__device__ __forceinline__ void add_partial(const PartialResult<kDimV, kThreads>& from,
                                            OAccumulator<kDimV>& o_acc, Softmax& softmax,
                                            int thread) {
  constexpr int kAtOnce = kDimV > 128 ? 4 : 8;
  const auto load = [](const float4& at) { return kSameCta ? at : __ldcg(&at); };
  const float4 state = load(from.softmax_state[thread]);
  const float2 factor[2] = {softmax.merge(0, state.x, state.z), softmax.merge(1, state.y, state.w)};
#pragma unroll
  for (int i = 0; i < kDimV / 8; ++i) {
    const float4 other = load(from.o_acc[i][thread]);
    const float theirs[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& mine = o_acc[i * 4 + j];
      mine = fmaf(factor[j / 2].x, mine, factor[j / 2].y * theirs[j]);
    }
    // Otherwise the compiler hoists all loads, which needs too many registers.
    if (i % kAtOnce == kAtOnce - 1) asm volatile("" ::: "memory");
  }
}

template <bool kSameCta, int kDimV, int kThreads>
__device__ __forceinline__ void add_partial(const TwoSumPartial<kDimV, kThreads>& from,
                                            OAccumulator<kDimV>& o_acc, TwoSumSoftmax& softmax,
                                            int thread) {
  static_assert(!kSameCta);
  const float4 state = __ldcg(&from.softmax_state[thread]);
  const float2 other = __ldcg(&from.exact_sum[thread]);
  Softmax exact = softmax.exact();
  exact.merge(0, state.x, other.x);
  exact.merge(1, state.y, other.y);
  softmax.exact_sum[0] = exact.row_sum[0], softmax.exact_sum[1] = exact.row_sum[1];
  const PartialResult<kDimV, kThreads>& rounded = from;
  Softmax& of_rounded = softmax;
  add_partial<kSameCta, kDimV>(rounded, o_acc, of_rounded, thread);
}

}  // namespace tessera::cuda::attention
