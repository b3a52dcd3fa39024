#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"

namespace tessera::cuda {

struct ExclusiveSum {
  std::int64_t before = 0, total = 0;
};

/// Exclusive prefix sum and total over a CTA of kThreads threads. All threads call it; another call
/// may follow immediately.
template <int kThreads>
__device__ ExclusiveSum exclusive_sum(std::int64_t value) {
  constexpr int kWarps = kThreads / kLanes;
  static_assert(kThreads % kLanes == 0 && kWarps <= kLanes);
  __shared__ std::int64_t warps[kWarps];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const auto inclusive_in_warp = [lane](std::int64_t x) { return sum_through(lane, x); };
  const std::int64_t inclusive = inclusive_in_warp(value);
  if (lane == kLanes - 1) warps[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    const std::int64_t sums = inclusive_in_warp(lane < kWarps ? warps[lane] : 0);
    if (lane < kWarps) warps[lane] = sums;
  }
  __syncthreads();
  const ExclusiveSum result{(warp > 0 ? warps[warp - 1] : 0) + inclusive - value,
                            warps[kWarps - 1]};
  __syncthreads();
  return result;
}

}  // namespace tessera::cuda
