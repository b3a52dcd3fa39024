#pragma once

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// mbarriers, named and cluster barriers, and the ring of stages that a producer fills and consumers
// empty.
namespace tessera::cuda::tile {

namespace ptx = ::cuda::ptx;

__device__ __forceinline__ void wait(std::uint64_t* barrier, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

__device__ __forceinline__ void arrive(std::uint64_t* barrier) { ptx::mbarrier_arrive(barrier); }

/// Arrives, and adds `bytes` that TMA has to write before the phase completes.
__device__ __forceinline__ void arrive_expecting(std::uint64_t* barrier, std::uint32_t bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                 bytes);
}

/// The same address in the shared memory of another CTA of the cluster.
__device__ __forceinline__ std::uint32_t address_of_rank(const void* mine, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(mine)), "r"(rank));
  return there;
}

/// Arrives at the barrier at the same address in another CTA of the cluster. Orders the tensor
/// cores' reads of operands, but no other memory: a release at cluster scope would be a full memory
/// fence.
__device__ __forceinline__ void arrive_there(std::uint64_t* mine, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_of_rank(mine, rank))
               : "memory");
}

/// Cluster barrier of all threads: arrive, then wait. Relaxed: orders no memory, since data that
/// travels between CTAs has its own barriers.
__device__ __forceinline__ void cluster_arrive() {
  tile::ptx::barrier_cluster_arrive(tile::ptx::sem_relaxed);
}
__device__ __forceinline__ void cluster_wait() { tile::ptx::barrier_cluster_wait(); }

/// elect.sync: true for one lane of a converged warp. The compiler then knows that one lane is
/// active, and needs no loop over lanes around TMA copies.
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

/// Arrives once all earlier `cp.async` copies of this thread have reached shared memory.
__device__ __forceinline__ void arrive_when_copied(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}

/// Named barriers with `threads` participants; barrier 0 is __syncthreads.
__device__ __forceinline__ void sync_at(unsigned barrier, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(unsigned barrier, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// sync_at that tells each participant whether `value` is true in any of them.
__device__ __forceinline__ bool any_at(unsigned barrier, int threads, bool value) {
  std::uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "barrier.cta.red.or.pred any, %1, %2, mine;\n"
      "selp.b32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<std::uint32_t>(value))
      : "memory");
  return any != 0;
}

/// The barriers of a ring, in shared memory.
template <int kStages>
struct RingBarriers {
  std::uint64_t full[kStages], empty[kStages];

  /// Initialises the barriers with `consumers` arrivals per phase of `empty` and `producers`
  /// arrivals of `full`. Called by one thread, or by `threads` threads that divide the stages.
  /// __syncthreads has to follow.
  __device__ void init(int consumers, int producers = 1, int thread = 0, int threads = 1) {
    for (int i = thread; i < kStages; i += threads) {
      ptx::mbarrier_init(&full[i], static_cast<std::uint32_t>(producers));
      ptx::mbarrier_init(&empty[i], static_cast<std::uint32_t>(consumers));
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
};

/// A position in a ring: stage and parity. Producer and consumers each have their own.
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
