#pragma once

#include "src/kernels/cuda/sm90/attention/arrivals.cuh"
#include "src/kernels/cuda/sm90/attention/consumer.cuh"
#include "src/kernels/cuda/sm90/attention/loader.cuh"
#include "src/kernels/cuda/sm90/attention/scout.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/grid.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// Which warp does what.
namespace tessera::cuda::sm90::attention {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    attention_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(tile::kAtomBytes) char raw[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(raw);
  constexpr int kOfConsumer = kWarpgroup / 32 * kWarpArrivals;
  constexpr int kOfTeam = T::kTeamSize * kOfConsumer;  // arrivals
  int warpgroup = threadIdx.x / kWarpgroup;
  // The compiler is told that all lanes of a warp are of one team.
  if constexpr (T::kTeams > 1) warpgroup = __shfl_sync(~0u, warpgroup, 0);
  if (threadIdx.x == 0) {
    shared.q_ring.init(T::kStoresItself ? kOfTeam : 1);
    shared.tile_ring.init(T::kStoresItself ? 1 + kOfTeam : 2);  // the loader, and who stores
    shared.clearing_ring.init(kWarpArrivals);
    for (std::uint64_t& barrier : shared.landed) tile::ptx::mbarrier_init(&barrier, 1);
    if constexpr (!T::kStoresItself)
      for (std::uint64_t& barrier : shared.results) tile::ptx::mbarrier_init(&barrier, kOfTeam);
    if constexpr (T::kTeams > 1) {
      for (std::uint64_t& barrier : shared.handed.full)
        tile::ptx::mbarrier_init(&barrier, kOfConsumer);
      for (std::uint64_t& barrier : shared.handed.empty)
        tile::ptx::mbarrier_init(&barrier, kOfConsumer);
    }
    tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
  }
  if (threadIdx.x == 32) shared.k_ring.init(kOfTeam);
  if (threadIdx.x == 64) shared.v_ring.init(kOfTeam);
  if (threadIdx.x < T::kStepNotes)
    shared.step_ring.init(1, kEachLaneArrives ? T::kPieces + 1 : 1, threadIdx.x, T::kStepNotes);
  if (threadIdx.x == T::kConsumers * kWarpgroup) {
    tile::prefetch(args.q);
    tile::prefetch(args.k);
    tile::prefetch(args.v);
  }
  if constexpr (T::kCounts) shared.rings.put_ones(threadIdx.x, T::kThreads);
  __syncthreads();
  // Where tiles are ordered, the scout does that later.
  if (threadIdx.x == 0 && !args.walk.order) tile::let_next_grid_begin();
  if (warpgroup == T::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<T::kLoaderRegisters>();
    const int thread = threadIdx.x - T::kConsumers * kWarpgroup;
    const int helper = thread / 32;
    if (helper == 0) {
      if (tile::elect()) Loader<T>(args, shared).run();
    } else if (helper == 1) {
      Scout<T>(args, shared, thread % 32).run();
    } else if (helper == 2) {
      clear_ragged_values<T>(shared, thread % 32);
    } else if (!T::kStoresItself) {
      if (tile::elect()) carry_results<T>(args, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    Consumer<T>(args, shared, warpgroup).run();
  }
}

}  // namespace tessera::cuda::sm90::attention
