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

/// Whether all columns of the dense side, or its rows, begin at multiples of `alignment` bytes.
inline bool begin_at(const Arguments& args, std::int64_t pitch, std::int64_t alignment) {
  return pitch % alignment == 0 && args.dense_batch_bytes % alignment == 0 &&
         reinterpret_cast<std::uintptr_t>(args.dense) % alignment == 0;
}

/// Whether a lane can load `count` adjacent columns of the dense side with one instruction.
inline bool loads_together(const Arguments& args, std::int64_t bytes, int count) {
  return args.column_bytes == bytes && args.cols % count == 0 &&
         begin_at(args, args.depth_bytes, count * bytes);
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
  args.strips_per_block = static_cast<int>(matrix.block_rows()) / kStripRows;
  args.num_strips = args.rows / kStripRows;
  args.block_depth = static_cast<int>(matrix.block_cols());
  with_multiplied<kDtypes>(values.dtype, [&]<class Element>() {
    const auto with = [&]<int kColumnsTogether>() {
      // Single elements of 32 of the depth do not fit into the registers.
      if constexpr (kColumnsTogether != 1) {
        if (args.block_depth % 32 == 0)
          return launch_typed<Traits<kTile, Element, kColumnsTogether, 32>>(call, args);
      }
      launch_typed<Traits<kTile, Element, kColumnsTogether, 16>>(call, args);
    };
    if (args.depth_bytes == bytes && begin_at(args, args.column_bytes, 16))
      return with.template operator()<0>();
    // For tiles of 8 or 16 columns, kMost is one of the other widths.
    constexpr int kMost = kTile.n / 8;
    if constexpr (kMost > 2) {
      if (loads_together(args, bytes, kMost)) return with.template operator()<kMost>();
    }
    if constexpr (kMost > 1) {
      if (loads_together(args, bytes, 2)) return with.template operator()<2>();
    }
    with.template operator()<1>();
  });
}

}  // namespace tessera::cuda::bsr
