#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/copy.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm80/product/load.cuh"
#include "src/kernels/cuda/sm80/product/multiply.cuh"

// Products with one sparse side on every GPU since Ampere: several lines of blocks share the loads
// of the dense matrix. All warps read the lists, copy the steps ahead and multiply those that have
// arrived. Only stored blocks are loaded and multiplied.
namespace tessera::cuda::sm80::product {

/// Stores a warp's part of a tile, 16 rows x 32 columns at a time.
template <class T>
__device__ __forceinline__ void store_sums(const Arguments& args, const TileSpan& tile,
                                           const WarpTile<T>& sums, const typename T::Grid& grid,
                                           int lane) {
  using Sums = WarpTile<T>;
  constexpr int kSets = 2, kColumns = kSets * 16, kAcross = Sums::kPairs / kSets;
  const int first_row = (tile.line << args.walk.height_shift) + grid.first_row;
  const int first_col = tile.col + grid.first_column;
#pragma unroll 1
  for (int part = 0; part < Sums::kQuarters * kAcross; ++part) {
    const int row = first_row + part / kAcross * 16, col = first_col + part % kAcross * kColumns;
    if (row >= args.rows || col >= tile.col_end) continue;
    float x[kSets * 8];
    cuda::product::pick_sets<T::kSums * 2, kSets>(sums.sum, part * kSets, x);
    cuda::product::store_tile<kColumns, kSets, 16>(args.finish, x, row, col, tile.batch, args.rows,
                                                   tile.col_end, lane);
  }
}

/// While a step is multiplied, kStages - 1 later ones are loaded, also of the tiles that follow.
template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int warp, int lane) {
  constexpr std::uint32_t kStageBytes = sizeof(typename T::Stage);
  const std::uint32_t stages = shared_address(shared.stages);
  const Tiles<T> tiles(args, shared);
  StepLoader<T> loader(args, tiles, shared.window, warp * kLanes + lane);
  std::uint32_t waiting[T::kStages - 1];  // masks of the steps that are being loaded
#pragma unroll
  for (int i = 0; i < T::kStages - 1; ++i) {
    loader.next();
    loader.copy(stages + i * kStageBytes);
    waiting[i] = loader.mask();
    commit_copies();
  }
  const PieceSize size = piece_size(args.walk);
  const auto grid = T::Grid::of(warp);
  WarpTile<T> tile(stages, grid, lane);
  tile.clear();
  int stage = 0;
  int index = static_cast<int>(blockIdx.x);
  if (!tiles.exists(index)) return;
  while (index < args.tiles) {
    wait_for_groups<T::kStages - 2>();
    // The step has arrived, and all warps have left the step before, whose stage is free.
    __syncthreads();
    const std::uint32_t mask = __shfl_sync(kAllLanes, waiting[0], 0);
#pragma unroll
    for (int i = 0; i + 1 < T::kStages - 1; ++i) waiting[i] = waiting[i + 1];
    loader.next();
    const std::uint32_t free = stages + (stage == 0 ? T::kStages - 1 : stage - 1) * kStageBytes;
    // Copies are spread among the MMAs of large pieces: they would hold up ldmatrix together.
    static_assert(T::kParts == kUnits);
    const auto copy = [&](int unit) { loader.copy(free, unit); };
    if (mask == 0) {
      loader.copy(free);
      store_sums<T>(args, tiles.at(index), tile, grid, lane);
      tile.clear();
      index += static_cast<int>(gridDim.x);
      if (T::kGrouped && !tiles.exists(index)) break;
    } else if constexpr (T::kWhole) {
      tile.template multiply_deep<0, WarpTile<T>::kQuarters>(stage, copy);
    } else if (size == PieceSize::q4_u4) {
      constexpr int kHalf = T::kQuarters / 2;
      const bool first = (mask & 1) != 0;
      if (first) tile.template multiply_deep<0, kHalf>(stage, copy);
      if (mask >> 16 & 1)
        tile.template multiply_deep<kHalf, kHalf>(stage, [&](int unit) {
          if (!first) copy(unit);
        });
    } else {
      loader.copy(free);
      if (size == PieceSize::q2_u2) {
        tile.template multiply_pieces<2, 2>(stage, mask);
      } else {
        tile.template multiply_pieces<1, 1>(stage, mask);
      }
    }
    commit_copies();
    waiting[T::kStages - 2] = loader.mask();
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    bsr_product_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(raw);
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  multiply_tiles<T>(args, shared, warp, lane);
}

}  // namespace tessera::cuda::sm80::product
