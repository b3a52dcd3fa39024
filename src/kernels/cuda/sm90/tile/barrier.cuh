#pragma once

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// mbarriers, and the ring of stages that a producer fills and consumers empty.
namespace tessera::cuda::tile {

namespace ptx = ::cuda::ptx;

__device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

__device__ __forceinline__ void arrive(std::uint64_t* barrier) { ptx::mbarrier_arrive(barrier); }

/// One more arrival, and `bytes` that TMA will still write, before the phase completes.
__device__ __forceinline__ void arrive_expecting(std::uint64_t* barrier, std::uint32_t bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                 bytes);
}

/// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ std::uint32_t address_of_rank(const void* mine, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(mine)), "r"(rank));
  return there;
}

/// Arrives at the barrier at the same address in another block of the cluster. Orders what tensor
/// cores have read, no more: a release to the cluster would be a full fence of memory.
__device__ __forceinline__ void arrive_there(std::uint64_t* mine, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_of_rank(mine, rank))
               : "memory");
}

/// All threads arrive, then wait. Orders no memory: data that travels between blocks has its own
/// barriers.
__device__ __forceinline__ void cluster_arrive() {
  tile::ptx::barrier_cluster_arrive(tile::ptx::sem_relaxed);
}
__device__ __forceinline__ void cluster_wait() { tile::ptx::barrier_cluster_wait(); }

/// True for one lane of a warp whose lanes all call this. The compiler knows it to be one: TMA
/// copies that only this lane issues need no loop over lanes.
__device__ __forceinline__ bool elect() {
  std::uint32_t elected = 0;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

/// Arrives when all `cp.async` copies of this thread so far have reached shared memory.
__device__ __forceinline__ void arrive_when_copied(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}

/// Named barriers, each for as many threads; barrier 0 is __syncthreads.
__device__ __forceinline__ void sync_at(unsigned barrier, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(unsigned barrier, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// The barriers of a ring; lives in shared memory.
template <int kStages>
struct RingBarriers {
  std::uint64_t full[kStages], empty[kStages];

  /// One thread calls this, or several that share the stages; a fence and a block barrier must
  /// follow.
  __device__ void init(int consumers, int producers = 1, int thread = 0, int threads = 1) {
    for (int i = thread; i < kStages; i += threads) {
      ptx::mbarrier_init(&full[i], static_cast<std::uint32_t>(producers));
      ptx::mbarrier_init(&empty[i], static_cast<std::uint32_t>(consumers));
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
};

/// A position in the ring; producer and consumers each walk their own.
template <int kStages>
struct RingCursor {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tessera::cuda::tile
