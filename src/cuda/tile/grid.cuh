#pragma once

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

}  // namespace tessera::cuda::tile
