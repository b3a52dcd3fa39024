#pragma once

#include <cuda_runtime.h>

#include "src/kernels/cuda/bsr/kernel.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/product/finish.hpp"
#include "src/walk/views.hpp"

namespace tessera::cuda::bsr {

using planning::Call;

template <class T>
void launch_typed(const Call& call, const Arguments& args) {
  const auto& layout = call.planned.layout.get<planning::FewColumnsLayout>();
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  Kernel<few_columns_kernel<T>>::launch(
      {.name = "few_columns_kernel",
       .grid = grid_of(layout.ctas, layout.col_tiles, shape.batch),
       .threads = T::kWarps * kLanes,
       .stream = call.stream,
       .overlapped = layout.overlapped},
      args);
}

/// Whether a dense matrix is contiguous along the depth, its columns at multiples of 16 bytes.
inline bool lies_along_depth(const Arguments& args, std::int64_t bytes) {
  return args.depth_bytes == bytes && args.column_bytes % 16 == 0 &&
         args.dense_batch_bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(args.dense) % 16 == 0;
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& problem = std::get<MatmulProblem>(call.problem);
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::FewColumnsLayout>();
  if (layout.rows == 0 || layout.cols == 0) return;
  const bool swapped = problem.b.is_sparse();
  const BsrMatrix& matrix = (swapped ? problem.b : problem.a).sparse;
  const Operand right = swapped ? transpose(problem.a) : problem.b;  // [depth, columns]
  const Tensor &values = matrix.values, &dense = right.dense;
  const int depth = dense.rank - (right.transposed ? 1 : 2);
  const int columns = dense.rank - (right.transposed ? 2 : 1);
  const std::int64_t bytes = size_of(values.dtype);
  Arguments args{};
  args.lists = planning::view_of(matrix);
  args.values = static_cast<const char*>(values.data);
  args.dense = static_cast<const char*>(dense.data);
  args.block_bytes = values.stride(values.rank - 3) * bytes;
  args.row_bytes = values.stride(values.rank - 2) * bytes;
  args.depth_bytes = dense.stride(depth) * bytes;
  args.column_bytes = layout.cols > 1 ? dense.stride(columns) * bytes : 0;
  args.pool_bytes = values.rank == 4 && values.size(0) > 1 ? values.stride(0) * bytes : 0;
  args.dense_batch_bytes = dense.rank == 3 && dense.size(0) > 1 ? dense.stride(0) * bytes : 0;
  args.finish = product::finish_of(problem, swapped);
  args.rows = static_cast<int>(layout.rows);
  args.cols = static_cast<int>(layout.cols);
  args.strips = layout.strips;
  args.groups = static_cast<int>(matrix.block_rows()) / (kStripRows * layout.strips);
  args.block_depth = static_cast<int>(matrix.block_cols());
  const bool along_depth = lies_along_depth(args, bytes);
  with_multiplied<kDtypes>(values.dtype, [&]<class Element>() {
    const auto with = [&]<bool kAlongDepth>() {
      if (args.block_depth % 32 == 0) {
        launch_typed<Traits<kTile, Element, kAlongDepth, 32>>(call, args);
      } else {
        launch_typed<Traits<kTile, Element, kAlongDepth, 16>>(call, args);
      }
    };
    if (along_depth) {
      with.template operator()<true>();
    } else {
      with.template operator()<false>();
    }
  });
}

}  // namespace tessera::cuda::bsr
