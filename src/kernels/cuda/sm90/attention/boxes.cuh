#pragma once

#include <cuda.h>

#include <cstdint>

namespace tessera::cuda::sm90::attention {

/// A box of keys or values into shared memory, by addresses; its bytes complete on `full`. Tiles
/// beside this one read them again: in L2 they stay longer than queries and outputs, which pass.
__device__ __forceinline__ void copy_kept(std::uint32_t to, const CUtensorMap& map, int inner,
                                          int row, int head, int batch, std::uint32_t full) {
  constexpr std::uint64_t kEvictedLast = 0x14F0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(inner), "r"(row), "r"(head), "r"(batch), "r"(full), "l"(kEvictedLast)
      : "memory");
}

/// A box of queries, which are read once: they leave L2 before all else.
__device__ __forceinline__ void copy_once(std::uint32_t to, const CUtensorMap& map, int inner,
                                          int head, int row, int group, int batch,
                                          std::uint32_t full) {
  constexpr std::uint64_t kEvictedFirst = 0x12F0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(&map), "r"(inner), "r"(head), "r"(row), "r"(group), "r"(batch), "r"(full),
      "l"(kEvictedFirst)
      : "memory");
}

}  // namespace tessera::cuda::sm90::attention
