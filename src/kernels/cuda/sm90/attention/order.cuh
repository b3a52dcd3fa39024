#pragma once

#include <cuda_runtime.h>

#include "src/kernels/cuda/sm90/attention/walk.cuh"

namespace tessera::cuda::sm90::attention {

/// A kernel before the walk writes `walk.order`: tiles that would end last begin earlier. The
/// walk's first tiles need not wait for it.
void order_tiles(const Walk& walk, cudaStream_t stream);

}  // namespace tessera::cuda::sm90::attention
