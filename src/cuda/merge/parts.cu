#include "src/cuda/merge/parts.cuh"

#include "src/cuda/merge/launch.cuh"

namespace tessera::cuda::merge {

void join_parts(const Arguments& args, DType out, cudaStream_t stream) {
  constexpr int kWarps = 8;
  launch_merge<kWarps, float>(args, out, stream);
}

}  // namespace tessera::cuda::merge
