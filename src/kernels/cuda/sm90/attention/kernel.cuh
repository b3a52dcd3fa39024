#pragma once

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/sm90/attention/consumer.cuh"
#include "src/kernels/cuda/sm90/attention/narrow_consumer.cuh"
#include "src/kernels/cuda/sm90/attention/producer.cuh"
#include "src/kernels/cuda/sm90/attention/scheduler.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/attention/turn_values.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The kernel: initialises the barriers and dispatches each warp to its role.
namespace tessera::cuda::sm90::attention {

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    attention_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(tile::kAtomBytes) char raw[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(raw);
  constexpr int kOfConsumer = kWarpgroup / 32 * kWarpArrivals;
  constexpr int kOfSplit = T::kSplitConsumers * kOfConsumer;  // arrivals per phase
  int warpgroup = threadIdx.x / kWarpgroup;
  // The shuffle tells the compiler that all lanes of a warp belong to one KV split.
  if constexpr (T::kKvSplits > 1) warpgroup = __shfl_sync(~0u, warpgroup, 0);
  if (threadIdx.x == 0) {
    shared.q_ring.init(T::kConsumersStore ? kOfSplit : 1);
    // Arrivals: the producer, and the store warp (or all consumer warps).
    shared.tile_ring.init(T::kConsumersStore ? 1 + kOfSplit : 2);
    shared.v_post_ring.init(kWarpArrivals);
    for (std::uint64_t& barrier : shared.v_landed) tile::ptx::mbarrier_init(&barrier, 1);
    if constexpr (!T::kConsumersStore)
      for (std::uint64_t& barrier : shared.results_staged)
        tile::ptx::mbarrier_init(&barrier, kOfSplit);
    if constexpr (T::kKvSplits > 1) {
      for (std::uint64_t& barrier : shared.split_exchange.full)
        tile::ptx::mbarrier_init(&barrier, kOfConsumer);
      for (std::uint64_t& barrier : shared.split_exchange.empty)
        tile::ptx::mbarrier_init(&barrier, kOfConsumer);
    }
    tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
  }
  if constexpr (T::kNarrow) {
    constexpr std::uint32_t kFourOnes = 0x38383838;  // 1 in e4m3
    constexpr int kWords = sizeof(shared.ones.data) / sizeof(kFourOnes);
    static_assert(kWords <= T::kThreads);
    if (threadIdx.x < kWords)
      reinterpret_cast<std::uint32_t*>(shared.ones.data)[threadIdx.x] = kFourOnes;
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  }
  if (threadIdx.x == 32) shared.k_ring.init(kOfSplit);
  if (threadIdx.x == 64) {
    if constexpr (T::kNarrow) {
      shared.landing.ring.init(kTurningWarps * kWarpArrivals);
      shared.v_ring.init(kOfSplit, args.v_by_keys ? 1 : kTurningWarps * T::kPieces * kWarpArrivals);
    } else {
      shared.v_ring.init(kOfSplit);
    }
  }
  // Four lanes of each warp, as the lanes of a warp initialise barriers one after the other.
  constexpr int kOfWarp = 4, kInitialising = T::kThreads / 32 * kOfWarp;
  if (threadIdx.x % 32 < kOfWarp)
    shared.step_ring.init(1, kEachLaneArrives ? T::kPieces + 1 : 1,
                          threadIdx.x / 32 * kOfWarp + threadIdx.x % 32, kInitialising);
  if (threadIdx.x == T::kConsumers * kWarpgroup) {
    tile::prefetch(args.q);
    tile::prefetch(args.k);
    tile::prefetch(args.v);
  }
  __syncthreads();
  // With ordered tiles (order.cu) the scheduler does this after earlier grids have ended.
  if (threadIdx.x == 0 && !args.walk.order) let_next_grid_begin();
  if (warpgroup == T::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<T::kProducerRegisters>();
    const int thread = threadIdx.x - T::kConsumers * kWarpgroup;
    const auto role = static_cast<WarpRole>(thread / 32);
    if (role == WarpRole::producer) {
      for (auto& q : shared.q) clear_empty_rows<T>(q, args.walk, thread, 32);
      __syncwarp();
      if (tile::elect()) Producer<T>(args, shared).run();
    } else if (role == WarpRole::scheduler) {
      Scheduler<T>(args, shared, thread % 32).run();
    } else if (role == WarpRole::v_post_process || T::kNarrow) {
      const bool second = role != WarpRole::v_post_process;
      if constexpr (T::kNarrow)
        if (!args.v_by_keys) ValuesTurner<T>(shared, second, thread % 32).run();
      if (second) return;
      if (!T::kNarrow || args.v_by_keys) post_process_v<T>(shared, thread % 32);
      if (args.walk.packed_q) {
        wait_for_grid_before();
        clear_rest(args.result, args.walk, thread % 32);
      }
    } else if (!T::kConsumersStore) {
      if (tile::elect()) store_results<T>(args, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    if constexpr (!T::kNarrow) {
      Consumer<T>(args, shared, warpgroup).run();
    } else if (T::kTransformsScores || args.result.lse) {
      NarrowConsumer<T, true>(args, shared, warpgroup).run();
    } else {
      NarrowConsumer<T, T::kTransformsScores>(args, shared, warpgroup).run();
    }
  }
}

}  // namespace tessera::cuda::sm90::attention
