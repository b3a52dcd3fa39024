#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/sddmm/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

// How the blocks of a cluster fetch shared data once for all of them. Each block has passes of its
// own. Its scheduler tells the others what its next pass reads, and all schedulers come to the same
// agreement: a piece that several blocks gather is put in the same place of each one's stage, and
// one block fetches it for all; likewise rows of A. Correctness does not depend on what is shared:
// without sharing, or in a cluster of one block, each block fetches its own.
namespace tessera::cuda::sm90::sddmm {

namespace ptx = ::cuda::ptx;

/// Maximum blocks per cluster: a portable size.
inline constexpr int kMaxBlocks = 8;

/// What a thread block tells the others of its next pass.
struct PassRequest {
  int columns, row, a_matrix, b_matrix;
  int begin[kMaxPieces];
};

/// A pass and how it is gathered: for the producer and the consumers of the same thread block.
struct GatherDescriptor {
  Pass pass;
  unsigned rows_to;         // bitmask of blocks for which this one fetches the rows of A
  int begin[kMaxPieces];    // columns of B
  int place[kMaxPieces];    // of a piece in the stage
  unsigned to[kMaxPieces];  // bitmask of blocks for which this one fetches the piece
  int piece[kMaxPieces];    // the piece in a place
};

/// The address of a variable in another block of the cluster.
template <class V>
__device__ __forceinline__ V* in_block(V* mine, int rank) {
  return static_cast<V*>(__cluster_map_shared_rank(mine, static_cast<unsigned>(rank)));
}

/// Arrives at another block's barrier and publishes what this thread has written there.
__device__ __forceinline__ void arrive_in_block(std::uint64_t* barrier, int rank) {
  ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster,
                       in_block(barrier, rank));
}

/// The same where nothing was written: without the fence, which takes longer than a step.
__device__ __forceinline__ void release_to(std::uint64_t* barrier, int rank) {
  const std::uint32_t at =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(in_block(barrier, rank)));
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

/// Whether a phase has completed; the same answer for the whole warp.
__device__ __forceinline__ bool is_complete(std::uint64_t* barrier, std::uint32_t parity) {
  return __all_sync(kAllLanes, ptx::mbarrier_test_wait_parity(barrier, parity));
}

/// Waits for what other blocks of the cluster have written.
__device__ __forceinline__ void wait_for_cluster(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, barrier, parity)) {
  }
}

__device__ __forceinline__ void sync_cluster() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

/// One box of a tensor map into the same place of several blocks.
__device__ __forceinline__ void copy_box_to(unsigned blocks, void* to, const CUtensorMap& map,
                                            int inner, int row, int batch, std::uint64_t* full) {
  const std::int32_t at[] = {inner, row, batch};
  if (blocks & (blocks - 1)) {
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, full,
                              static_cast<std::uint16_t>(blocks));
  } else {
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, full);
  }
}

/// The piece of a pass that begins at a column; -1 where there is none. Pieces are in order.
__device__ __forceinline__ int find_piece(const PassRequest& request, int pieces, int column) {
  int low = 0, high = pieces;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (request.begin[middle] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < pieces && request.begin[low] == column ? low : -1;
}

/// The n-th of the set bits, from 0.
__device__ __forceinline__ int nth_bit(unsigned set, int n) { return __fns(set, 0, n + 1); }

/// Decides where each piece goes and which block fetches it. The whole scheduler warp; those of the
/// other blocks do the same with the same requests and come to the same result.
__device__ __forceinline__ void agree(const PassRequest (&requests)[kMaxBlocks], int cluster,
                                      int rank, int lane, int piece_shift,
                                      GatherDescriptor& gather) {
  // Lane r holds the state of block r: its pieces that are not placed yet, and its free places.
  const bool block = lane < cluster;
  const PassRequest& request = requests[block ? lane : rank];
  const PassRequest& own = requests[rank];
  const int columns = block ? max(request.columns, 0) : 0;
  const int pieces = (columns + (1 << piece_shift) - 1) >> piece_shift;
  unsigned open = pieces > 0 ? ~0u >> (kMaxPieces - pieces) : 0, free = open;

  // The lane's own piece.
  int place = -1;
  unsigned to = 1u << rank;
  for (int r = 0; r + 1 < cluster; ++r) {
    // Lane i looks for piece i of block r in the blocks after it: a byte each, 0xFF where missing.
    std::uint64_t found = ~std::uint64_t{0};
    const bool there = lane < __shfl_sync(kAllLanes, pieces, r);
    for (int q = r + 1; q < cluster; ++q) {
      const int count = __shfl_sync(kAllLanes, pieces, q);
      if (!there || requests[q].b_matrix != requests[r].b_matrix) continue;
      const int at = find_piece(requests[q], count, requests[r].begin[lane]);
      if (at >= 0) found ^= std::uint64_t{static_cast<unsigned>(at ^ 0xFF)} << (8 * q);
    }
    for (unsigned left = __ballot_sync(kAllLanes, ~found != 0); left != 0; left &= left - 1) {
      const int i = __ffs(static_cast<int>(left)) - 1;
      const std::uint64_t others = __shfl_sync(kAllLanes, found, i);
      const int other = block ? static_cast<int>(others >> (8 * lane) & 0xFF) : 0xFF;
      const int mine = lane == r ? i : other;
      const bool in = mine != 0xFF && (open >> mine & 1u);
      const unsigned blocks = __ballot_sync(kAllLanes, in);
      // Placed already, or no other block shares it.
      if (!(blocks >> r & 1u) || !(blocks & (blocks - 1))) continue;
      const unsigned common = __reduce_and_sync(kAllLanes, in ? free : ~0u);
      if (common == 0) continue;
      const int chosen = __ffs(static_cast<int>(common)) - 1;
      if (in) {
        open &= ~(1u << mine);
        free &= ~(1u << chosen);
      }
      if (lane == __shfl_sync(kAllLanes, mine, rank) && (blocks >> rank & 1u)) {
        place = chosen;
        to = blocks;
      }
    }
  }
  // Pieces that are not shared take the remaining places.
  const unsigned rest = __shfl_sync(kAllLanes, free, rank);
  const bool exists = lane < __shfl_sync(kAllLanes, pieces, rank);
  const unsigned alone = __ballot_sync(kAllLanes, exists && place < 0);
  if (exists && place < 0) place = nth_bit(rest, __popc(alone & ((1u << lane) - 1)));
  if (exists) {
    const int fetcher = nth_bit(to, place % __popc(to));  // rotating
    gather.begin[lane] = own.begin[lane];
    gather.place[lane] = place;
    gather.to[lane] = fetcher == rank ? to : 0;
    gather.piece[place] = lane;
  }
  const unsigned same_rows = __ballot_sync(
      kAllLanes, columns > 0 && request.row == own.row && request.a_matrix == own.a_matrix);
  if (lane == 0) gather.rows_to = nth_bit(same_rows, 0) == rank ? same_rows : 0;
}

}  // namespace tessera::cuda::sm90::sddmm
