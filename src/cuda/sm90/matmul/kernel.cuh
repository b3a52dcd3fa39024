#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "src/cuda/sm90/matmul/shares.cuh"
#include "src/cuda/sm90/matmul/walk.cuh"
#include "src/cuda/sm90/product/epilogue.cuh"
#include "src/cuda/tile/barrier.cuh"
#include "src/cuda/tile/copy.cuh"
#include "src/cuda/tile/wgmma.cuh"
#include "src/plan/tile_table.hpp"

// One warp loads what the walk names into a ring of stages; two warpgroups multiply. Tiles are
// dealt out in a fixed order, so the loader runs ahead into the next tile while this one is stored.
namespace tessera::cuda::sm90::matmul {

using tile::Major;

inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = 3 * kWarpgroup;  // two consumers, one producer

/// Everything a kernel is compiled for.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  using ATile = tile::OperandTile<Element, kTile.m, kA>;
  // Panels of columns are a line wide, so a narrow tile may bring columns that nobody multiplies.
  static constexpr int kLoadedN = kB == Major::mn && kTile.n < tile::kLine ? tile::kLine : kTile.n;
  using BTile = tile::OperandTile<Element, kLoadedN, kB>;
  // Tall tiles are cut along M between the consumers, flat ones along N.
  static constexpr bool kCutM = kTile.m == 128;
  static constexpr int kConsumerN = kCutM ? kTile.n : kTile.n / 2;
  static constexpr bool kCanSplit = planning::can_split(kTile);
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static_assert(kTile.k == tile::kLine && kTile.warpgroups == 2);
  static_assert(kTile.m == 64 || kTile.m == 128);

  struct NoShares {};
  using ShareOfTile = std::conditional_t<kCanSplit, Shares<kConsumerN>, NoShares>;
  static constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // Where columns come along that nobody multiplies, fewer stages fit.
  static constexpr int kStages =
      kTile.stages * (ATile::kBytes + kTile.n * tile::kLineBytes) / kStageBytes;
  struct Shared {
    ATile a[kStages];
    BTile b[kStages];
    ShareOfTile shares[2];
    tile::RingBarriers<kStages> ring;
  };
  // The base of dynamic shared memory may have to move up to an atom's boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
  static_assert(kSharedBytes <= 227 * 1024);
};

struct Arguments {
  CUtensorMap a, b;
  Walk walk;
  product::Finish finish;
  int tiles;  // output tiles in all, at most
};

/// Where the steps of a stage begin in the operands.
struct StageAt {
  int a_row, a_depth, a_matrix, b_col, b_depth, b_matrix;
};

/// One step of depth into a stage.
template <class T>
__device__ __forceinline__ void load_stage(const Arguments& args, typename T::ATile& a,
                                           typename T::BTile& b, const StageAt& at,
                                           std::uint64_t* full) {
  tile::arrive_expecting(full, T::kStageBytes);
  if constexpr (T::kMajorA == Major::k) {
    tile::copy_box(a.panel(0), args.a, at.a_depth, at.a_row, at.a_matrix, full);
  } else {
    for (int p = 0; p < T::ATile::kPanels; ++p)
      tile::copy_box(a.panel(p), args.a, at.a_row + p * tile::kLine, at.a_depth, at.a_matrix, full);
  }
  if constexpr (T::kMajorB == Major::k) {
    tile::copy_box(b.panel(0), args.b, at.b_depth, at.b_col, at.b_matrix, full);
  } else {
    for (int p = 0; p < T::BTile::kPanels; ++p)
      tile::copy_box(b.panel(p), args.b, at.b_col + p * tile::kLine, at.b_depth, at.b_matrix, full);
  }
}

/// One warp: its lanes read the list 32 entries at a time, its first lane issues the copies.
template <class T>
__device__ __forceinline__ void load_tiles(const Arguments& args, typename T::Shared& shared,
                                           int lane) {
  tile::RingCursor<T::kStages> at;
  const Walk& walk = args.walk;
  const int rank = static_cast<int>(blockIdx.x) % walk.splits;
  TileCursor<T::kShape.m, T::kShape.n> tiles(walk, args.tiles);
  for (TileAt tile; tiles.next(tile);) {
    const Walk::Steps steps = walk.steps(tile, rank);
    int begins = 0;
    for (int entry = 0; entry < steps.entries; ++entry) {
      if (entry % 32 == 0)
        begins = entry + lane < steps.entries ? walk.b_begin(steps, entry + lane) : 0;
      const int b_begin = __shfl_sync(0xFFFFFFFFu, begins, entry % 32);
      StageAt from{steps.row, steps.depth, walk.a_matrix(tile, steps, entry),
                   tile.col,  b_begin,     tile.batch * walk.b_batch_step};
      for (int part = 0; part < steps.parts; ++part, at.advance()) {
        if (lane != 0) continue;
        tile::wait(&shared.ring.empty[at.stage], at.parity ^ 1);
        load_stage<T>(args, shared.a[at.stage], shared.b[at.stage], from,
                      &shared.ring.full[at.stage]);
        from.a_depth += tile::kLine;
        from.b_depth += tile::kLine;
      }
      __syncwarp();
    }
  }
}

