#pragma once

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

// Split-K inside a cluster: its CTAs split the depth of one tile and add up their sums. Each CTA
// owns some columns of the tile, adds the sums of all CTAs for them in the order of ranks, and
// stores the result. Sums travel through distributed shared memory: no workspace, no second pass
// and no atomics.
namespace tessera::cuda::sm90::matmul {

/// The same address in the shared memory of another CTA of the cluster.
template <class T>
__device__ __forceinline__ T* of_rank(T* mine, int rank) {
  return static_cast<T*>(__cluster_map_shared_rank(mine, static_cast<unsigned>(rank)));
}

/// Arrives at another CTA's barrier with release at cluster scope: publishes this thread's writes,
/// and those of its warp that it has seen.
__device__ __forceinline__ void publish_to_rank(std::uint64_t* barrier, int rank) {
  tile::ptx::mbarrier_arrive(tile::ptx::sem_release, tile::ptx::scope_cluster,
                             tile::ptx::space_cluster, of_rank(barrier, rank));
}

/// Arrives at another CTA's barrier without ordering memory; ordering at cluster scope costs
/// hundreds of clocks.
__device__ __forceinline__ void arrive_at_rank(std::uint64_t* barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(tile::shared_address(barrier)),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void wait_cluster(std::uint64_t* barrier, std::uint32_t parity) {
  while (!tile::ptx::mbarrier_try_wait_parity(tile::ptx::sem_acquire, tile::ptx::scope_cluster,
                                              barrier, parity)) {
  }
}

/// The reduction of one consumer's 64 x kN part of a tile. `sums`: the sums of all CTAs for the
/// columns that this CTA owns.
template <int kN>
struct SplitKReduction {
  static constexpr int kChunk = 16;  // adjacent columns with one owner
  static constexpr int kChunks = kN / kChunk;
  static constexpr int kThreads = 128;
  static constexpr int kSlots = planning::share_slots(kN);

  float4 sums[kSlots * 2 * kThreads];
  std::uint64_t full, empty;  // arrivals per phase: each warp of each CTA

  __device__ void init(int splits) {
    const auto arrivals = static_cast<std::uint32_t>(splits * kThreads / 32);
    tile::ptx::mbarrier_init(&full, arrivals);
    tile::ptx::mbarrier_init(&empty, arrivals);
  }

  /// Sends this CTA's sums to their owners, then adds up and stores the columns that this CTA owns.
  /// `round`: number of tiles before this one.
  __device__ __forceinline__ void reduce_and_store(const product::Finish& finish,
                                                   const float (&sum)[kN / 2], int rank, int splits,
                                                   int round, int row, int col, int batch,
                                                   int row_end, int col_end, int thread) {
    const int lane = thread % 32, parity = round % 2;
    const int owned = planning::owned_pieces(kN, splits);
    // All CTAs have read the sums of the previous tile.
    wait_cluster(&empty, parity ^ 1);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      float4* to = of_rank(place(rank, chunk / splits, owned, thread), chunk % splits);
      const float* s = sum + chunk * 8;
      to[0] = {s[0], s[1], s[2], s[3]};
      to[kThreads] = {s[4], s[5], s[6], s[7]};
    }
    __syncwarp();
    if (lane < splits) publish_to_rank(&full, lane);
    wait_cluster(&full, parity);
#pragma unroll 1
    for (int chunk = rank; chunk < kChunks; chunk += splits) {
      float total[8] = {};
      for (int from = 0; from < splits; ++from) {
        const float4* at = place(from, chunk / splits, owned, thread);
        const float4 low = at[0], high = at[kThreads];
        total[0] += low.x, total[1] += low.y, total[2] += low.z, total[3] += low.w;
        total[4] += high.x, total[5] += high.y, total[6] += high.z, total[7] += high.w;
      }
      product::store_tile<kChunk>(finish, total, row, col + chunk * kChunk, batch, row_end, col_end,
                                  thread);
    }
    __syncwarp();
    if (lane < splits) arrive_at_rank(&empty, lane);
  }

 private:
  __device__ float4* place(int from, int slot, int owned, int thread) {
    return sums + (from * owned + slot) * 2 * kThreads + thread;
  }
};

}  // namespace tessera::cuda::sm90::matmul
