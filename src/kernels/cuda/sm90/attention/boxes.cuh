#pragma once

#include <cuda.h>

#include <cstdint>

namespace tessera::cuda::sm90::attention {

/// Loads a box of K or V into shared memory; its bytes complete on the mbarrier `full` (both as
/// shared addresses). Other tiles read the same K and V, so the L2 hint is evict_last.
__device__ __forceinline__ void load_evict_last(std::uint32_t to, const CUtensorMap& map, int inner,
                                                int row, int head, int batch, std::uint32_t full) {
  constexpr std::uint64_t kEvictedLast = 0x14F0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(inner), "r"(row), "r"(head), "r"(batch), "r"(full), "l"(kEvictedLast)
      : "memory");
}

/// The same for every second pair of rows, 32 in all, from `row` on.
__device__ __forceinline__ void load_pairs_evict_last(std::uint32_t to, const CUtensorMap& map,
                                                      int inner, int row, int head, int batch,
                                                      std::uint32_t full) {
  constexpr std::uint64_t kEvictedLast = 0x14F0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(&map), "r"(inner), "r"(row), "r"(0), "r"(head), "r"(batch), "r"(full), "l"(kEvictedLast)
      : "memory");
}

/// Loads a box of Q. Q is read once, so the L2 hint is evict_first.
__device__ __forceinline__ void load_evict_first(std::uint32_t to, const CUtensorMap& map,
                                                 int inner, int head, int row, int group, int batch,
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
