#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/matmul/descriptors.cuh"
#include "src/kernels/cuda/sm90/matmul/factors.cuh"
#include "src/kernels/cuda/sm90/matmul/split_k.cuh"
#include "src/kernels/cuda/sm90/matmul/walk.cuh"
#include "src/kernels/cuda/sm90/product/staging.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/row.hpp"

namespace tessera::cuda::sm90::matmul {

using tile::Major;

inline constexpr int kWarpgroup = 128;

/// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kClearBarrier = 1,  // all consumers
  kStoreBarrier = 2   // one per consumer: + consumer
};

/// All compile-time constants and types of a kernel.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  // FP8: NarrowConsumer multiplies.
  static constexpr bool kNarrow = Precision<Element>::kBytes == 1;
  static constexpr int kDepth = kTile.k;  // of a step: a line of shared memory
  static constexpr int kDepthBytes = kDepth * Precision<Element>::kBytes;
  using ATile = tile::OperandTile<Element, kTile.m, kA, kDepthBytes>;
  // With Major::mn, panels are 64 columns wide, so a narrow tile loads columns that it does not
  // use.
  static constexpr int kLoadedN = kB == Major::mn && kTile.n < tile::kLine ? tile::kLine : kTile.n;
  using BTile = tile::OperandTile<Element, kLoadedN, kB, kDepthBytes>;
  // Each consumer multiplies one line of the tile, 64 rows; of FP8, a part of its columns.
  static constexpr int kConsumers = kTile.warpgroups, kLines = kTile.m / tile::kLine;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kLineBytes = tile::kLine * kDepthBytes;
  static constexpr bool kCanSplit = !kNarrow && planning::can_split(kTile);
  static constexpr int kProducerRegisters = kNarrow ? 72 : 88;
  static constexpr int kConsumerRegisters = kNarrow ? 216 : 208;
  static_assert(kTile.m == kLines * tile::kLine && kConsumers == 2 && kLines == 2);
  static_assert(kNarrow ? kTile.n % (kConsumers * tile::kLine) == 0 : kDepth == tile::kLine);

  struct Nothing {};
  using SplitKOfTile = std::conditional_t<kCanSplit, SplitKReduction<kTile.n>, Nothing>;
  // Results of tiles of 64 columns and more are staged in shared memory and stored by TMA.
  static constexpr bool kStaged = kTile.n >= tile::kLine;
  // FP8: pieces of 64 columns and all rows per consumer.
  static constexpr int kPieces = kNarrow ? kTile.n / (kConsumers * tile::kLine) : 1;
  static constexpr int kOwnPanels = kDepthBytes == tile::kLineBytes ? 2 : 3;
  using Staging = std::conditional_t<kNarrow, product::Staging<kTile.m, kPieces, kOwnPanels>,
                                     product::Staging<kStaged && !kNarrow ? kTile.n : tile::kLine>>;
  static constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // Fewer stages fit if unused columns are loaded too.
  static constexpr int kStages =
      kTile.stages * (ATile::kBytes + kTile.n * kDepthBytes) / kStageBytes;
  // How many descriptors the scheduler may be ahead. With more, the last dynamic tiles are
  // distributed unevenly.
  static constexpr int kWorkDescriptors = 4;
  using StageDescriptorOfType =
      std::conditional_t<kNarrow, NarrowStageDescriptor<kLines>, StageDescriptor>;
  // FP8: the factors of one step, ahead of the consumers.
  struct StepFactors {
    float left[kLines], right[kTile.n];
    tile::RingBarriers<1> ring;
  };
  using StepFactorsOfType = std::conditional_t<kNarrow, StepFactors, Nothing>;
  struct Shared {
    ATile a[kStages];
    BTile b[kStages];
    union {  // the sums of a split tile are not staged
      Staging staging[kConsumers];
      SplitKOfTile split_k[kConsumers];
    };
    tile::RingBarriers<kStages> ring;
    StageDescriptorOfType stage_descriptors[kStages];
    [[no_unique_address]] StepFactorsOfType factors;
    tile::RingBarriers<kWorkDescriptors> work_ring;
    WorkDescriptor<kLines> work_queue[kWorkDescriptors];
  };
  // The start of dynamic shared memory may have to be moved up to a 1024-byte boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
  static_assert(kSharedBytes <= 227 * 1024);
};

struct Arguments {
  CUtensorMap a, b, out;
  Walk walk;
  product::Finish finish;
  product::TmaStore tma_store;
  // Whether one box loads the whole tile of A, or of B; otherwise one box per line or panel.
  bool whole_a, whole_b;
  int tiles;            // maximum number of output tiles
  Factors left, right;  // of FP8

  __device__ __forceinline__ bool has_step_factors() const {
    return left.by_step() || right.by_step();
  }
};

}  // namespace tessera::cuda::sm90::matmul
