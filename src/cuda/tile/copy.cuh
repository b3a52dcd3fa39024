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

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace tessera::cuda::tile
