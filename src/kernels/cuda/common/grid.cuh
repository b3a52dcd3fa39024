#pragma once

// Programmatic dependent launch: a grid may begin while the grid before it still runs. After
// wait_for_grid_before() the earlier grid's writes are visible and its inputs may be overwritten.
// Before sm_90 a grid always begins after the one before it, and these functions do nothing.
namespace tessera::cuda {

__device__ __forceinline__ void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next grid begin once all CTAs of this one have called this or ended. The next grid
/// still has to wait for this grid's results.
__device__ __forceinline__ void let_next_grid_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tessera::cuda
