#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <variant>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/product/bsr_sides.hpp"
#include "src/kernels/cuda/product/finish.hpp"
#include "src/kernels/cuda/sm80/product/kernel.cuh"
#include "src/kernels/cuda/sm80/product/plan.hpp"

namespace tessera::cuda::sm80::product {

using planning::Call;

template <class T>
void launch_typed(const Call& call, const Arguments& args) {
  const auto& layout = call.planned.layout.get<planning::Sm80ProductLayout>();
  Kernel<bsr_product_kernel<T>>::launch({.name = "bsr_product_kernel",
                                         .grid = grid_of(layout.ctas),
                                         .threads = T::kThreads,
                                         .stream = call.stream,
                                         .shared_bytes = T::kSharedBytes},
                                        args);
}

inline Arguments arguments_of(const Call& call, const cuda::product::BsrSides& sides) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::Sm80ProductLayout>();
  const Tensor& dense = sides.dense.dense;
  const int depth = dense.rank - (sides.dense.transposed ? 1 : 2);
  const int columns = dense.rank - (sides.dense.transposed ? 2 : 1);
  const std::int64_t bytes = size_of(dense.dtype);
  Arguments args{};
  args.dense = static_cast<const char*>(dense.data);
  args.depth_bytes = dense.stride(depth) * bytes;
  args.column_bytes = dense.stride(columns) * bytes;
  args.dense_batch_bytes = dense.rank == 3 && dense.size(0) > 1 ? dense.stride(0) * bytes : 0;
  args.walk = cuda::product::bsr_walk(call, sides);
  // The copies of pieces: to the next 16 rows of a line and, where blocks are contiguous along the
  // rows, to the next 16 of the depth.
  args.walk.copy_step = cuda::product::bsr_step(16 * args.walk.row_bytes);
  args.walk.round_step = cuda::product::bsr_step(16 * args.walk.depth_bytes);
  const auto& problem = std::get<MatmulProblem>(call.problem);
  args.finish = cuda::product::finish_of(problem, sides.swapped);
  args.rows = static_cast<int>(layout.rows);
  args.depth = static_cast<int>(shape.k);
  args.tiles = static_cast<int>(layout.tiles);
  if (shape.grouped) {
    args.groups = {planning::indices_of(problem.group_offsets), problem.group_offsets.stride(0),
                   static_cast<int>(shape.batch), args.walk.cols};
    args.whole = sides.whole();
  }
  return args;
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& layout = call.planned.layout.get<planning::Sm80ProductLayout>();
  if (layout.tiles == 0) return;
  const cuda::product::BsrSides sides(std::get<MatmulProblem>(call.problem));
  Arguments args = arguments_of(call, sides);
  const DType dtype = sides.dense.dense.dtype;
  const std::int64_t bytes = size_of(dtype);
  const bool dense_deep = args.depth_bytes == bytes, blocks_deep = args.walk.depth_bytes == bytes;
  if (!dense_deep) args.column_bytes = bytes;  // a single column may have any stride
  // There, copies that skip the columns beyond it would have addresses that are not aligned.
  if (dense_deep && args.walk.cols == 1) args.column_bytes = 0;
  with_multiplied<kDtypes>(dtype, [&]<class Element>() {
    const auto with = [&]<bool kDenseDeep, bool kBlocksDeep, bool kGrouped = false>() {
      if (piece_size(args.walk) == PieceSize::q8_u4)
        launch_typed<Traits<kTile, Element, kDenseDeep, kBlocksDeep, kGrouped, true>>(call, args);
      else
        launch_typed<Traits<kTile, Element, kDenseDeep, kBlocksDeep, kGrouped, false>>(call, args);
    };
    // With groups, rows of the dense side begin anywhere: they are contiguous along the depth.
    if (args.groups.offsets && blocks_deep) return with.template operator()<true, true, true>();
    if (args.groups.offsets) return with.template operator()<true, false, true>();
    if (dense_deep && blocks_deep) return with.template operator()<true, true>();
    if (dense_deep) return with.template operator()<true, false>();
    if (blocks_deep) return with.template operator()<false, true>();
    with.template operator()<false, false>();
  });
}

}  // namespace tessera::cuda::sm80::product
