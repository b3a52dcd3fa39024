#pragma once

#include <cuda.h>

#include <cstdint>

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
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

/// Everything a kernel is compiled for.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  using ATile = tile::OperandTile<Element, kTile.m, kA>;
  using BTile = tile::OperandTile<Element, kTile.n, kB>;
  // Tall tiles are cut along M between the consumers, flat ones along N.
  static constexpr bool kCutM = kTile.m == 128;
  static constexpr int kConsumerN = kCutM ? kTile.n : kTile.n / 2;
  static_assert(kTile.k == tile::kLine && kTile.warpgroups == 2);
  static_assert(kTile.m == 64 || kTile.m == 128);

  struct Shared {
    ATile a[kTile.stages];
    BTile b[kTile.stages];
    tile::RingBarriers<kTile.stages> ring;
  };
  static constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // The base of dynamic shared memory may have to move up to an atom's boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
};

struct Arguments {
  CUtensorMap a, b;
  Walk walk;
  product::Finish finish;
  int tiles;  // output tiles in all
};

/// One step of depth into a stage.
template <class T>
__device__ __forceinline__ void load_stage(const Arguments& args, typename T::ATile& a,
                                           typename T::BTile& b, int a_row, int a_depth,
                                           int a_matrix, int b_col, int b_depth, int b_matrix,
                                           std::uint64_t* full) {
  tile::arrive_expecting(full, T::kStageBytes);
  if constexpr (T::kMajorA == Major::k) {
    tile::copy_box(a.panel(0), args.a, a_depth, a_row, a_matrix, full);
  } else {
    for (int p = 0; p < T::ATile::kPanels; ++p)
      tile::copy_box(a.panel(p), args.a, a_row + p * tile::kLine, a_depth, a_matrix, full);
  }
  if constexpr (T::kMajorB == Major::k) {
    tile::copy_box(b.panel(0), args.b, b_depth, b_col, b_matrix, full);
  } else {
    for (int p = 0; p < T::BTile::kPanels; ++p)
      tile::copy_box(b.panel(p), args.b, b_col + p * tile::kLine, b_depth, b_matrix, full);
  }
}

/// One warp: its lanes read the list 32 entries at a time, its first lane issues the copies.
template <class T>
__device__ __forceinline__ void load_tiles(const Arguments& args, typename T::Shared& shared,
                                           int lane) {
  tile::RingCursor<T::kShape.stages> at;
  const Walk& walk = args.walk;
  for (int index = blockIdx.x; index < args.tiles; index += gridDim.x) {
    const TileAt tile = walk.template tile<T::kShape.m, T::kShape.n>(index);
    const Walk::Steps steps = walk.steps(tile);
    int begins = 0;
    for (int entry = 0; entry < steps.entries; ++entry) {
      if (entry % 32 == 0)
        begins = entry + lane < steps.entries ? walk.b_begin(steps, entry + lane) : 0;
      const int b_begin = __shfl_sync(0xFFFFFFFFu, begins, entry % 32);
      const int a_matrix = walk.a_matrix(tile, steps, entry);
      for (int part = 0; part < steps.parts; ++part, at.advance()) {
        if (lane != 0) continue;
        tile::wait(&shared.ring.empty[at.stage], at.parity ^ 1);
        const int depth = part * tile::kLine;
        load_stage<T>(args, shared.a[at.stage], shared.b[at.stage], steps.row, depth, a_matrix,
                      tile.col, b_begin + depth, tile.batch * walk.b_batch_step,
                      &shared.ring.full[at.stage]);
      }
      __syncwarp();
    }
  }
}

template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int consumer, int thread) {
  constexpr int kN = T::kConsumerN;
  const int a_first = T::kCutM ? consumer * 64 : 0;
  const int b_first = T::kCutM ? 0 : consumer * kN;
  tile::RingCursor<T::kShape.stages> at;
  const Walk& walk = args.walk;
  for (int index = blockIdx.x; index < args.tiles; index += gridDim.x) {
    const TileAt tile = walk.template tile<T::kShape.m, T::kShape.n>(index);
    const int steps = walk.steps(tile).count();
    float sum[kN / 2];
    if (steps == 0) {
#pragma unroll
      for (float& value : sum) value = 0.0f;
    }
    int previous = 0;
    for (int i = 0; i < steps; ++i) {
      tile::wait(&shared.ring.full[at.stage], at.parity);
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
    product::store_tile<kN>(args.finish, sum, tile.row + a_first, tile.col + b_first, tile.batch,
                            walk.m, walk.n, thread);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  const std::uint32_t base = tile::shared_address(raw);
  const std::uint32_t skip = (tile::kAtomBytes - base % tile::kAtomBytes) % tile::kAtomBytes;
  auto& shared = *reinterpret_cast<typename T::Shared*>(raw + skip);
  if (threadIdx.x == 0) shared.ring.init(2);
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == 2) {
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    const int lane = threadIdx.x - 2 * kWarpgroup;
    if (lane < 32) load_tiles<T>(args, shared, lane);
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    multiply_tiles<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
  }
}

}  // namespace tessera::cuda::sm90::matmul
