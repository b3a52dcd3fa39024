#pragma once

#include <cuda.h>

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// Stores 16-bit results without arithmetic through shared memory: the warpgroup writes panels of 64
// x 64 there, and TMA stores them while the warpgroup continues to multiply.
namespace tessera::cuda::product {}

namespace tessera::cuda::sm90::product {

using namespace cuda::product;  // shared by all architectures

/// Whether TMA stores the result, and whether its rows or its columns are contiguous.
enum class TmaStore : std::uint8_t { none, by_rows, by_columns };

/// Writes four 8 x 8 blocks of 16-bit elements (stmatrix), a pair of each per lane, transposed if
/// kTransposed. Lane l gives the address of line l % 8 of block l / 8.
template <bool kTransposed>
__device__ __forceinline__ void put_blocks(std::uint32_t line, const std::uint32_t (&pair)[4]) {
  if constexpr (kTransposed) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(line),
        "r"(pair[0]), "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
        : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(line),
                 "r"(pair[0]), "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
                 : "memory");
  }
}

/// The staging panels for kPieces times 64 x kN results of one warpgroup, in shared memory: its own
/// ones, and borrowed ones (`lent`) in a stage of the ring.
template <int kN, int kPieces = 1, int kMaxOwn = 2>
struct Staging {
  static constexpr int kWidth = tile::kLine;  // rows and columns of a panel
  static constexpr int kAcross = kN / kWidth, kPanels = kPieces * kAcross;
  static constexpr int kOwn = kPanels < kMaxOwn ? kPanels : kMaxOwn;
  static constexpr int kLent = kPanels - kOwn;
  static_assert(kN % kWidth == 0);
  struct alignas(tile::kAtomBytes) Panel {
    std::uint16_t data[kWidth * kWidth];
  };
  Panel own[kOwn];

  /// Stages and stores the sums, piece below piece; their first element is (row, col) of the
  /// result, and TMA clips at the result's edges. Where panels are lent, all threads have called
  /// `wait_until_read` since the previous call. `barrier`: a named barrier of this warpgroup.
  template <DType kOut, bool kTransposed>
  __device__ __forceinline__ void store(const CUtensorMap& out, Panel* lent,
                                        const float (&sum)[kPieces * kN / 2], int row, int col,
                                        int batch, int thread, int barrier) {
    const int warp = thread / 32, lane = thread % 32;
    // Position of the lane's 8 x 8 block among the warp's 16 rows and the set's 16 columns.
    const int down = lane / 8 % 2, across = lane / 16;
    // A panel's lines are rows (columns if transposed); 16-byte chunks lie along a line.
    const int line = kTransposed ? across * 8 + lane % 8 : warp * 16 + down * 8 + lane % 8;
    const int chunk = kTransposed ? warp * 2 + down : across;
    // The leader waits until TMA has read the earlier panels; the other warps may be ahead of it.
    if constexpr (kLent == 0) wait_until_read(thread);
    sync(barrier);
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const std::uint32_t base =
          tile::shared_address(panel(lent, p).data) + line * tile::kLineBytes;
#pragma unroll
      for (int set = 0; set < kWidth / 16; ++set) {
        std::uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (p * 4 + set) * 8 + i * 2;
          pair[i] = pack(kOut, sum[at], sum[at + 1]);
        }
        const int step = kTransposed ? set * 16 * tile::kLineBytes : 0;
        const int at = kTransposed ? chunk : set * 2 + chunk;
        put_blocks<kTransposed>(base + step + ((at ^ lane % 8) << 4), pair);
      }
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    sync(barrier);
    if (!leader(thread)) return;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const int r = row + p / kAcross * kWidth, c = col + p % kAcross * kWidth;
      tile::store_box(out, kTransposed ? r : c, kTransposed ? c : r, batch, panel(lent, p).data);
    }
    tile::commit_stores();
  }

  /// Waits until TMA has read all panels.
  __device__ static void wait_until_read(int thread) {
    if (leader(thread)) ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
  }
  /// Waits until all stores are complete. Called before the CTA ends.
  __device__ static void finish(int thread) {
    if (leader(thread)) ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<0>{});
  }

 private:
  /// The thread that issues and waits for TMA stores: one elected lane of warp 0.
  __device__ static bool leader(int thread) { return tile::elect() && thread < 32; }
  __device__ static void sync(int barrier) {
    asm volatile("barrier.cta.sync %0, 128;" ::"r"(barrier) : "memory");
  }
  __device__ Panel& panel(Panel* lent, int p) { return p < kOwn ? own[p] : lent[p - kOwn]; }
};

}  // namespace tessera::cuda::sm90::product
