#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/barrier.cuh"

namespace tessera::cuda::sm90::attention {

// The sanitizer's racecheck follows what barriers order, thread by thread, but not that the lanes
// of a warp stay together. With TESSERA_RACECHECK each lane arrives for itself: slower, else the
// same.
#ifdef TESSERA_RACECHECK
inline constexpr bool kEachLaneArrives = true;
#else
inline constexpr bool kEachLaneArrives = false;
#endif
inline constexpr int kWarpArrivals = kEachLaneArrives ? 32 : 1;

/// Read anew each time, so that neither it nor what follows from it occupies a register.
__device__ __forceinline__ int thread_of_block() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// All lanes of a warp are done with what the barrier guards.
__device__ __forceinline__ void arrive_as_warp(std::uint64_t& barrier, int lane) {
  __syncwarp();
  if (kEachLaneArrives || lane == 0) tile::arrive(&barrier);
}

}  // namespace tessera::cuda::sm90::attention
