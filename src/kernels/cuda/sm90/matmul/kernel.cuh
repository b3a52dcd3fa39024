#pragma once

#include <cstdint>

#include <cutlass/arch/reg_reconfig.h>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/sm90/matmul/factor_loader.cuh"
#include "src/kernels/cuda/sm90/matmul/narrow_consumer.cuh"
#include "src/kernels/cuda/sm90/matmul/producer.cuh"
#include "src/kernels/cuda/sm90/matmul/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The consumer warpgroups multiply the stages that the producer warp fills, and store finished
// tiles, as the stage descriptors say. While a tile is stored, the producer already loads the next
// one.
namespace tessera::cuda::sm90::matmul {

/// The active warps of the producer warpgroup.
enum class WarpRole { producer, scheduler, factor_loader };

/// Zeroes the depth of an operand's tile before `first` and from `last` on: it belongs to other
/// groups and may hold NaN.
template <int kThreads, class Element, int kExtent, Major kMajor>
__device__ __forceinline__ void clear_depth(tile::OperandTile<Element, kExtent, kMajor>& t,
                                            int first, int last, int thread) {
  // Chunks of eight elements: along the depth (Major::k), or along rows or columns at one depth
  // (Major::mn).
#pragma unroll 1
  for (int chunk = thread; chunk < kExtent * 8; chunk += kThreads) {
    const int line = chunk / 8;
    Element* at = t.data + chunk * 8;
    const int depth = kMajor == Major::k ? (chunk % 8 ^ line % 8) * 8 : line % tile::kLine;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int d = depth + (kMajor == Major::k ? i : 0);
      if (d < first || d >= last) at[i] = Element(0.0f);
    }
  }
}

/// Clears the part of a group's first or last step that belongs to other groups, then synchronises
/// both consumers.
template <class T>
__device__ __forceinline__ void clear_other_groups(typename T::ATile& a, typename T::BTile& b,
                                                   Task task, int thread) {
  clear_depth<T::kConsumers * kWarpgroup>(a, task.from, task.to, thread);
  clear_depth<T::kConsumers * kWarpgroup>(b, task.from, task.to, thread);
  tile::ptx::fence_proxy_async(tile::ptx::space_shared);
  asm volatile("barrier.cta.sync %0, %1;" ::"n"(int{kClearBarrier}), "n"(T::kConsumers * kWarpgroup)
               : "memory");
}

/// Stores a consumer's sums through TMA. Returns false, without storing, if TMA cannot write them:
/// the result is not writable by TMA, the tile is misaligned, or it reaches into the next group.
template <int kN>
__device__ __forceinline__ bool store_by_tma(const Arguments& args, product::Staging<kN>& staging,
                                             typename product::Staging<kN>::Panel* lent,
                                             const float (&sum)[kN / 2], int row,
                                             const Place& place, int thread, int barrier) {
  using product::TmaStore;
  if (args.tma_store == TmaStore::none) return false;
  const bool transposed = args.tma_store == TmaStore::by_columns;
  const bool inside = (args.walk.cut != Cut::rows || row + 64 <= place.row_end) &&
                      (args.walk.cut != Cut::cols || place.col + kN <= place.col_end);
  // TMA requires the contiguous coordinate at multiples of 16 bytes.
  if (!inside || (transposed ? row : place.col) % 8 != 0) return false;
  const int batch = args.finish.out.batch == 0 ? 0 : place.batch;
  const auto store = [&]<DType kOut, bool kTransposed>() {
    staging.template store<kOut, kTransposed>(args.out, lent, sum, row, place.col, batch, thread,
                                              barrier);
  };
  if (args.finish.out.dtype == DType::bf16) {
    transposed ? store.template operator()<DType::bf16, true>()
               : store.template operator()<DType::bf16, false>();
  } else {
    transposed ? store.template operator()<DType::f16, true>()
               : store.template operator()<DType::f16, false>();
  }
  return true;
}

/// Stores a consumer's part of a tile: through split-K reduction, TMA, or registers. Returns true
/// if TMA is still reading sums from the memory of `stage`.
template <class T>
__device__ __forceinline__ bool store_sums(const Arguments& args, typename T::Shared& shared,
                                           float (&sum)[T::kShape.n / 2], int consumer, int stage,
                                           int round, const Place& place, int thread) {
  const int row = place.row + consumer * tile::kLine;
  if constexpr (T::kCanSplit) {
    const int splits = args.walk.splits;
    if (splits > 1) {
      shared.split_k[consumer].reduce_and_store(
          args.finish, sum, static_cast<int>(blockIdx.x) % splits, splits, round, row, place.col,
          place.batch, place.row_end, place.col_end, thread);
      return false;
    }
  }
  if constexpr (T::kStaged) {
    using Staging = typename T::Staging;
    using Panel = typename Staging::Panel;
    static_assert(T::kConsumers * Staging::kLent * sizeof(Panel) <= T::BTile::kBytes);
    Panel* lent = reinterpret_cast<Panel*>(shared.b[stage].data) + consumer * Staging::kLent;
    if (store_by_tma<T::kShape.n>(args, shared.staging[consumer], lent, sum, row, place, thread,
                                  kStoreBarrier + consumer))
      return Staging::kLent > 0;
  }
  product::store_tile<T::kShape.n>(args.finish, sum, row, place.col, place.batch, place.row_end,
                                   place.col_end, thread);
  return false;
}

