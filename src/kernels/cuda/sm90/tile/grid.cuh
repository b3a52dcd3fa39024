#pragma once

#include <cuda_runtime_api.h>

// Programmatic dependent launch: a grid may begin while the one before it still runs. The earlier
// grid's writes are visible, and its inputs may be overwritten, once this one has waited.
namespace tessera::cuda::tile {

__device__ __forceinline__ void wait_for_grid_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Takes effect when all blocks have called this or are done. The next grid waits for the rest
/// itself.
__device__ __forceinline__ void let_next_grid_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// The launch attribute that lets a grid begin like that.
inline cudaLaunchAttribute overlapped_with_grid_before() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

}  // namespace tessera::cuda::tile
