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

/// Pieces that are stored or absent as a whole: quarters x units of 16.
enum class PieceSize : int { q8_u4, q4_u4, q2_u2, q1_u1 };

__device__ __forceinline__ PieceSize piece_size(const Walk& walk) {
  if (walk.height_shift == 6 && walk.slice_shift == 0)
    // A tile begins with a row of blocks, as its rows divide a block's.
    return walk.lines_per_block % 2 == 0 ? PieceSize::q8_u4 : PieceSize::q4_u4;
  return walk.height_shift >= 5 && walk.slice_shift <= 1 ? PieceSize::q2_u2 : PieceSize::q1_u1;
}

/// Stores a warp's part of a tile, 16 rows at a time.
template <class T>
__device__ __forceinline__ void store_sums(const Arguments& args, const float (&sum)[T::kSums],
                                           int index, int warp, int lane) {
  constexpr int kSets = kWarpColumns / 16;
  const TileAt tile = args.walk.template tile<T::kM, T::kN>(index);
  const int row = tile.line << args.walk.height_shift, col = tile.col + warp * kWarpColumns;
  if (col >= args.walk.cols) return;
#pragma unroll 1
  for (int quarter = 0; quarter < T::kQuarters && row + quarter * 16 < args.rows; ++quarter) {
    float x[kSets * 8];
    cuda::product::pick_sets<T::kSums * 2, kSets>(sum, quarter * kSets, x);
    cuda::product::store_tile<kWarpColumns, kSets, 16>(args.finish, x, row + quarter * 16, col,
                                                       tile.batch, args.rows, args.walk.cols, lane);
  }
}

/// While a step is multiplied, kStages - 1 later ones are loaded, also of the tiles that follow.
template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int warp, int lane) {
  constexpr std::uint32_t kStageBytes = sizeof(typename T::Stage);
  const std::uint32_t stages = shared_address(shared.stages);
  StepLoader<T> loader(args, shared.window, warp * kLanes + lane);
  std::uint32_t waiting[T::kStages - 1];  // masks of the steps that are being loaded
#pragma unroll
  for (int i = 0; i < T::kStages - 1; ++i) {
    loader.next();
    loader.copy(stages + i * kStageBytes);
    waiting[i] = loader.mask();
    commit_copies();
  }
  const PieceSize size = piece_size(args.walk);
  WarpTile<T> tile(stages, warp, lane);
  tile.clear();
  int stage = 0;
  for (int index = static_cast<int>(blockIdx.x); index < args.tiles;) {
    wait_for_groups<T::kStages - 2>();
    // The step has arrived, and all warps have left the step before, whose stage is free.
    __syncthreads();
    const std::uint32_t mask = __shfl_sync(kAllLanes, waiting[0], 0);
#pragma unroll
    for (int i = 0; i + 1 < T::kStages - 1; ++i) waiting[i] = waiting[i + 1];
    loader.next();
    const std::uint32_t free = stages + (stage == 0 ? T::kStages - 1 : stage - 1) * kStageBytes;
    if (mask != 0 && size == PieceSize::q8_u4) {
      // Copies are spread among the MMAs: they would hold up ldmatrix together.
      static_assert(T::kParts == kUnits);
      tile.template multiply_deep<0, T::kQuarters>(stage,
                                                   [&](int unit) { loader.copy(free, unit); });
    } else {
      loader.copy(free);
      if (mask == 0) {
        store_sums<T>(args, tile.sum, index, warp, lane);
        tile.clear();
        index += static_cast<int>(gridDim.x);
      } else if (size == PieceSize::q4_u4) {
        constexpr int kHalf = T::kQuarters / 2;
        if (mask & 1) tile.template multiply_deep<0, kHalf>(stage, [](int) {});
        if (mask >> 16 & 1) tile.template multiply_deep<kHalf, kHalf>(stage, [](int) {});
      } else if (size == PieceSize::q2_u2) {
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
  multiply_tiles<T>(args, shared, static_cast<int>(threadIdx.x) / kLanes,
                    static_cast<int>(threadIdx.x) % kLanes);
}

}  // namespace tessera::cuda::sm80::product