/// A consumer warpgroup: multiplies and stores one line (64 rows) of each tile.
template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int consumer, int thread) {
  constexpr int kN = T::kShape.n;
  tile::RingCursor<T::kStages> at;
  // Each warp arrives on its own: skipped steps do not synchronise the warps.
  const auto release = [&](int stage) {
    __syncwarp();
    if (thread % 32 == 0) tile::arrive(&shared.ring.empty[stage]);
  };
  int lent = -1;  // the stage from which TMA still reads stored sums
  const auto release_lent = [&] {
    if constexpr (T::Staging::kLent > 0) {
      if (lent >= 0) {
        T::Staging::wait_until_read(thread);
        release(lent);
        lent = -1;
      }
    }
  };
  int previous = -1;  // the stage that the MMAs in flight read
  // Advances `at` to the next stage that this consumer multiplies or that ends or stores a tile.
  const auto next_task = [&]() {
    while (true) {
      tile::wait(&shared.ring.full[at.stage], at.parity);
      const Task task = shared.stage_descriptors[at.stage].read_task();
      if (task.use != StageUse::multiply || task.consumers >> consumer & 1) return task;
      // Many steps may be skipped, so hold no stage meanwhile.
      release_lent();
      if (previous >= 0) {
        tile::mma_wait<0>();
        release(previous);
        previous = -1;
      }
      release(at.stage);
      at.advance();
    }
  };
  Task task = next_task();
  for (int round = 0; task.use != StageUse::end; ++round) {
    float sum[kN / 2];
    if (task.use != StageUse::multiply) {
#pragma unroll
      for (float& value : sum) value = 0.0f;
    }
    bool fresh = true;  // the tile's first MMA overwrites the sums
    while (task.use == StageUse::multiply) {
      if (task.from > 0 || task.to < tile::kLine)
        clear_other_groups<T>(shared.a[at.stage], shared.b[at.stage], task,
                              consumer * kWarpgroup + thread);
      const std::uint64_t a = shared.a[at.stage].view(consumer * tile::kLine);
      const std::uint64_t b = shared.b[at.stage].view(0);
      tile::mma_fence();
#pragma unroll
      for (int k = 0; k < tile::kMmasPerLine; ++k)
        tile::mma<typename T::Element, kN, T::kMajorA, T::kMajorB>(
            sum, a + k * T::ATile::kDepthStep, b + k * T::BTile::kDepthStep, fresh && k == 0);
      fresh = false;
      tile::mma_commit();
      release_lent();
      // The previous step's MMAs are done: release its stage.
      tile::mma_wait<1>();
      if (previous >= 0) release(previous);
      previous = at.stage;
      at.advance();
      task = next_task();
    }
    const Place place = shared.stage_descriptors[at.stage].place;
    release_lent();
    tile::mma_wait<0>();
    if (previous >= 0) release(previous);
    previous = -1;
    if (store_sums<T>(args, shared, sum, consumer, at.stage, round, place, thread)) {
      lent = at.stage;
    } else {
      release(at.stage);
    }
    at.advance();
    task = next_task();
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    matmul_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  const int splits = args.walk.splits;
  const int warpgroup = threadIdx.x / kWarpgroup;
  const bool loads = warpgroup == T::kConsumers;
  if (threadIdx.x == 0) {
    if constexpr (T::kCanSplit) {
      if (splits > 1)
        for (auto& reduction : shared.split_k) reduction.init(splits);
    }
    constexpr int kWarps = T::kConsumers * kWarpgroup / 32;
    if constexpr (T::kNarrow) {
      shared.ring.init(kWarps + (args.has_step_factors() ? 1 : 0));
      shared.factors.ring.init(kWarps);
    } else {
      shared.ring.init(kWarps);
    }
    shared.work_ring.init(1);
  }
  if (threadIdx.x == T::kConsumers * kWarpgroup) {
    tile::prefetch(args.a);
    tile::prefetch(args.b);
  }
  wait_for_grid_before();
  let_next_grid_begin();
  __syncthreads();
  // With split-K, no CTA may access the shared memory of a CTA that has not begun or has ended. The
  // producer warpgroup need not wait for the other CTAs to begin.
  if (splits > 1) {
    tile::cluster_arrive();
    if (!loads) tile::cluster_wait();
  }
  if (loads) {
    cutlass::arch::warpgroup_reg_dealloc<T::kProducerRegisters>();
    const int thread = threadIdx.x - T::kConsumers * kWarpgroup;
    const auto warp = static_cast<WarpRole>(thread / 32);
    if (warp == WarpRole::producer && tile::elect()) Producer<T>(args, shared).run();
    if (warp == WarpRole::scheduler) Scheduler<T>(args, shared, thread % 32).run();
    if constexpr (T::kNarrow) {
      if (warp == WarpRole::factor_loader && args.has_step_factors())
        FactorLoader<T>(args, shared, thread % 32).run();
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    if constexpr (T::kNarrow) {
      NarrowConsumer<T>(args, shared, warpgroup).run();
    } else {
      multiply_tiles<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
    }
    if constexpr (T::kStaged) T::Staging::finish(threadIdx.x % kWarpgroup);
  }
  if (splits > 1) {
    __syncwarp();
    if (loads) tile::cluster_wait();
    tile::ptx::barrier_cluster_arrive();  // all data sent to other CTAs has arrived
    tile::cluster_wait();
  }
}

}  // namespace tessera::cuda::sm90::matmul
