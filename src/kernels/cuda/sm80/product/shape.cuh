#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/product/groups.cuh"
#include "src/kernels/cuda/sm80/product/operands.hpp"
#include "src/kernels/cuda/sm80/product/plan.hpp"
#include "src/kernels/row.hpp"
#include "src/walk/bsr_walk.hpp"
#include "src/walk/groups.hpp"

// The sizes of a kernel row, its shared memory, and the kernel's parameters.
namespace tessera::cuda::sm80::product {

using cuda::product::Finish;
using planning::bsr::Walk;
static_assert(kDepth == planning::bsr::kLine);

/// The pieces of a tile in slices of depth, so that the warps read each list once.
template <int kGroups>
struct Window {
  static constexpr int kSlices = planning::bsr::kSlices;
  static constexpr std::uint32_t kAbsent = planning::bsr::kAbsent;

  /// Where the four quarters of a group's piece, 16 rows each, begin in memory, in units of 16
  /// bytes. [slice][group]
  uint4 pieces[kSlices][kGroups];
  std::uint32_t units[kSlices];  // not 0: some line has a block in the step

  __device__ static int steps(const Walk& walk) { return kSlices >> walk.slice_shift; }
  /// Of slice `slice`: a word per quarter.
  __device__ const std::uint32_t* words(int slice) const {
    return reinterpret_cast<const std::uint32_t*>(pieces[slice]);
  }
  __device__ std::uint32_t* words(int slice) {
    return reinterpret_cast<std::uint32_t*>(pieces[slice]);
  }
  __device__ static void lower(std::uint32_t* word, std::uint32_t value) { atomicMin(word, value); }
  __device__ static void add_bits(std::uint32_t* word, std::uint32_t bits) { atomicOr(word, bits); }
  /// By one of kThreads threads, all of which call this.
  template <int kThreads>
  __device__ void clear(int thread) {
    for (int i = thread; i < kSlices * kGroups; i += kThreads)
      pieces[i / kGroups][i % kGroups] = {kAbsent, kAbsent, kAbsent, kAbsent};
    for (int i = thread; i < kSlices; i += kThreads) units[i] = 0;
  }
};

/// Pieces that are stored or absent as a whole: quarters x units of 16.
enum class PieceSize : int { q8_u4, q4_u4, q2_u2, q1_u1 };

inline __host__ __device__ PieceSize piece_size(const Walk& walk) {
  if (walk.height_shift == 6 && walk.slice_shift == 0)
    // A tile begins with a row of blocks, as its rows divide a block's.
    return walk.lines_per_block % 2 == 0 ? PieceSize::q8_u4 : PieceSize::q4_u4;
  return walk.height_shift >= 5 && walk.slice_shift <= 1 ? PieceSize::q2_u2 : PieceSize::q1_u1;
}

/// A tile of the product as computed: its first line and column, the end of the columns that it may
/// read and write, its batch or group (negative: the tile does not exist).
struct alignas(16) TileSpan {
  int line, col, col_end, batch;
};

/// With groups, the tiles that a warp has found and is not done with, and where its search goes on.
/// While a tile is stored, the stream of steps has gone through the ends of up to kStages - 1 more
/// tiles and has begun the one after them.
template <int kStages>
struct FoundTiles {
  static constexpr int kTiles = kStages + 1;
  TileSpan tiles[kTiles];
  cuda::product::GroupSearch::Place place;
  int batch;  // of the last one
};

/// `kOfWhole`: all rows of a step are stored or absent together (q8_u4). Then two rows of warps
/// read less shared memory; else each warp has all rows, so that all have the same work.
template <planning::Tile kTile, class ElementType, bool kDenseIsDeep, bool kBlocksAreDeep,
          bool kOfGroups, bool kOfWhole>
struct Traits {
  using Element = ElementType;
  static constexpr bool kGrouped = kOfGroups;
  static constexpr planning::Tile kOfRow = kTile;
  static constexpr bool kDenseDeep = kDenseIsDeep, kBlocksDeep = kBlocksAreDeep;
  static constexpr int kM = kTile.m, kN = kTile.n, kStages = kTile.stages;
  static constexpr int kWarps = planning::sm80_product_warps(kTile), kThreads = kWarps * kLanes;
  static constexpr int kQuarters = kM / 16;
  static constexpr bool kWhole = kOfWhole;
  using Grid = WarpGrid<kM, kN, kWarps, kWhole ? 2 : 1>;
  static constexpr int kSums = kM * kN / kThreads;  // accumulators of a thread
  static_assert(kTile.k == kDepth && kQuarters * kUnits == 32);
  static_assert(kStages >= 2);

  using Dense = DenseSide<kN, kDenseDeep>;
  using Pieces = PieceSide<kM, kBlocksDeep>;
  using DenseShare = ChunkShare<typename Dense::Rows, kThreads>;
  using PieceShare = ChunkShare<typename Pieces::Rows, kThreads>;
  // A thread's copies of a step, in kParts parts.
  static constexpr int kParts = 4;
  static constexpr int kDenseCopies = Dense::Rows::kBytes / 16 / kThreads;
  static constexpr int kPieceCopies = Pieces::Rows::kBytes / 16 / kThreads;
  static_assert(kDenseCopies % kParts == 0 && kPieceCopies == kParts);

  using Window = sm80::product::Window<kM / planning::bsr::kGroup>;
  struct Stage {
    alignas(128) unsigned char dense[Dense::Rows::kBytes];
    alignas(128) unsigned char pieces[Pieces::Rows::kBytes];
  };
  struct Shared {
    Stage stages[kStages];
    Window window;
    FoundTiles<kStages> found[kWarps];
  };
  static constexpr int kSharedBytes = planning::sm80_product_shared_bytes(kTile);
  static_assert(int{sizeof(Shared)} <= kSharedBytes);
};

/// The kernel's parameters.
struct Arguments {
  const char* dense;
  std::int64_t column_bytes, depth_bytes, dense_batch_bytes;  // strides of the dense side
  Walk walk;
  Finish finish;
  int rows, depth;  // of the product
  int tiles;        // with groups: an upper bound
  // With groups: their columns, and whether each has a dense matrix, one block, instead of lists.
  planning::GroupView groups;
  bool whole;
};

}  // namespace tessera::cuda::sm80::product
