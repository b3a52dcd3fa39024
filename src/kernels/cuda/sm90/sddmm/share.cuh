#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/sddmm/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

// How the CTAs of a cluster share loads. Each CTA has passes of its own. Its scheduler tells the
// others what its next pass reads, and all schedulers compute the same agreement: a piece that
// several CTAs gather gets the same place in each one's stage, and one CTA loads it for all by
// multicast; likewise rows of A. Correctness does not depend on sharing: without common pieces, or
// in a cluster of one, each CTA loads its own.
namespace tessera::cuda::sm90::sddmm {

namespace ptx = ::cuda::ptx;

/// Maximum CTAs per cluster: the portable maximum.
inline constexpr int kMaxBlocks = 8;

/// The operands of a CTA's next pass, as sent to the other CTAs.
struct PassRequest {
  int columns, row, a_matrix, b_matrix;
  int begin[kMaxPieces];
};

/// A pass and how it is gathered, for the producer and the consumers of one CTA.
struct GatherDescriptor {
  Pass pass;
  unsigned rows_to;         // CTAs for which this one loads the rows of A (bitmask)
  int begin[kMaxPieces];    // first column of B, per piece
  int place[kMaxPieces];    // place in the stage, per piece
  unsigned to[kMaxPieces];  // CTAs for which this one loads the piece (bitmask)
  int piece[kMaxPieces];    // piece, per place in the stage
};

/// The same address in the shared memory of another CTA of the cluster.
template <class V>
__device__ __forceinline__ V* in_block(V* mine, int rank) {
  return static_cast<V*>(__cluster_map_shared_rank(mine, static_cast<unsigned>(rank)));
}

/// Arrives at another CTA's barrier and publishes this thread's writes (release at cluster scope).
__device__ __forceinline__ void arrive_in_block(std::uint64_t* barrier, int rank) {
  ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster,
                       in_block(barrier, rank));
}

/// The same without ordering memory, where nothing was written: the fence would take longer than a
/// step.
__device__ __forceinline__ void release_to(std::uint64_t* barrier, int rank) {
  const std::uint32_t at =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(in_block(barrier, rank)));
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

/// Whether a phase has completed; uniform over the warp.
__device__ __forceinline__ bool is_complete(std::uint64_t* barrier, std::uint32_t parity) {
  return __all_sync(kAllLanes, ptx::mbarrier_test_wait_parity(barrier, parity));
}

/// Waits for a phase, and acquires writes of other CTAs of the cluster.
__device__ __forceinline__ void wait_for_cluster(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, barrier, parity)) {
  }
}

__device__ __forceinline__ void sync_cluster() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

/// Loads one box of a tensor map to the same address in each CTA of the bitmask `blocks`.
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

/// The index of the piece that begins at `column`; -1: none. Pieces are in order (binary search).
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

/// The position of the n-th set bit, counted from 0.
__device__ __forceinline__ int nth_bit(unsigned set, int n) { return __fns(set, 0, n + 1); }

/// Decides where each piece goes and which CTA loads it. Run by the whole scheduler warp; the
/// schedulers of the other CTAs compute the same from the same requests.
__device__ __forceinline__ void agree(const PassRequest (&requests)[kMaxBlocks], int cluster,
                                      int rank, int lane, int piece_shift,
                                      GatherDescriptor& gather) {
  // Lane r holds the state of CTA r: its pieces that have no place yet, and its free places.
  const bool block = lane < cluster;
  const PassRequest& request = requests[block ? lane : rank];
  const PassRequest& own = requests[rank];
  const int columns = block ? max(request.columns, 0) : 0;
  const int pieces = (columns + (1 << piece_shift) - 1) >> piece_shift;
  unsigned open = pieces > 0 ? ~0u >> (kMaxPieces - pieces) : 0, free = open;

  // The place of piece `lane` of this CTA, and the CTAs that share it.
  int place = -1;
  unsigned to = 1u << rank;
  for (int r = 0; r + 1 < cluster; ++r) {
    // Lane i looks for piece i of CTA r in the later CTAs: one byte per CTA, 0xFF where missing.
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
      // Already placed, or shared with no other CTA.
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
  // Unshared pieces take the remaining places.
  const unsigned rest = __shfl_sync(kAllLanes, free, rank);
  const bool exists = lane < __shfl_sync(kAllLanes, pieces, rank);
  const unsigned alone = __ballot_sync(kAllLanes, exists && place < 0);
  if (exists && place < 0) place = nth_bit(rest, __popc(alone & ((1u << lane) - 1)));
  if (exists) {
    const int fetcher = nth_bit(to, place % __popc(to));  // in rotation
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
