#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/skinny/plan.hpp"
#include "src/kernels/cuda/sm90/skinny/split_k.cuh"
#include "src/kernels/cuda/sm90/skinny/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// Products with few columns: the left operand is streamed, and each of its bytes is read once. A
// CTA computes one tile, or a part of its depth. One warp loads the left operand, another the right
// one; each consumer warpgroup (a unit) multiplies 64 rows. The launch chooses the number of rows,
// stages and CTAs per cluster.
namespace tessera::cuda::sm90::skinny {

using tile::Major;

/// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kUnitBarrier = 1  // one per unit: + unit
};

inline constexpr int kProducerThreads = 64;

/// All compile-time constants and types of a kernel.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr int kN = kTile.n;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  static_assert(kTile.k == tile::kLine && kTile.m == kTile.warpgroups * kUnit);
  static_assert(kTile.stages <= 32);  // see `missing` in load_b
  static constexpr int kStages = kTile.stages, kUnits = kTile.warpgroups;  // upper bounds
  using ATile = tile::OperandTile<Element, kUnit, kA>;                     // one unit's part
  // With Major::mn, panels are 64 columns wide, so a narrow tile loads columns that it does not
  // use.
  using BTile = tile::OperandTile<Element, planning::skinny_loaded(kN, kB == Major::mn), kB>;
  // Whether tiles begin at different depths (see share_of). Not if rows of the left operand are
  // contiguous (Major::mn), since adjacent tiles then share memory transactions, and not with 128
  // columns, which tiles share: both need tiles that stay in step.
  static constexpr bool kRotatesDepth = kA == Major::k && kN < 128;
  // 128 columns: tiles of a cluster may share their loads, and a step's MMAs take so long that the
  // next step's are issued before they are awaited.
  static constexpr bool kMany = kN == 128;
  static constexpr int kThreads = kUnits * kWarpgroup + kProducerThreads;
  struct Barriers {
    std::uint64_t full[kStages], empty[kStages];
    std::uint64_t arrived[kUnits];
    std::uint32_t missing[2];  // sparse: which of 32 entries name no column
  };
};

/// A position in a ring whose number of stages is known at launch.
struct Cursor {
  int stages, stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

/// State of a CTA. A stage holds the tile's rows of A, followed by its part of B.
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

  /// Loads A. Run by one thread.
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

  /// Loads this CTA's quarter of a step's B for all CTAs of the cluster (multicast).
  __device__ __forceinline__ void load_part_for_cluster(char* to, int depth, int matrix,
                                                        std::uint64_t* full) {
    constexpr int kLines = planning::kSkinnySharedLines, kParts = tile::kLine / kLines;
    const int line = at.neighbour * kLines;
    const int col =
        T::kMajorB == Major::k ? at.col + line : at.col + at.neighbour / kParts * tile::kLine;
    const int row = depth + at.neighbour % kParts * kLines;
    const auto all_ranks = static_cast<std::uint16_t>((1 << args.together) - 1);
    to += line * tile::kLineBytes;
    if constexpr (T::kMajorB == Major::k) {
      tile::copy_box_to_all(to, args.b, depth, col, matrix, full, all_ranks);
    } else {
      tile::copy_box_to_all(to, args.b, col, row, matrix, full, all_ranks);
    }
  }

