#pragma once

#include <cuda_runtime.h>

#include "src/kernels/cuda/attention/work.cuh"

namespace tessera::cuda::attention {

/// Launches the kernel that writes `walk.order`, before the attention kernel: tiles that would end
/// last begin earlier. `overlapped`: both kernels may begin while the kernel before them runs, and
/// the first round of tiles does not wait (programmatic dependent launch).
void order_tiles(const Walk& walk, bool overlapped, cudaStream_t stream);

}  // namespace tessera::cuda::attention
