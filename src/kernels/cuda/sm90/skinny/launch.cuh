#pragma once

#include <cuda_runtime.h>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/product/finish.hpp"
#include "src/kernels/cuda/sm90/product/dispatch.hpp"
#include "src/kernels/cuda/sm90/skinny/kernel.cuh"
#include "src/walk/views.hpp"

namespace tessera::cuda::sm90::skinny {

using planning::Call;
using product::Source;

/// A larger left operand does not fit into L2, and is loaded with evict_first.
inline constexpr std::int64_t kKeptBytes = 48 << 20;

/// Adds the lists of a sparse left operand.
inline void add_lists(Arguments& args, const BsrMatrix& matrix) {
  args.sparse = true;
  args.lists = planning::view_of(matrix);
  args.per_block = static_cast<int>(matrix.block_rows()) / args.height;
  args.parts = static_cast<int>(matrix.block_cols()) / tile::kLine;
  const Tensor& values = matrix.values;
  args.pool_step = values.rank == 4 && values.size(0) > 1 ? matrix.stored_blocks() : 0;
}

template <class T>
void launch_typed(const Call& call, const planning::SkinnyLayout& layout, const Operand& left,
                  const Source& a, const Source& b) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  Arguments args{};
  args.m = static_cast<int>(layout.rows);
  args.n = static_cast<int>(layout.cols);
  args.height = layout.height;
  args.splits = layout.splits;
  args.owned = (T::kN / kPiece + layout.splits - 1) / layout.splits;
  args.stages = layout.stages;
  args.together = layout.together;
  const auto steps = static_cast<int>((shape.k + tile::kLine - 1) / tile::kLine);
  args.each = steps / layout.splits;
  args.rest = steps % layout.splits;
  args.a_batch_step = (layout.swapped ? shape.b.batch : shape.a.batch) > 1 ? 1 : 0;
  args.b_batch_step = (layout.swapped ? shape.a.batch : shape.b.batch) > 1 ? 1 : 0;
  const std::int64_t a_bytes =
      a.map.inner * a.map.rows * a.map.batches * Precision<typename T::Element>::kBytes;
  args.policy = a_bytes > kKeptBytes ? tile::kStreams : tile::kStays;
  if (left.is_sparse()) add_lists(args, left.sparse);
  // With K = 0 nothing is read, and there may be nothing to encode a map for.
  if (a.map.data && b.map.data && a.map.batches > 0 && shape.k > 0) {
    args.a = tile::tensor_map(a.map, T::kMajorA == Major::k ? layout.height : tile::kLine);
    args.b = tile::tensor_map(b.map, layout.together > 1      ? planning::kSkinnySharedLines
                                     : T::kMajorB == Major::k ? T::kN
                                                              : tile::kLine);
  }
  args.finish = product::finish_of(std::get<MatmulProblem>(call.problem), layout.swapped);

  const int cluster = layout.splits * layout.together;  // one of the two is 1
  const std::int64_t blocks = (layout.row_tiles * layout.splits + cluster - 1) / cluster * cluster;
  constexpr int kAlignmentBytes = tile::kAtomBytes;  // the start may have to be moved up
  Kernel<skinny_kernel<T>>::launch(
      {.name = "skinny_kernel",
       .grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(layout.col_tiles),
                static_cast<unsigned>(layout.batches)},
       .threads = layout.units() * kWarpgroup + kProducerThreads,
       .stream = call.stream,
       .shared_bytes = layout.shared_bytes + kAlignmentBytes,
       .max_shared_bytes = planning::kSkinnyMaxRing + kAlignmentBytes,
       .cluster = cluster,
       .overlapped = true},
      args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& problem = std::get<MatmulProblem>(call.problem);
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return;
  const bool swapped = planning::skinny_swaps(shape);
  const Operand left = swapped ? transpose(problem.b) : problem.a;
  const Operand right = swapped ? transpose(problem.a) : problem.b;
  const Source a = left.is_sparse() ? product::pool_source(left.sparse, left.transposed)
                                    : product::dense_source(left.dense, left.transposed);
  const Source b = product::dense_source(right.dense, !right.transposed);
  const auto& layout = call.planned.layout.get<planning::SkinnyLayout>();
  product::with_types<kDtypes>(a, b, [&]<class Element, Major kA, Major kB>() {
    launch_typed<Traits<kTile, Element, kA, kB>>(call, layout, left, a, b);
  });
}

}  // namespace tessera::cuda::sm90::skinny
