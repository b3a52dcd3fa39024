#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/sddmm/panels.cuh"
#include "src/kernels/cuda/sm90/sddmm/share.cuh"
#include "src/kernels/cuda/sm90/sddmm/values.cuh"
#include "src/kernels/cuda/sm90/sddmm/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"
#include "src/kernels/row.hpp"

// The scheduler warp finds passes, the producer warp gathers their operands into a ring of stages,
// and two consumer warpgroups multiply and store. The CTAs of a cluster share loads (share.cuh).
namespace tessera::cuda::sm90::sddmm {

inline constexpr int kWarpgroup = 128;

/// The active warps of the producer warpgroup.
enum class WarpRole { producer, scheduler };

/// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kConsumerBarrier = 1  // one per consumer: + consumer
};
inline constexpr int kThreads = 3 * kWarpgroup;  // two consumers, one producer
inline constexpr int kProducerRegisters = 80, kConsumerRegisters = 208;
inline constexpr int kPasses = 2;  // passes that the scheduler is ahead

/// All compile-time constants and types of a kernel.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  static_assert(kTile.k == tile::kLine && kTile.warpgroups == 2);
  static_assert(kTile.m == 128 || kTile.m == 64 || kTile.m == 32 || kTile.m == 16);
  // wgmma has 64 rows: blocks with fewer rows become its columns instead.
  static constexpr bool kTransposed = kTile.m < 64;
  // Tiles of 128 rows are divided between the consumers by rows, others by gathered columns.
  static constexpr bool kCutRows = kTile.m == 128;
  static constexpr int kReach = 256;  // gathered columns per consumer
  static_assert(kTile.n == (kCutRows ? kReach : 2 * kReach));
  // A consumer's sums: kUnits parts of 64 x kN.
  static constexpr int kUnits = kTransposed ? kReach / 64 : 1;
  static constexpr int kN = kTransposed ? kTile.m : kReach;

  static constexpr int kRowsPanel = kTile.m < 64 ? kTile.m : 64;  // rows per panel of A
  static constexpr int kRowsBox = kA == Major::k ? kTile.m : kRowsPanel;
  static constexpr Form rows_form() { return form_of<Element>(kA, kRowsPanel); }
  static constexpr int kRowsBytes = kTile.m * tile::kLineBytes;
  struct Stage {
    alignas(tile::kAtomBytes) Element columns[kTile.n * tile::kLine];
    alignas(tile::kAtomBytes) Element rows[kTile.m * tile::kLine];
  };
  struct Shared {
    Stage stage[kTile.stages];
    tile::RingBarriers<kTile.stages> ring;
    tile::RingBarriers<kPasses> passes;
    GatherDescriptor gather[kPasses];
    PassRequest requests[kPasses][kMaxBlocks];  // one per CTA of the cluster
    std::uint64_t requests_arrived[kPasses];
  };
  // The start of dynamic shared memory may have to be moved up to a 1024-byte boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
};

struct Arguments {
  CUtensorMap a, b;
  Form columns_form;
  Walk walk;
  Values values;
  int cluster;      // CTAs per cluster
  int jobs, steps;  // steps: of depth, per pass
  int a_batch_step, b_batch_step;
};

/// The scheduler warp: finds this CTA's passes, agrees with the other schedulers of the cluster on
/// how they are gathered, and publishes them to the producer and the consumers. All CTAs of a
/// cluster continue until the last one is done.
template <class T>
__device__ __forceinline__ void schedule_passes(const Arguments& args, typename T::Shared& shared,
                                                int lane) {
  const int cluster = args.cluster, rank = blockIdx.x % cluster;
  tile::RingCursor<kPasses> at;
  // Publishes a pass. Returns whether any CTA of the cluster has passes left.
  const auto publish = [&](const Pass& pass, int begin) {
    for (int r = 0; r < cluster; ++r) {
      PassRequest& request = *in_block(&shared.requests[at.stage][rank], r);
      request.begin[lane] = begin;
      if (lane == 0) {
        request.columns = pass.columns;
        request.row = pass.row;
        request.a_matrix = pass.batch * args.a_batch_step;
        request.b_matrix = pass.batch * args.b_batch_step;
      }
    }
    __syncwarp();
    if (lane < cluster) arrive_in_block(&shared.requests_arrived[at.stage], lane);
    wait_for_cluster(&shared.requests_arrived[at.stage], at.parity);
    tile::wait(&shared.passes.empty[at.stage], at.parity ^ 1);
    const PassRequest(&requests)[kMaxBlocks] = shared.requests[at.stage];
    const bool more = __any_sync(kAllLanes, requests[lane % cluster].columns >= 0);
    GatherDescriptor& gather = shared.gather[at.stage];
    agree(requests, cluster, rank, lane, args.walk.piece_shift, gather);
    if (lane == 0) {
      gather.pass = pass;
      if (pass.columns < 0 && more) gather.pass.columns = 0;
    }
    __syncwarp();
    if (lane == 0) tile::arrive(&shared.passes.full[at.stage]);
    at.advance();
    return more;
  };
  for_each_pass<T::kShape.m>(args.walk, args.jobs, cluster, lane, publish);
  while (publish(Pass{.columns = -1}, 0)) {
  }
}

