#pragma once

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/sm90/attention/producer.cuh"
#include "src/kernels/cuda/sm90/attention/scheduler.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention_backward/dq_consumer.cuh"
#include "src/kernels/cuda/sm90/attention_backward/dq_traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The kernel that computes dQ alone, by tiles of queries: it initialises the barriers and
// dispatches each warp to its role.
namespace tessera::cuda::sm90::attention_backward {

template <class T>
__device__ void init_dq_barriers(typename T::Shared& shared) {
  constexpr int kOfConsumers = T::kConsumers * forward::kWarpgroup / kLanes * tile::kWarpArrivals;
  shared.q_ring.init(kOfConsumers);
  shared.k_ring.init(kOfConsumers);
  shared.v_ring.init(kOfConsumers);
  shared.tile_ring.init(1 + kOfConsumers);  // the producer as well
  shared.v_post_ring.init(tile::kWarpArrivals);
  for (std::uint64_t& barrier : shared.v_landed) tile::ptx::mbarrier_init(&barrier, 1);
  tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    attention_dq_kernel(const __grid_constant__ DqArguments args) {
  extern __shared__ __align__(tile::kAtomBytes) char raw[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(raw);
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / forward::kWarpgroup, 0);
  if (threadIdx.x == 0) {
    tile::prefetch(args.q);
    tile::prefetch(args.k);
    tile::prefetch(args.v);
    tile::prefetch(args.dout);
  }
  if (threadIdx.x == forward::kWarpgroup) init_dq_barriers<T>(shared);
  // Four lanes of each warp, as the lanes of a warp initialise barriers one after the other.
  constexpr int kOfWarp = 4, kInitialising = T::kThreads / kLanes * kOfWarp;
  if (threadIdx.x % kLanes < kOfWarp)
    shared.step_ring.init(1, tile::kEachLaneArrives ? T::kPieces + 1 : 1,
                          threadIdx.x / kLanes * kOfWarp + threadIdx.x % kLanes, kInitialising);
  __syncthreads();
  if (warpgroup == T::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<T::kProducerRegisters>();
    const int thread = threadIdx.x - T::kConsumers * forward::kWarpgroup;
    const auto role = static_cast<forward::WarpRole>(thread / kLanes);
    if (role == forward::WarpRole::producer) {
      // What rows without a query hold would decide how a softcap of the others is approximated:
      // the largest score of a warp does.
      forward::clear_empty_rows<T>(shared.q[0], args.walk, thread, kLanes);
      __syncwarp();
      if (tile::elect()) forward::Producer<T, DqArguments>(args, shared).run();
    } else if (role == forward::WarpRole::scheduler) {
      forward::Scheduler<T>(args, shared, thread % kLanes).run();
      // The main kernel before this one may still run. It began to compute after all that both read
      // had been written; what follows this kernel may rely on its results.
      wait_for_grid_before();
    } else if (role == forward::WarpRole::v_post_process) {
      forward::post_process_v<T>(shared, thread % kLanes);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    if (warpgroup == 0)
      DqConsumer<T, 0>(args, shared).run();
    else
      DqConsumer<T, 1>(args, shared).run();
  }
}

}  // namespace tessera::cuda::sm90::attention_backward
