#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

namespace tessera::cuda::tile {

// racecheck follows what mbarriers order thread by thread, but not __syncwarp followed by one
// lane's arrival. Builds with TESSERA_RACECHECK let every lane arrive: slower, the same otherwise.
#ifdef TESSERA_RACECHECK
inline constexpr bool kEachLaneArrives = true;
#else
inline constexpr bool kEachLaneArrives = false;
#endif
inline constexpr int kWarpArrivals = kEachLaneArrives ? 32 : 1;

/// Arrives at a barrier once per warp, when all of its lanes have finished with what the barrier
/// guards.
__device__ __forceinline__ void arrive_as_warp(std::uint64_t& barrier, int lane) {
  __syncwarp();
  if (kEachLaneArrives || lane == 0) arrive(&barrier);
}

}  // namespace tessera::cuda::tile
