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

/// The same of a map with panels, by addresses in shared memory: a warp that issues many of them
/// computes each from few registers.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map, int inner,
                                         int row, int panel, int batch, std::uint32_t full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(inner), "r"(row), "r"(panel), "r"(batch), "r"(full)
      : "memory");
}

/// One box from shared memory out, a bulk group of its own; what lies outside the tensor is left
/// out.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int inner, int row, int batch,
                                          const void* from) {
  const std::int32_t at[] = {inner, row, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, &map, at,
                                    from);
}
__device__ __forceinline__ void commit_stores() { ::cuda::ptx::cp_async_bulk_commit_group(); }

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace tessera::cuda::tile
