#pragma once

#include <cuda.h>

#include <cuda/ptx>

#include <cstdint>

#include "src/cuda/tile/swizzled_tile.cuh"

namespace tessera::cuda::tile {

/// One box of a tensor map into shared memory; its bytes complete on `full`.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int inner, int row,
                                         int batch, std::uint64_t* full) {
  const std::int32_t at[] = {inner, row, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, &map,
                                    at, full);
}

/// The same with a policy for L2, such as kStreams: what is read once leaves before all else.
inline constexpr std::uint64_t kStays = 0x1000000000000000, kStreams = 0x12F0000000000000;
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int inner, int row,
                                         int batch, std::uint64_t* full, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(inner), "r"(row), "r"(batch), "r"(shared_address(full)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace tessera::cuda::tile
