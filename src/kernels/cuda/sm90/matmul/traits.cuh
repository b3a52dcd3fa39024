#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/sm90/matmul/notes.cuh"
#include "src/kernels/cuda/sm90/matmul/shares.cuh"
#include "src/kernels/cuda/sm90/matmul/walk.cuh"
#include "src/kernels/cuda/sm90/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/product/staging.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/row.hpp"

namespace tessera::cuda::sm90::matmul {

using tile::Major;

inline constexpr int kWarpgroup = 128;

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
  // Each consumer takes a line of the tile: 64 rows.
  static constexpr int kConsumers = kTile.warpgroups, kLines = kConsumers;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kLineBytes = tile::kLine * tile::kLineBytes;
  static constexpr bool kCanSplit = planning::can_split(kTile);
  static constexpr int kLoaderRegisters = 88, kConsumerRegisters = 208;
  static_assert(kTile.k == tile::kLine && kTile.m == kLines * tile::kLine && kConsumers == 2);

  struct Nothing {};
  using ShareOfTile = std::conditional_t<kCanSplit, Shares<kTile.n>, Nothing>;
  // Wide tiles leave through shared memory.
  static constexpr bool kStaged = kTile.n == 256;
  using StagingOfTile = std::conditional_t<kStaged, product::Staging, Nothing>;
  static constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // Where columns come along that nobody multiplies, fewer stages fit.
  static constexpr int kStages =
      kTile.stages * (ATile::kBytes + kTile.n * tile::kLineBytes) / kStageBytes;
  // That the scout may be ahead: further, and the last tiles are dealt unevenly.
  static constexpr int kOrders = 4;
  struct Shared {
    ATile a[kStages];
    BTile b[kStages];
    StagingOfTile staging[kConsumers];
    ShareOfTile shares[kConsumers];
    tile::RingBarriers<kStages> ring;
    Note notes[kStages];
    tile::RingBarriers<kOrders> ordered;
    Order<kLines> orders[kOrders];
  };
  // The base of dynamic shared memory may have to move up to an atom's boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
  static_assert(kSharedBytes <= 227 * 1024);
};

struct Arguments {
  CUtensorMap a, b, out;
  Walk walk;
  product::Finish finish;
  product::Carried carried;
  // Whether one copy brings the whole tile of A, or of B; else each line or panel has its own.
  bool whole_a, whole_b;
  int tiles;  // output tiles in all, at most
};

}  // namespace tessera::cuda::sm90::matmul
