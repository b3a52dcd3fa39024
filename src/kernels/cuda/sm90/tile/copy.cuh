#pragma once

#include <cuda.h>

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

namespace tessera::cuda::tile {

/// Loads one box of a 3-D tensor map into shared memory; its bytes complete on `full`.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int inner, int row,
                                         int batch, std::uint64_t* full) {
  const std::int32_t at[] = {inner, row, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, &map,
                                    at, full);
}

/// The same by multicast: to the same address in each CTA of the bitmask `ranks`, where the bytes
/// complete on the barrier at the same address.
__device__ __forceinline__ void copy_box_to_all(void* to, const CUtensorMap& map, int inner,
                                                int row, int batch, std::uint64_t* full,
                                                std::uint16_t ranks) {
  const std::int32_t at[] = {inner, row, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, &map,
                                    at, full, ranks);
}

/// The same for a 4-D map (panel_map), with shared addresses: a warp that issues many copies
/// computes each from few registers.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map, int inner,
                                         int row, int panel, int batch, std::uint32_t full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(inner), "r"(row), "r"(panel), "r"(batch), "r"(full)
      : "memory");
}

/// Stores one box through a 5-D map (folded_map): results of several heads.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int inner, int head, int row,
                                          int group, int batch, const void* from) {
  const std::int32_t at[] = {inner, head, row, group, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, &map, at,
                                    from);
}

/// Stores one box through a 3-D map, clipped at the edges of the tensor. `commit_stores` puts all
/// stores before it into one bulk group.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int inner, int row, int batch,
                                          const void* from) {
  const std::int32_t at[] = {inner, row, batch};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, &map, at,
                                    from);
}
__device__ __forceinline__ void commit_stores() { ::cuda::ptx::cp_async_bulk_commit_group(); }

/// Loads one box of a 3-D map with an L2 policy: kStays (the default) or kStreams (evict_first, for
/// data that is read once).
inline constexpr std::uint64_t kStays = 0x1000000000000000, kStreams = 0x12F0000000000000;
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int inner, int row,
                                         int batch, std::uint64_t* full, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(inner), "r"(row), "r"(batch), "r"(shared_address(full)), "l"(policy)
      : "memory");
}

/// The same for a 4-D map (rows_map), with shared addresses.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& map, int inner,
                                         int row, int head, int batch, std::uint32_t full,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(inner), "r"(row), "r"(head), "r"(batch), "r"(full), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace tessera::cuda::tile