/// Zeros in the depth of a tile before `first` and from `last` on: that belongs to other groups,
/// and may hold NaN.
template <class Element, int kExtent, Major kMajor>
__device__ __forceinline__ void clear_depth(tile::OperandTile<Element, kExtent, kMajor>& t,
                                            int first, int last, int thread) {
  // Chunks of eight elements: along the depth, or along one depth's rows or columns.
#pragma unroll 1
  for (int chunk = thread; chunk < kExtent * 8; chunk += 2 * kWarpgroup) {
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

/// The first and the last step of a group, as both consumers see it before they multiply.
template <class T>
__device__ __forceinline__ void clear_other_groups(typename T::ATile& a, typename T::BTile& b,
                                                   int first, int last, int thread) {
  clear_depth(a, first, last, thread);
  clear_depth(b, first, last, thread);
  tile::ptx::fence_proxy_async(tile::ptx::space_shared);
  asm volatile("barrier.cta.sync 1, %0;" ::"n"(2 * kWarpgroup) : "memory");
}

template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int consumer, int thread) {
  constexpr int kN = T::kConsumerN;
  const int a_first = T::kCutM ? consumer * 64 : 0;
  const int b_first = T::kCutM ? 0 : consumer * kN;
  tile::RingCursor<T::kStages> at;
  const Walk& walk = args.walk;
  const int rank = static_cast<int>(blockIdx.x) % walk.splits;
  TileCursor<T::kShape.m, T::kShape.n> tiles(walk, args.tiles);
  int round = 0;
  for (TileAt tile; tiles.next(tile); ++round) {
    const Walk::Steps walked = walk.steps(tile, rank);
    const int steps = walked.count();
    float sum[kN / 2];
    if (steps == 0) {
#pragma unroll
      for (float& value : sum) value = 0.0f;
    }
    int previous = 0;
    for (int i = 0; i < steps; ++i) {
      tile::wait(&shared.ring.full[at.stage], at.parity);
      const int first = i == 0 ? walked.skip : 0;
      const int last = i == steps - 1 ? walked.valid : tile::kLine;
      if (first > 0 || last < tile::kLine)
        clear_other_groups<T>(shared.a[at.stage], shared.b[at.stage], first, last,
                              consumer * kWarpgroup + thread);
      const std::uint64_t a = shared.a[at.stage].view(a_first);
      const std::uint64_t b = shared.b[at.stage].view(b_first);
      tile::mma_fence();
#pragma unroll
      for (int k = 0; k < tile::kLine / 16; ++k)
        tile::mma<typename T::Element, kN, T::kMajorA, T::kMajorB>(
            sum, a + k * T::ATile::kDepthStep, b + k * T::BTile::kDepthStep, i == 0 && k == 0);
      tile::mma_commit();
      // The step before this one is done: its stage is free.
      tile::mma_wait<1>();
      if (i > 0 && thread == 0) tile::arrive(&shared.ring.empty[previous]);
      previous = at.stage;
      at.advance();
    }
    tile::mma_wait<0>();
    if (steps > 0 && thread == 0) tile::arrive(&shared.ring.empty[previous]);
    const int row = tile.row + a_first, col = tile.col + b_first;
    if constexpr (T::kCanSplit) {
      if (walk.splits > 1) {
        shared.shares[consumer].add_up_and_store(args.finish, sum, rank, walk.splits, round, row,
                                                 col, tile.batch, tile.row_end, tile.col_end,
                                                 thread);
        continue;
      }
    }
    product::store_tile<kN>(args.finish, sum, row, col, tile.batch, tile.row_end, tile.col_end,
                            thread);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  const int splits = args.walk.splits;
  const int warpgroup = threadIdx.x / kWarpgroup;
  const bool loads = warpgroup == 2;
  if (threadIdx.x == 0) {
    if constexpr (T::kCanSplit)
      for (auto& share : shared.shares) share.init(splits);
    shared.ring.init(2);
  }
  if (threadIdx.x == 2 * kWarpgroup) {
    tile::prefetch(args.a);
    tile::prefetch(args.b);
  }
  __syncthreads();
  // Nobody reaches into a block that has not begun, or has ended. The loader need not wait for the
  // others to begin.
  if (splits > 1) {
    cluster_arrive();
    if (!loads) cluster_wait();
  }
  if (loads) {
    cutlass::arch::warpgroup_reg_dealloc<T::kProducerRegisters>();
    const int lane = threadIdx.x - 2 * kWarpgroup;
    if (lane < 32) load_tiles<T>(args, shared, lane);
  } else {
    cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    multiply_tiles<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
  }
  if (splits > 1) {
    __syncwarp();
    if (loads) cluster_wait();
    cluster_arrive();
    cluster_wait();
  }
}

}  // namespace tessera::cuda::sm90::matmul
