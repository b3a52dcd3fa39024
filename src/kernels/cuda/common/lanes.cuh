#pragma once

namespace tessera::cuda {

/// The sum of the values of a warp's lanes up to this one, with its own. All lanes call it.
__device__ __forceinline__ int sum_through(int lane, int value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

}  // namespace tessera::cuda
