#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm80/product/operands.hpp"
#include "src/kernels/cuda/sm80/product/plan.hpp"
#include "src/kernels/row.hpp"
#include "src/walk/bsr_walk.hpp"

// The sizes of a kernel row, its shared memory, and the kernel's parameters.
namespace tessera::cuda::sm80::product {

using cuda::product::Finish;
using planning::bsr::TileAt;
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

template <planning::Tile kTile, class ElementType, bool kDenseIsDeep, bool kBlocksAreDeep>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kOfRow = kTile;
  static constexpr bool kDenseDeep = kDenseIsDeep, kBlocksDeep = kBlocksAreDeep;
  static constexpr int kM = kTile.m, kN = kTile.n, kStages = kTile.stages;
  static constexpr int kWarps = planning::sm80_product_warps(kTile), kThreads = kWarps * kLanes;
  static constexpr int kQuarters = kM / 16;
  static constexpr int kSums = kM * kWarpColumns / kLanes;  // accumulators of a thread
  static_assert(kTile.k == kDepth && kN == kWarps * kWarpColumns && kQuarters * kUnits == 32);
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
  int tiles;
};

}  // namespace tessera::cuda::sm80::product
