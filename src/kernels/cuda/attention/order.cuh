#pragma once

#include <cuda_runtime.h>

#include "src/kernels/cuda/attention/work.cuh"

namespace tessera::cuda::attention {

/// Launches the kernel that writes `walk.order`, before the attention kernel: tiles that would end
/// last begin earlier. The first round of tiles does not wait for it.
void order_tiles(const Walk& walk, cudaStream_t stream);

}  // namespace tessera::cuda::attention
