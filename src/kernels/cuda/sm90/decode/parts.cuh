#pragma once

#include <cmath>
#include <cstdint>

#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/common/launch_count.cuh"

// Partial results that are loaded and added several at once, so that neither their loads nor their
// exponentials wait for each other; counters of parts that count at once.
namespace tessera::cuda::sm90::decode {

using namespace cuda::attention;

/// A thread's share of a partial result, in registers; at first that of no keys.
template <int kDimV>
struct LoadedPart {
  float4 o_acc[kDimV / 8] = {}, softmax_state{-INFINITY, -INFINITY, 0.0f, 0.0f};
};

/// Loads a partial result: from shared memory (kSameCta), or of another CTA, bypassing L1.
template <bool kSameCta, int kDimV, int kThreads>
__device__ __forceinline__ void load_part(const PartialResult<kDimV, kThreads>& from,
                                          LoadedPart<kDimV>& to, int thread) {
  const auto load = [](const float4& at) { return kSameCta ? at : __ldcg(&at); };
  to.softmax_state = load(from.softmax_state[thread]);
#pragma unroll
  for (int i = 0; i < kDimV / 8; ++i) to.o_acc[i] = load(from.o_acc[i][thread]);
}

/// Merges a row's softmax state with others, in order (row max -inf: no key). Turns their row maxes
/// into the factors of their O accumulators, and returns this one's.
template <int kCount>
__device__ __forceinline__ float merge(Softmax& softmax, int half, float (&other_max)[kCount],
                                       const float (&other_sum)[kCount]) {
  const float mine = softmax.seen(half) ? softmax.row_max[half] : -INFINITY;
  float joint = mine;
#pragma unroll
  for (const float other : other_max) joint = fmaxf(joint, other);
  const bool some = joint > -INFINITY;  // else no key seen, or only NaN
  const float factor = some ? exp2_fast(mine - joint) : 0.0f;
  float& row_sum = softmax.row_sum[half];
  if (some) row_sum *= factor;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float of_other = some ? exp2_fast(other_max[i] - joint) : 0.0f;
    row_sum += some ? of_other * other_sum[i] : other_sum[i];
    other_max[i] = of_other;
  }
  if (some) softmax.row_max[half] = joint;
  return factor;
}

/// Adds partial results, in order.
template <int kDimV, int kCount>
__device__ __forceinline__ void add_parts(const LoadedPart<kDimV> (&from)[kCount],
                                          OAccumulator<kDimV>& o_acc, Softmax& softmax) {
  float mine[2], theirs[2][kCount];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sums[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float4 state = from[i].softmax_state;
      theirs[half][i] = half ? state.y : state.x;
      sums[i] = half ? state.w : state.z;
    }
    mine[half] = merge(softmax, half, theirs[half], sums);
  }
#pragma unroll
  for (int i = 0; i < kDimV / 2; ++i) o_acc[i] *= mine[i / 2 % 2];
#pragma unroll
  for (int part = 0; part < kCount; ++part) {
#pragma unroll
    for (int i = 0; i < kDimV / 8; ++i) {
      const float4 other = from[part].o_acc[i];
      const float four[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        o_acc[i * 4 + j] = fmaf(theirs[j / 2][part], four[j], o_acc[i * 4 + j]);
    }
  }
}

/// A counter's word, for begin_count.
__device__ __forceinline__ std::uint64_t read_count(const std::uint64_t* word) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(word));
}

/// For a thread that counts once, with count_begun, and has time before it does: gives a counter
/// that was `seen` this launch's tag. Nothing waits for it.
__device__ __forceinline__ void begin_count(std::uint64_t* word, std::uint64_t seen,
                                            std::uint64_t tag, int limit) {
  // If the exchange fails, another thread of this launch was first and has written the tag.
  if (!planning::LaunchCount::holds(seen, tag, limit))
    atomicCAS(reinterpret_cast<unsigned long long*>(word), seen, tag);
}

/// count_up for a thread that has called begin_count.
__device__ __forceinline__ int count_begun(std::uint64_t* word, std::uint64_t tag, int limit) {
  auto* at = reinterpret_cast<unsigned long long*>(word);
  const auto count = static_cast<int>(planning::LaunchCount::count_of(atomicAdd(at, 1ull), tag));
  if (count == limit - 1) *at = 0;
  return count;
}

}  // namespace tessera::cuda::sm90::decode
