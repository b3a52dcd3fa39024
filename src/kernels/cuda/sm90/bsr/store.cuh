#pragma once

#include <cuda.h>

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/bsr/walk.cuh"
#include "src/kernels/cuda/sm90/product/staging.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

// Stores a warpgroup's sums through the slots that a tile's last step lends.
namespace tessera::cuda::sm90::bsr {

using product::TmaStore;

/// Lent slots, from `first` on; each holds 16 lines of 64 elements.
template <class Slot, int kSlots>
struct Lent {
  Slot* slots;
  int first;

  __device__ Slot& slot(int i) const { return slots[(first + i) & (kSlots - 1)]; }
};

/// Stores the sums through TMA, kTogether groups of 64 columns at a time. A slot holds 16 rows of a
/// group, or 16 columns if kTransposed. TMA clips at the edges of the result.
template <DType kOut, bool kTransposed, int kGroups, int kTogether, class LentSlots>
__device__ __forceinline__ void store_by_tma(const CUtensorMap& out, const LentSlots& lent,
                                             const float (&sum)[kGroups * kGroup / 2], int row,
                                             int col, int batch, int thread, int barrier) {
  const int warp = thread / 32, lane = thread % 32;
  const bool elected = tile::elect();
  // Position of the lane's 8 x 8 block among the warp's 16 rows and the set's 16 columns.
  const int down = lane / 8 % 2, across = lane / 16;
  const int line = (kTransposed ? across : down) * 8 + lane % 8;
#pragma unroll
  for (int first = 0; first < kGroups; first += kTogether) {
    if (first > 0) {
      if (warp == 0 && elected) tile::ptx::cp_async_bulk_wait_group_read(tile::ptx::n32_t<0>{});
      asm volatile("barrier.cta.sync %0, 128;" ::"r"(barrier) : "memory");
    }
#pragma unroll
    for (int g = first; g < first + kTogether && g < kGroups; ++g) {
#pragma unroll
      for (int set = 0; set < 4; ++set) {
        std::uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (g * 4 + set) * 8 + i * 2;
          pair[i] = pack(kOut, sum[at], sum[at + 1]);
        }
        const int chunk = kTransposed ? warp * 2 + down : set * 2 + across;
        auto& slot = lent.slot((g - first) * 4 + (kTransposed ? set : warp));
        product::put_blocks<kTransposed>(
            tile::shared_address(slot.data) + line * tile::kLineBytes + ((chunk ^ lane % 8) << 4),
            pair);
      }
    }
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    asm volatile("barrier.cta.sync %0, 128;" ::"r"(barrier) : "memory");
    if (warp != 0) continue;
    if (elected) {
#pragma unroll 1
      for (int i = 0; i < kTogether * 4 && first * 4 + i < kGroups * 4; ++i) {
        const int c = col + (first + i / 4) * kGroup, part = i % 4 * 16;
        tile::store_box(out, kTransposed ? row : c, kTransposed ? c + part : row + part, batch,
                        lent.slot(i).data);
      }
      tile::commit_stores();
    }
  }
  if (warp == 0 && elected) tile::ptx::cp_async_bulk_wait_group_read(tile::ptx::n32_t<0>{});
}

/// Stores one group at a time, always from the same registers, into which the other sums move up:
/// code for six groups would exceed the instruction cache, and their addresses the registers. The
/// last kLentSums sums of a thread are parked in the lent slots.
template <int kGroups, int kLentSums, class LentSlots>
__device__ __forceinline__ void store_groups(const product::Finish& finish, const LentSlots& lent,
                                             float (&sum)[kGroups * kGroup / 2], int row, int col,
                                             int batch, int m, int n, int thread) {
  constexpr int kGroupSums = kGroup / 2, kKept = kGroups * kGroupSums - kLentSums;
  const auto waiting = [&](int first, int i) -> float& {
    constexpr int kWarpgroup = 128, kRows = sizeof(lent.slots[0]) / 4 / kWarpgroup;
    return reinterpret_cast<float*>(
        LentSlots{lent.slots, first}.slot(i / kRows).data)[i % kRows * kWarpgroup + thread];
  };
#pragma unroll
  for (int i = 0; i < kLentSums; ++i) waiting(lent.first, i) = sum[kKept + i];
#pragma unroll 1
  for (int g = 0; g < kGroups && col + g * kGroup < n; ++g) {
    product::store_tile<kGroup, 1>(finish, reinterpret_cast<float(&)[kGroupSums]>(sum), row,
                                   col + g * kGroup, batch, m, n, thread);
#pragma unroll
    for (int i = 0; i + kGroupSums < kKept; ++i) sum[i] = sum[i + kGroupSums];
    if (kLentSums == 0 || g + 2 != kGroups) continue;
    // The shuffle makes the compiler recompute the addresses, for which there are no registers.
    const int again = __shfl_sync(kAllLanes, lent.first, 0);
#pragma unroll
    for (int i = 0; i < kLentSums; ++i) sum[i] = waiting(again, i);
  }
}

}  // namespace tessera::cuda::sm90::bsr
