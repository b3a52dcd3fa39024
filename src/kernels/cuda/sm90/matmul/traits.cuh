#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/matmul/descriptors.cuh"
#include "src/kernels/cuda/sm90/matmul/split_k.cuh"
#include "src/kernels/cuda/sm90/matmul/walk.cuh"
#include "src/kernels/cuda/sm90/product/staging.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/row.hpp"

namespace tessera::cuda::sm90::matmul {

using tile::Major;

inline constexpr int kWarpgroup = 128;

/// All compile-time constants and types of a kernel.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  using ATile = tile::OperandTile<Element, kTile.m, kA>;
  // With Major::mn, panels are 64 columns wide, so a narrow tile loads columns that it does not
  // use.
  static constexpr int kLoadedN = kB == Major::mn && kTile.n < tile::kLine ? tile::kLine : kTile.n;
  using BTile = tile::OperandTile<Element, kLoadedN, kB>;
  // Each consumer multiplies one line of the tile: 64 rows.
  static constexpr int kConsumers = kTile.warpgroups, kLines = kConsumers;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kLineBytes = tile::kLine * tile::kLineBytes;
  static constexpr bool kCanSplit = planning::can_split(kTile);
  static constexpr int kProducerRegisters = 88, kConsumerRegisters = 208;
  static_assert(kTile.k == tile::kLine && kTile.m == kLines * tile::kLine && kConsumers == 2);

  struct Nothing {};
  using SplitKOfTile = std::conditional_t<kCanSplit, SplitKReduction<kTile.n>, Nothing>;
  // Results of tiles of 64 columns and more are staged in shared memory and stored by TMA.
  static constexpr bool kStaged = kTile.n >= tile::kLine;
  using Staging = product::Staging<kStaged ? kTile.n : tile::kLine>;
  static constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // Fewer stages fit if unused columns are loaded too.
  static constexpr int kStages =
      kTile.stages * (ATile::kBytes + kTile.n * tile::kLineBytes) / kStageBytes;
  // How many descriptors the scheduler may be ahead. With more, the last dynamic tiles are
  // distributed unevenly.
  static constexpr int kWorkDescriptors = 4;
  struct Shared {
    ATile a[kStages];
    BTile b[kStages];
    union {  // the sums of a split tile are not staged
      Staging staging[kConsumers];
      SplitKOfTile split_k[kConsumers];
    };
    tile::RingBarriers<kStages> ring;
    StageDescriptor stage_descriptors[kStages];
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
  int tiles;  // maximum number of output tiles
};

}  // namespace tessera::cuda::sm90::matmul
