#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/sm90/skinny/sums.cuh"
#include "src/kernels/cuda/sm90/skinny/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/grid.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"
#include "src/kernels/cuda/sm90/skinny/plan.hpp"

// Few columns: a stream of the left side, which is read once. A block of threads computes one tile,
// or a share of its depth. One warp loads the left side, another the right one; a warpgroup
// multiplies each 64 rows. How many rows, stages and blocks of a cluster there are is said at the
// launch.
namespace tessera::cuda::sm90::skinny {

using tile::Major;

inline constexpr int kLoaders = 64;  // threads

/// Everything a kernel is compiled for.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr int kN = kTile.n;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  static_assert(kTile.k == tile::kLine && kTile.m == kTile.warpgroups * kUnit);
  static_assert(kTile.stages <= 32);                                       // a lane initialises one
  static constexpr int kStages = kTile.stages, kUnits = kTile.warpgroups;  // at most
  using ATile = tile::OperandTile<Element, kUnit, kA>;                     // of one unit
  // Panels of columns are a line wide: a narrow tile may bring columns that nobody multiplies.
  using BTile = tile::OperandTile<Element, planning::skinny_loaded(kN, kB == Major::mn), kB>;
  // Where rows of the left side are contiguous, neighbouring tiles share what memory sends, and
  // with many columns they share those: they have to be in step.
  static constexpr bool kTurns = kA == Major::k && kN < 128;
  // Many columns: tiles of a cluster may share what they read of them, and multiplications take so
  // long that the next one is issued before the last one is waited for.
  static constexpr bool kMany = kN == 128;
  static constexpr int kThreads = kUnits * kWarpgroup + kLoaders;
  struct Barriers {
    std::uint64_t full[kStages], empty[kStages];
    std::uint64_t sums[kUnits];
    std::uint32_t nowhere[2];  // sparse: of 32 entries in turn, those that name no column
  };
};

/// A position in a ring whose length is known at the launch.
struct Cursor {
  int stages, stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

/// What the threads of a block share. A stage is the tile's rows of A, then B's tile.
template <class T>
struct Block {
  const Arguments& args;
  char* ring;
  typename T::Barriers& barriers;
  TileAt at;

  __device__ int a_bytes() const { return args.height * tile::kLineBytes; }
  __device__ char* stage(const Cursor& cursor) const {
    return ring + cursor.stage * (a_bytes() + T::BTile::kBytes);
  }

  /// One thread.
  __device__ __forceinline__ void load_a(const Share& share) {
    Cursor cursor{args.stages};
    int row = at.row, depth = share.begin * tile::kLine, matrix = at.batch * args.a_batch_step;
    int part = share.part;
    if (args.sparse) {
      row = share.row;
      depth = part * tile::kLine;
      matrix = share.matrix + share.entry;
    }
    for (int i = 0; i < share.count; ++i, cursor.advance()) {
      std::uint64_t* full = &barriers.full[cursor.stage];
      char* to = stage(cursor);
      tile::wait(&barriers.empty[cursor.stage], cursor.parity ^ 1);
      tile::arrive_expecting(full, a_bytes());
      if constexpr (T::kMajorA == Major::k) {
        tile::copy_box(to, args.a, depth, row, matrix, full, args.policy);
      } else {
        for (int r = 0; r < args.height; r += tile::kLine)
          tile::copy_box(to + r * tile::kLineBytes, args.a, row + r, depth, matrix, full,
                         args.policy);
      }
      depth += tile::kLine;
      if (args.sparse) {
        if (++part == args.parts) part = 0, depth = 0, ++matrix;
      } else if (depth == share.end_depth()) {
        depth = share.first * tile::kLine;
      }
    }
  }

