#pragma once

// Programmatic dependent launch: a grid may begin while the grid before it still runs. The earlier
// grid's writes are visible, and its inputs may be overwritten, once this one has waited. Before
// sm_90 a grid always begins after the one before it, and these do nothing.
namespace tessera::cuda {

__device__ __forceinline__ void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Takes effect when all blocks have called this or are done. The next grid waits for the rest
/// itself.
__device__ __forceinline__ void let_next_grid_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tessera::cuda
