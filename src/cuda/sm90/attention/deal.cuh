#pragma once

#include <cuda_runtime.h>

#include "src/cuda/sm90/attention/walk.cuh"

namespace tessera::cuda::sm90::attention {

/// A kernel before the walk: counters start at zero and, where `walk.order` is there, tiles that
/// would end last begin earlier. The walk's first tiles need not wait for it.
void deal_tiles(const Walk& walk, int* counters, int count, cudaStream_t stream);

}  // namespace tessera::cuda::sm90::attention