  /// One of the parts that a cluster's blocks load for each other.
  __device__ __forceinline__ void load_part_for_all(char* to, int depth, int matrix,
                                                    std::uint64_t* full) {
    constexpr int kLines = planning::kSkinnySharedLines, kParts = tile::kLine / kLines;
    const int line = at.neighbour * kLines;
    const int col =
        T::kMajorB == Major::k ? at.col + line : at.col + at.neighbour / kParts * tile::kLine;
    const int row = depth + at.neighbour % kParts * kLines;
    const auto everybody = static_cast<std::uint16_t>((1 << args.together) - 1);
    to += line * tile::kLineBytes;
    if constexpr (T::kMajorB == Major::k) {
      tile::copy_box_to_all(to, args.b, depth, col, matrix, full, everybody);
    } else {
      tile::copy_box_to_all(to, args.b, col, row, matrix, full, everybody);
    }
  }

  /// One warp: its lanes read the list 32 entries at a time, the one that leads loads. `columns`
  /// are those of the first 32.
  __device__ __forceinline__ void load_b(const Share& share, int columns, int lane, bool leads) {
    Cursor cursor{args.stages};
    const int matrix = at.batch * args.b_batch_step;
    int depth = share.begin * tile::kLine, entry = share.entry, part = share.part, read = 0;
    int turn = 0;
    for (int i = 0; i < share.count; ++i, cursor.advance()) {
      if (args.sparse) {
        if (read == Share::kTogether) read = 0, columns = share.column(entry + lane);
        if (read == 0 && (part == 0 || i == 0)) {
          // Consumers are past the entries before those before: a ring is shorter than 32 steps.
          const std::uint32_t nowhere = __ballot_sync(0xFFFFFFFFu, columns < 0);
          if (leads) barriers.nowhere[turn] = nowhere;
          turn ^= 1;
        }
        depth = (__shfl_sync(0xFFFFFFFFu, columns, read) * args.parts + part) * tile::kLine;
        if (++part == args.parts) part = 0, ++entry, ++read;
      }
      if (leads) {
        std::uint64_t* full = &barriers.full[cursor.stage];
        char* to = stage(cursor) + a_bytes();
        tile::wait(&barriers.empty[cursor.stage], cursor.parity ^ 1);
        tile::arrive_expecting(full, T::BTile::kBytes);
        if (T::kMany && args.together > 1) {
          load_part_for_all(to, depth, matrix, full);
        } else if constexpr (T::kMajorB == Major::k) {
          tile::copy_box(to, args.b, depth, at.col, matrix, full);
        } else {
          for (int p = 0; p < T::BTile::kPanels; ++p)
            tile::copy_box(to + p * T::BTile::kPanelBytes, args.b, at.col + p * tile::kLine, depth,
                           matrix, full);
        }
      }
      __syncwarp();
      depth += tile::kLine;
      if (depth == share.end_depth()) depth = share.first * tile::kLine;
    }
  }