/// The producer warp: each lane loads one piece, and the first lane also the rows of A, for this
/// CTA or (multicast) for several.
template <class T>
__device__ __forceinline__ void load_passes(const Arguments& args, typename T::Shared& shared,
                                            int lane) {
  tile::RingCursor<kPasses> next;
  tile::RingCursor<T::kShape.stages> at;
  while (true) {
    tile::wait(&shared.passes.full[next.stage], next.parity);
    const GatherDescriptor& gather = shared.gather[next.stage];
    const int columns = gather.pass.columns, row = gather.pass.row;
    const int a_matrix = gather.pass.batch * args.a_batch_step;
    const int b_matrix = gather.pass.batch * args.b_batch_step;
    const unsigned rows_to = gather.rows_to;
    const bool exists = lane << args.walk.piece_shift < columns;
    const unsigned to = exists ? gather.to[lane] : 0;
    const int begin = gather.begin[lane];
    const int place = exists ? gather.place[lane] << args.walk.piece_shift : 0;
    __syncwarp();
    if (lane == 0) tile::arrive(&shared.passes.empty[next.stage]);
    next.advance();
    if (columns < 0) return;
    const int bytes = columns > 0 ? T::kRowsBytes + columns * tile::kLineBytes : 0;
    for (int step = 0; step < args.steps; ++step, at.advance()) {
      const int depth = step * tile::kLine;
      auto& stage = shared.stage[at.stage];
      std::uint64_t* full = &shared.ring.full[at.stage];
      // All CTAs of the cluster have released this stage of theirs.
      tile::wait(&shared.ring.empty[at.stage], at.parity ^ 1);
      if (lane == 0) {
        tile::arrive_expecting(full, bytes);
        for (int r = 0; rows_to != 0 && r < T::kShape.m; r += T::kRowsBox) {
          typename T::Element* rows = stage.rows + r * tile::kLine;
          if constexpr (T::kMajorA == Major::k) {
            copy_box_to(rows_to, rows, args.a, depth, row + r, a_matrix, full);
          } else {
            copy_box_to(rows_to, rows, args.a, row + r, depth, a_matrix, full);
          }
        }
      }
      __syncwarp();
      if (to != 0) {
        typename T::Element* piece = stage.columns + place * tile::kLine;
        if constexpr (T::kMajorB == Major::k) {
          copy_box_to(to, piece, args.b, depth, begin, b_matrix, full);
        } else {
          copy_box_to(to, piece, args.b, begin, depth, b_matrix, full);
        }
      }
    }
  }
}

