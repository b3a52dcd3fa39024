#pragma once

#include "src/cuda/merge/kernel.cuh"

namespace tessera::cuda::merge {

/// Joins partial results in f32 for kernels that divide their work; `args.merged` has dtype `out`.
void join_parts(const Arguments& args, DType out, cudaStream_t stream);

}  // namespace tessera::cuda::merge
