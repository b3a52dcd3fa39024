#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/sm90/sddmm/panels.cuh"
#include "src/kernels/cuda/sm90/sddmm/share.cuh"
#include "src/kernels/cuda/sm90/sddmm/values.cuh"
#include "src/kernels/cuda/sm90/sddmm/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"
#include "src/kernels/row.hpp"

// One warp finds passes, one gathers what they name into a ring of stages, two warpgroups multiply
// and store. Blocks of a cluster fetch for each other (share.cuh).
namespace tessera::cuda::sm90::sddmm {

inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = 3 * kWarpgroup;  // two consumers, one producer
inline constexpr int kProducerRegisters = 80, kConsumerRegisters = 208;
inline constexpr int kPasses = 2;  // found ahead

/// Everything a kernel is compiled for.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  static_assert(kTile.k == tile::kLine && kTile.warpgroups == 2);
  static_assert(kTile.m == 128 || kTile.m == 64 || kTile.m == 32 || kTile.m == 16);
  // wgmma has 64 rows at least: lower rows of blocks take the side of its columns.
  static constexpr bool kTurned = kTile.m < 64;
  // 128 rows are cut along the rows between the consumers, others along the gathered columns.
  static constexpr bool kCutRows = kTile.m == 128;
  static constexpr int kReach = 256;  // gathered columns of one consumer
  static_assert(kTile.n == (kCutRows ? kReach : 2 * kReach));
  // A consumer's sums: kUnits pieces of 64 x kN.
  static constexpr int kUnits = kTurned ? kReach / 64 : 1;
  static constexpr int kN = kTurned ? kTile.m : kReach;

  static constexpr int kRowsPanel = kTile.m < 64 ? kTile.m : 64;  // where A is Major::mn
  static constexpr int kRowsBox = kA == Major::k ? kTile.m : kRowsPanel;
  static constexpr Form rows_form() { return form_of(kA, kRowsPanel); }
  static constexpr int kRowsBytes = kTile.m * tile::kLineBytes;
  struct Stage {
    alignas(tile::kAtomBytes) Element columns[kTile.n * tile::kLine];
    alignas(tile::kAtomBytes) Element rows[kTile.m * tile::kLine];
  };
  struct Shared {
    Stage stage[kTile.stages];
    tile::RingBarriers<kTile.stages> ring;
    tile::RingBarriers<kPasses> passes;
    Order order[kPasses];
    Mail mail[kPasses][kMaxBlocks];  // from each block of the cluster
    std::uint64_t mailed[kPasses];
  };
  // The base of dynamic shared memory may have to move up to an atom's boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
};

struct Arguments {
  CUtensorMap a, b;
  Form columns_form;
  Walk walk;
  Values values;
  int cluster;      // blocks of one
  int jobs, steps;  // steps of depth
  int a_batch_step, b_batch_step;
};

/// One warp: finds this block's passes, agrees with the cluster on how they are gathered, and hands
/// them to the loader and the consumers. All blocks of a cluster go on until the last one is done.
template <class T>
__device__ __forceinline__ void find_passes(const Arguments& args, typename T::Shared& shared,
                                            int lane) {
  const int cluster = args.cluster, rank = blockIdx.x % cluster;
  tile::RingCursor<kPasses> at;
  // Whether any block of the cluster has passes left.
  const auto hand_over = [&](const Pass& pass, int begin) {
    for (int r = 0; r < cluster; ++r) {
      Mail& mail = *in_block(&shared.mail[at.stage][rank], r);
      mail.begin[lane] = begin;
      if (lane == 0) {
        mail.columns = pass.columns;
        mail.row = pass.row;
        mail.a_matrix = pass.batch * args.a_batch_step;
        mail.b_matrix = pass.batch * args.b_batch_step;
      }
    }
    __syncwarp();
    if (lane < cluster) arrive_in_block(&shared.mailed[at.stage], lane);
    wait_for_cluster(&shared.mailed[at.stage], at.parity);
    tile::wait(&shared.passes.empty[at.stage], at.parity ^ 1);
    const Mail(&mail)[kMaxBlocks] = shared.mail[at.stage];
    const bool more = __any_sync(0xFFFFFFFFu, mail[lane % cluster].columns >= 0);
    Order& order = shared.order[at.stage];
    agree(mail, cluster, rank, lane, args.walk.piece_shift, order);
    if (lane == 0) {
      order.pass = pass;
      if (pass.columns < 0 && more) order.pass.columns = 0;
    }
    __syncwarp();
    if (lane == 0) tile::arrive(&shared.passes.full[at.stage]);
    at.advance();
    return more;
  };
  for_each_pass<T::kShape.m>(args.walk, args.jobs, cluster, lane, hand_over);
  while (hand_over(Pass{.columns = -1}, 0)) {
  }
}