  /// Loads B. Run by one warp: all lanes read the list, 32 entries at a time; the elected lane
  /// issues the loads. `columns`: this lane's entry of the first 32.
  __device__ __forceinline__ void load_b(const Share& share, int columns, int lane, bool elected) {
    Cursor cursor{args.stages};
    const int matrix = at.batch * args.b_batch_step;
    int depth = share.begin * tile::kLine, entry = share.entry, part = share.part, read = 0;
    int parity = 0;
    for (int i = 0; i < share.count; ++i, cursor.advance()) {
      if (args.sparse) {
        if (read == Share::kTogether) read = 0, columns = share.column(entry + lane);
        if (read == 0 && (part == 0 || i == 0)) {
          // Consumers have finished with the bitmask of two batches ago, since a ring has fewer
          // than 32 stages.
          const std::uint32_t missing = __ballot_sync(kAllLanes, columns < 0);
          if (elected) barriers.missing[parity] = missing;
          parity ^= 1;
        }
        depth = (__shfl_sync(kAllLanes, columns, read) * args.parts + part) * tile::kLine;
        if (++part == args.parts) part = 0, ++entry, ++read;
      }
      if (elected) {
        std::uint64_t* full = &barriers.full[cursor.stage];
        char* to = stage(cursor) + a_bytes();
        tile::wait(&barriers.empty[cursor.stage], cursor.parity ^ 1);
        tile::arrive_expecting(full, T::BTile::kBytes);
        if (T::kMany && args.together > 1) {
          load_part_for_cluster(to, depth, matrix, full);
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

  /// A consumer warpgroup: 64 rows of the tile. The last unit of a tile may have fewer; it then
  /// reads past them.
  __device__ __forceinline__ void multiply(const Share& share, float (&sum)[T::kN / 2], int unit,
                                           int thread) {
    bool first = true;
    int in_flight = -1;  // the stage that the MMAs in flight read
    Cursor cursor{args.stages};
    const auto release = [&](int stage, int step) {
      if (thread == 0) tile::arrive(&barriers.empty[stage]);
      if constexpr (T::kMany) {
        // A CTA that has ended must not be signalled: signal only if it will wait for this stage
        // again.
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
      for (int k = 0; k < tile::kMmasPerLine; ++k)
        tile::mma<typename T::Element, T::kN, T::kMajorA, T::kMajorB>(
            sum, a + k * T::ATile::kDepthStep, b + k * T::BTile::kDepthStep, first && k == 0);
      first = false;
      tile::mma_commit();
      if constexpr (T::kMany) {
        tile::mma_wait<1>();
        if (in_flight >= 0) release(in_flight, step - 1);
        in_flight = cursor.stage;
      } else {
        // Memory is the bottleneck: releasing the stage early matters more than busy tensor cores.
        tile::mma_wait<0>();
        release(cursor.stage, step);
      }
    };
    const auto skip_step = [&](int step) {
      tile::wait(&barriers.full[cursor.stage], cursor.parity);
      tile::mma_wait<0>();
      if (in_flight >= 0) release(in_flight, step);
      in_flight = -1;
      // No wgmma synchronises the warps here.
      asm volatile("barrier.cta.sync %0, 128;" ::"r"(kUnitBarrier + unit) : "memory");
      release(cursor.stage, step);
    };
    // Sparse: 32 list entries at a time. Blocks of entries that name no column are not multiplied,
    // not even by zero: they may hold NaN.
    const int max_steps = Share::kTogether * args.parts;
    int before = share.part, parity = 0;  // before: steps done of these 32 entries
    for (int i = 0; i < share.count;) {
      std::uint32_t missing = 0;
      int end = share.count;
      if (args.sparse) {
        tile::wait(&barriers.full[cursor.stage], cursor.parity);
        missing = barriers.missing[parity];
        end = min(end, i + max_steps - before);
      }
      if (missing == 0) {
        for (; i < end; ++i, cursor.advance()) multiply_step(i);
      } else {
        for (; i < end; ++i, ++before, cursor.advance())
          missing >> before / args.parts & 1 ? skip_step(i) : multiply_step(i);
      }
      before = 0, parity ^= 1;
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
  const int units = static_cast<int>(blockDim.x - kProducerThreads) / kWarpgroup;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_producer_a = warp == units * 4, is_producer_b = warp == units * 4 + 1;
  Block<T> block{args, &tile::at_atom<char>(raw), barriers, tile_of<T::kN>(args)};
  if (is_producer_a && tile::elect()) {
    tile::prefetch(args.a);
    for (int i = 0; i < args.stages; ++i) {
      tile::ptx::mbarrier_init(&barriers.full[i], 2);
      tile::ptx::mbarrier_init(&barriers.empty[i], units * args.together);
    }
    for (int unit = 0; unit < units; ++unit)
      SplitKReduction<T::kN>::expect(args, block.at.rank, &barriers.arrived[unit]);
    tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
  }
  if (is_producer_b && tile::elect()) tile::prefetch(args.b);
  // Everything up to here may run while the previous grid ends; its results are read only from here
  // on.
  wait_for_grid_before();
  const Share share = planning::skinny::share_of<T::kRotatesDepth>(args, block.at);
  // If CTAs load for each other, all of them must have initialised their barriers first. Otherwise
  // CTAs do not wait for each other here.
  const bool syncs_cluster = T::kMany && args.together > 1;
  if (is_producer_a) {
    __syncthreads();
    if (syncs_cluster) tile::cluster_arrive();
    if (tile::elect()) block.load_a(share);
    __syncwarp();
    if (syncs_cluster) tile::cluster_wait();
    let_next_grid_begin();
  } else if (is_producer_b) {
    const int columns = args.sparse ? share.column(share.entry + lane) : 0;
    __syncthreads();
    if (syncs_cluster) tile::cluster_arrive(), tile::cluster_wait();
    block.load_b(share, columns, lane, tile::elect());
  } else {
    __syncthreads();
    if (syncs_cluster) tile::cluster_arrive(), tile::cluster_wait();
    const int unit = warp / 4, thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    float sum[T::kN / 2];
    block.multiply(share, sum, unit, thread);
    // From here on no CTA of the cluster reads or sends operands, so stages can be overwritten, and
    // all barriers are initialised. Producer warps that have ended count as arrived.
    tile::cluster_arrive();
    tile::cluster_wait();
    char* room = block.ring + unit * args.splits * args.owned * kPieceBytes;
    SplitKReduction<T::kN>(args, block.at, room, &barriers.arrived[unit], unit)
        .reduce_and_store(sum, thread);
  }
}

}  // namespace tessera::cuda::sm90::skinny