/// Multiplies all of K for the first kWide of a consumer's columns. 0: the consumer has no columns
/// in this pass, and only releases the stages.
template <class T, int kWide>
__device__ __forceinline__ void multiply(const Arguments& args, typename T::Shared& shared,
                                         float (&sum)[T::kUnits][T::kN / 2],
                                         tile::RingCursor<T::kShape.stages>& at, int consumer,
                                         int thread) {
  const int row = T::kCutRows ? consumer * 64 : 0, column = T::kCutRows ? 0 : consumer * T::kReach;
  constexpr Form kRowsForm = T::rows_form();
  // Any CTA of the cluster may load into this stage, so all of them are told that it is free.
  const auto release = [&](int stage) {
    if (thread < args.cluster) release_to(&shared.ring.empty[stage], thread);
  };
  int in_flight = -1;  // the stage that the MMAs in flight may still read
  for (int i = 0; i < args.steps; ++i) {
    std::uint64_t* full = &shared.ring.full[at.stage];
    if (in_flight >= 0 && !is_complete(full, at.parity)) {
      // The next stage has not arrived: finish the last MMAs and release their stage now.
      tile::mma_wait<0>();
      release(in_flight);
      in_flight = -1;
    }
    tile::wait(full, at.parity);
    if constexpr (kWide == 0) {
      // No wgmma synchronises the warps here, and the first warp releases the stage for all four.
      asm volatile("bar.sync %0, 128;" ::"r"(kConsumerBarrier + consumer) : "memory");
    } else {
      const auto& stage = shared.stage[at.stage];
      const std::uint64_t rows = kRowsForm.view(stage.rows, row);
      const std::uint64_t columns = args.columns_form.view(stage.columns, column);
      tile::mma_fence();
#pragma unroll
      for (int k = 0; k < tile::kMmasPerLine; ++k) {
        const std::uint64_t r = rows + k * kRowsForm.depth_step;
        const std::uint64_t c = columns + k * args.columns_form.depth_step;
        const bool first = i == 0 && k == 0;
        if constexpr (T::kTransposed) {
#pragma unroll
          for (int u = 0; u < kWide / 64; ++u)
            tile::mma<typename T::Element, T::kN, T::kMajorB, T::kMajorA>(
                sum[u], c + u * (64 * tile::kLineBytes >> 4), r, first);
        } else {
          tile::mma<typename T::Element, kWide, T::kMajorA, T::kMajorB>(
              reinterpret_cast<float(&)[kWide / 2]>(sum[0]), r, c, first);
        }
      }
      tile::mma_commit();
      tile::mma_wait<1>();  // the previous step is done
    }
    if (in_flight >= 0) release(in_flight);
    in_flight = at.stage;
    at.advance();
  }
  tile::mma_wait<0>();
  if (in_flight >= 0) release(in_flight);
}

/// Stores a consumer's sums of a pass.
template <class T>
__device__ __forceinline__ void store(const Values& values, const GatherDescriptor& gather,
                                      float (&sum)[T::kUnits][T::kN / 2], int consumer,
                                      int thread) {
  const int row = T::kCutRows ? consumer * 64 : 0, column = T::kCutRows ? 0 : consumer * T::kReach;
#pragma unroll
  for (int u = 0; u < T::kUnits; ++u) {
    if (column + u * 64 >= gather.pass.columns) break;
    if (!values.wide) {
      store_any<T::kTransposed>(values, gather, sum[u], row, column + u * 64, thread);
    } else if constexpr (T::kTransposed) {
      store_transposed(values, gather, sum[u], column + u * 64, thread);
    } else {
      store_direct(values, gather, sum[u], row, column, thread);
    }
  }
}

/// A consumer warpgroup: multiplies and stores all passes.
template <class T>
__device__ __forceinline__ void multiply_passes(const Arguments& args, typename T::Shared& shared,
                                                int consumer, int thread) {
  tile::RingCursor<kPasses> next;
  tile::RingCursor<T::kShape.stages> at;
  while (true) {
    tile::wait(&shared.passes.full[next.stage], next.parity);
    const GatherDescriptor& gather = shared.gather[next.stage];
    const int columns = gather.pass.columns;
    if (columns < 0) return;
    float sum[T::kUnits][T::kN / 2];
    if (args.steps == 0) {
#pragma unroll
      for (auto& unit : sum)
#pragma unroll
        for (float& value : unit) value = 0.0f;
    }
    const int mine = columns - (T::kCutRows ? 0 : consumer * T::kReach);
    if (mine > T::kReach / 2) {
      multiply<T, T::kReach>(args, shared, sum, at, consumer, thread);
    } else if (mine > 0) {
      multiply<T, T::kReach / 2>(args, shared, sum, at, consumer, thread);
    } else {
      multiply<T, 0>(args, shared, sum, at, consumer, thread);
    }
    store<T>(args.values, gather, sum, consumer, thread);
    tile::arrive(&shared.passes.empty[next.stage]);
    next.advance();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    sddmm_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  if (threadIdx.x == 0) {
    shared.ring.init(2 * args.cluster);
    shared.passes.init(2 * kWarpgroup + 1);  // all consumer threads and the producer
    for (std::uint64_t& barrier : shared.requests_arrived)
      ptx::mbarrier_init(&barrier, static_cast<std::uint32_t>(args.cluster));
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  sync_cluster();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 2) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    const auto role = static_cast<WarpRole>(threadIdx.x / 32 % 4);
    const int lane = threadIdx.x % 32;
    if (role == WarpRole::producer) load_passes<T>(args, shared, lane);
    if (role == WarpRole::scheduler) schedule_passes<T>(args, shared, lane);
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    multiply_passes<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
  }
  sync_cluster();  // no CTA ends while others may access its shared memory
}

}  // namespace tessera::cuda::sm90::sddmm
