#pragma once

#include <cuda_runtime_api.h>

// Programmatic dependent launch: a grid may begin while the one before it still runs. What that one
// writes is there, and what it reads may be overwritten, once this one has waited.
namespace tessera::cuda::tile {

__device__ __forceinline__ void wait_for_grid_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// When all blocks have called this or are done. Whoever comes next waits for the rest.
__device__ __forceinline__ void let_next_grid_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// What a launch says, so that its grid may begin like that.
inline cudaLaunchAttribute overlapped_with_grid_before() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

}  // namespace tessera::cuda::tile
