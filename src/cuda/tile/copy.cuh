#pragma once

#include <cuda.h>

#include <cuda/ptx>

#include <cstdint>

namespace tessera::cuda::tile {

/// One box of a tensor map into shared memory; its bytes complete on `full`.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int inner, int row,
                                         int batch, std::uint64_t* full) {
  const std::int32_t at[] = {inner, row, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, &map,
                                    at, full);
}

/// One box from shared memory out, a bulk group of its own; what lies outside the tensor is left
/// out.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int inner, int row, int batch,
                                          const void* from) {
  const std::int32_t at[] = {inner, row, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, &map, at,
                                    from);
  ::cuda::ptx::cp_async_bulk_commit_group();
}

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace tessera::cuda::tile