/// One warp: each lane fetches one piece, the first one the rows of A as well, for this block or
/// for several.
template <class T>
__device__ __forceinline__ void load_passes(const Arguments& args, typename T::Shared& shared,
                                            int lane) {
  tile::RingCursor<kPasses> next;
  tile::RingCursor<T::kShape.stages> at;
  while (true) {
    tile::wait(&shared.passes.full[next.stage], next.parity);
    const Order& order = shared.order[next.stage];
    const int columns = order.pass.columns, row = order.pass.row;
    const int a_matrix = order.pass.batch * args.a_batch_step;
    const int b_matrix = order.pass.batch * args.b_batch_step;
    const unsigned rows_to = order.rows_to;
    const bool exists = lane << args.walk.piece_shift < columns;
    const unsigned to = exists ? order.to[lane] : 0;
    const int begin = order.begin[lane];
    const int place = exists ? order.place[lane] << args.walk.piece_shift : 0;
    __syncwarp();
    if (lane == 0) tile::arrive(&shared.passes.empty[next.stage]);
    next.advance();
    if (columns < 0) return;
    const int bytes = columns > 0 ? T::kRowsBytes + columns * tile::kLineBytes : 0;
    for (int step = 0; step < args.steps; ++step, at.advance()) {
      const int depth = step * tile::kLine;
      auto& stage = shared.stage[at.stage];
      std::uint64_t* full = &shared.ring.full[at.stage];
      // All blocks of the cluster are done with this stage of theirs.
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

/// All of K for the first kWide columns of a consumer's reach; 0: it has none in this pass, and
/// only gives the stages back.
template <class T, int kWide>
__device__ __forceinline__ void multiply(const Arguments& args, typename T::Shared& shared,
                                         float (&sum)[T::kUnits][T::kN / 2],
                                         tile::RingCursor<T::kShape.stages>& at, int consumer,
                                         int thread) {
  const int row = T::kCutRows ? consumer * 64 : 0, column = T::kCutRows ? 0 : consumer * T::kReach;
  constexpr Form kRowsForm = T::rows_form();
  // A stage may be filled by any block of the cluster: all are told that it is free.
  const auto give_back = [&](int stage) {
    if (thread < args.cluster) give_back_to(&shared.ring.empty[stage], thread);
  };
  int held = -1;  // the stage that the last step's multiplications may still read
  for (int i = 0; i < args.steps; ++i) {
    std::uint64_t* full = &shared.ring.full[at.stage];
    if (held >= 0 && !is_complete(full, at.parity)) {
      // Nothing to multiply yet: let the loader have the stage now.
      tile::mma_wait<0>();
      give_back(held);
      held = -1;
    }
    tile::wait(full, at.parity);
    if constexpr (kWide == 0) {
      // The first warp gives stages back for all four, and no wgmma holds them together.
      asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory");
    } else {
      const auto& stage = shared.stage[at.stage];
      const std::uint64_t rows = kRowsForm.view(stage.rows, row);
      const std::uint64_t columns = args.columns_form.view(stage.columns, column);
      tile::mma_fence();
#pragma unroll
      for (int k = 0; k < tile::kLine / 16; ++k) {
        const std::uint64_t r = rows + k * kRowsForm.depth_step;
        const std::uint64_t c = columns + k * args.columns_form.depth_step;
        const bool first = i == 0 && k == 0;
        if constexpr (T::kTurned) {
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
      tile::mma_wait<1>();  // the step before this one is done
    }
    if (held >= 0) give_back(held);
    held = at.stage;
    at.advance();
  }
  tile::mma_wait<0>();
  if (held >= 0) give_back(held);
}

template <class T>
__device__ __forceinline__ void store(const Values& values, const Order& order,
                                      float (&sum)[T::kUnits][T::kN / 2], int consumer,
                                      int thread) {
  const int row = T::kCutRows ? consumer * 64 : 0, column = T::kCutRows ? 0 : consumer * T::kReach;
#pragma unroll
  for (int u = 0; u < T::kUnits; ++u) {
    if (column + u * 64 >= order.pass.columns) break;
    if (!values.wide) {
      store_any<T::kTurned>(values, order, sum[u], row, column + u * 64, thread);
    } else if constexpr (T::kTurned) {
      store_turned(values, order, sum[u], column + u * 64, thread);
    } else {
      store_upright(values, order, sum[u], row, column, thread);
    }
  }
}

template <class T>
__device__ __forceinline__ void multiply_passes(const Arguments& args, typename T::Shared& shared,
                                                int consumer, int thread) {
  tile::RingCursor<kPasses> next;
  tile::RingCursor<T::kShape.stages> at;
  while (true) {
    tile::wait(&shared.passes.full[next.stage], next.parity);
    const Order& order = shared.order[next.stage];
    const int columns = order.pass.columns;
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
    store<T>(args.values, order, sum, consumer, thread);
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
    shared.passes.init(2 * kWarpgroup + 1);  // every consumer thread, and the loader
    for (std::uint64_t& mailed : shared.mailed)
      ptx::mbarrier_init(&mailed, static_cast<std::uint32_t>(args.cluster));
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  sync_cluster();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 2) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (warp == 0) load_passes<T>(args, shared, lane);
    if (warp == 1) find_passes<T>(args, shared, lane);
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    multiply_passes<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
  }
  sync_cluster();  // nobody leaves while others may still reach into its memory
}

}  // namespace tessera::cuda::sm90::sddmm