  /// One warpgroup: 64 rows of the tile, or fewer in the last one, which then reads past them.
  __device__ __forceinline__ void multiply(const Share& share, float (&sum)[T::kN / 2], int unit,
                                           int thread) {
    bool first = true;
    int held = -1;  // the stage of the step before, where it is multiplied still
    Cursor cursor{args.stages};
    const auto give_back = [&](int stage, int step) {
      if (thread == 0) tile::arrive(&barriers.empty[stage]);
      if constexpr (T::kMany) {
        // Who has ended must not be told any more: only where somebody waits for it.
        const int other = thread / 32;
        if (args.together > 1 && thread % 32 == 0 && other > 0 && step + args.stages < share.count)
          tile::arrive_there(&barriers.empty[stage], (at.neighbour + other) % args.together);
      }
    };
    const auto multiply_step = [&](int step) {
      tile::wait(&barriers.full[cursor.stage], cursor.parity);
      char* from = stage(cursor);
      const std::uint64_t a =
          reinterpret_cast<typename T::ATile*>(from + unit * T::ATile::kBytes)->view(0);
      const std::uint64_t b = reinterpret_cast<typename T::BTile*>(from + a_bytes())->view(0);
      tile::mma_fence();
#pragma unroll
      for (int k = 0; k < tile::kLine / 16; ++k)
        tile::mma<typename T::Element, T::kN, T::kMajorA, T::kMajorB>(
            sum, a + k * T::ATile::kDepthStep, b + k * T::BTile::kDepthStep, first && k == 0);
      first = false;
      tile::mma_commit();
      if constexpr (T::kMany) {
        tile::mma_wait<1>();
        if (held >= 0) give_back(held, step - 1);
        held = cursor.stage;
      } else {
        // Memory is what everybody waits for: the stage is better free than the tensor cores busy.
        tile::mma_wait<0>();
        give_back(cursor.stage, step);
      }
    };
    const auto skip_step = [&](int step) {
      tile::wait(&barriers.full[cursor.stage], cursor.parity);
      tile::mma_wait<0>();
      if (held >= 0) give_back(held, step);
      held = -1;
      // There is no wgmma to hold the warps together.
      asm volatile("barrier.cta.sync %0, 128;" ::"r"(1 + unit) : "memory");
      give_back(cursor.stage, step);
    };
    // Sparse: by 32 entries of the list. Blocks of those that name no column are not multiplied,
    // not even by zero: they may hold anything.
    const int most = Share::kTogether * args.parts;  // steps
    int before = share.part, turn = 0;               // steps that came before, of 32 entries
    for (int i = 0; i < share.count;) {
      std::uint32_t nowhere = 0;
      int end = share.count;
      if (args.sparse) {
        tile::wait(&barriers.full[cursor.stage], cursor.parity);
        nowhere = barriers.nowhere[turn];
        end = min(end, i + most - before);
      }
      if (nowhere == 0) {
        for (; i < end; ++i, cursor.advance()) multiply_step(i);
      } else {
        for (; i < end; ++i, ++before, cursor.advance())
          nowhere >> before / args.parts & 1 ? skip_step(i) : multiply_step(i);
      }
      before = 0, turn ^= 1;
    }
    tile::mma_wait<0>();
    if (first) {
#pragma unroll
      for (float& value : sum) value = 0.0f;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    skinny_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  __shared__ typename T::Barriers barriers;
  const int units = static_cast<int>(blockDim.x - kLoaders) / kWarpgroup;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool loads_a = warp == units * 4, loads_b = warp == units * 4 + 1;
  Block<T> block{args, &tile::at_atom<char>(raw), barriers, tile_of<T::kN>(args)};
  if (loads_a && tile::elect()) {
    tile::prefetch(args.a);
    for (int i = 0; i < args.stages; ++i) {
      tile::ptx::mbarrier_init(&barriers.full[i], 2);
      tile::ptx::mbarrier_init(&barriers.empty[i], units * args.together);
    }
    for (int unit = 0; unit < units; ++unit)
      Sums<T::kN>::expect(args, block.at.rank, &barriers.sums[unit]);
    tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
  }
  if (loads_b && tile::elect()) tile::prefetch(args.b);
  // All of this may run while the kernel before ends; its results are read from here on.
  tile::wait_for_grid_before();
  const Share share = share_of<T::kTurns>(args, block.at);
  // Where blocks load for each other, barriers have to be there in all of them first. Nobody else
  // waits for that.
  const bool meets = T::kMany && args.together > 1;
  if (loads_a) {
    __syncthreads();
    if (meets) cluster_arrive();
    if (tile::elect()) block.load_a(share);
    __syncwarp();
    if (meets) cluster_wait();
    tile::let_next_grid_begin();
  } else if (loads_b) {
    const int columns = args.sparse ? share.column(share.entry + lane) : 0;
    __syncthreads();
    if (meets) cluster_arrive(), cluster_wait();
    block.load_b(share, columns, lane, tile::elect());
  } else {
    __syncthreads();
    if (meets) cluster_arrive(), cluster_wait();
    const int unit = warp / 4, thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    float sum[T::kN / 2];
    block.multiply(share, sum, unit, thread);
    // Nobody is read from or sent to any more where stages are about to be overwritten; barriers
    // are there. Loaders that have ended count as arrived.
    cluster_arrive();
    cluster_wait();
    char* room = block.ring + unit * args.splits * args.owned * kPieceBytes;
    Sums<T::kN>(args, block.at, room, &barriers.sums[unit], unit).add_up_and_store(sum, thread);
  }
}

}  // namespace tessera::cuda::sm90::skinny
