#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/product/finish.hpp"
#include "src/kernels/cuda/sm90/bsr/kernel.cuh"
#include "src/kernels/cuda/sm90/product/dispatch.hpp"

#include "src/kernels/cuda/sm90/bsr/plan.hpp"
#include "src/walk/transposed_lists.hpp"

namespace tessera::cuda::sm90::bsr {

using planning::Call;
using product::Source;

/// The two sides of a product: the sparse side gives the rows of the product as computed, the dense
/// side its columns.
struct Sides {
  bool swapped;    // b is sparse
  Operand sparse;  // [rows, depth]
  Operand dense;   // [depth, columns]
  Source blocks, columns;

  explicit Sides(const MatmulProblem& problem)
      : swapped(problem.b.is_sparse()),
        sparse(swapped ? transpose(problem.b) : problem.a),
        dense(swapped ? transpose(problem.a) : problem.b),
        blocks(product::pool_source(sparse.sparse, sparse.transposed)),
        columns(product::dense_source(dense.dense, !dense.transposed)) {}
  int block_rows() const {
    const BsrMatrix& m = sparse.sparse;
    return static_cast<int>(sparse.transposed ? m.block_cols() : m.block_rows());
  }
  int block_depth() const {
    const BsrMatrix& m = sparse.sparse;
    return static_cast<int>(sparse.transposed ? m.block_rows() : m.block_cols());
  }
};

/// The largest power of two up to `most` that divides n (a multiple of 16).
inline int largest_part(int n, int most) {
  int part = most;
  while (n % part != 0) part /= 2;
  return part;
}

inline Walk walk_of(const Call& call, const Sides& sides) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  core::Carver carver(call.schedule);
  const planning::GpuMatmulSchedule schedule = planning::carve_gpu_matmul_schedule(carver, shape);
  const BsrMatrix& matrix = sides.sparse.sparse;
  Walk walk;
  walk.lists = planning::walk_of(matrix, sides.swapped ? schedule.b : schedule.a);
  const tile::MatrixMap& map = sides.blocks.map;
  walk.blocks = static_cast<const char*>(map.data);
  const std::int64_t bytes = size_of(map.dtype);
  const bool deep = sides.blocks.major == Major::k;
  walk.row_bytes = deep ? map.row_stride * bytes : bytes;
  walk.depth_bytes = deep ? bytes : map.row_stride * bytes;
  const int height = largest_part(sides.block_rows(), kGroup);
  walk.height_shift = height == 64 ? 6 : height == 32 ? 5 : 4;
  walk.lines = static_cast<int>((sides.swapped ? shape.n : shape.m) / height);
  walk.cols = static_cast<int>(sides.swapped ? shape.m : shape.n);
  walk.steps = static_cast<int>((shape.k + tile::kLine - 1) / tile::kLine);
  walk.batches = static_cast<int>(shape.batch);
  walk.dense_batch_step = (sides.swapped ? shape.a.batch : shape.b.batch) > 1 ? 1 : 0;
  const Tensor& values = matrix.values;
  walk.pool_step =
      values.rank == 4 && values.size(0) > 1 ? static_cast<int>(matrix.stored_blocks()) : 0;
  walk.lines_per_block = sides.block_rows() / height;
  const int piece = largest_part(sides.block_depth(), tile::kLine);
  walk.slice_shift = piece == 64 ? 0 : piece == 32 ? 1 : 2;
  walk.pieces_per_block = sides.block_depth() / piece;
  walk.boxed =
      piece >= 32 && (deep ? height >= 32 : height == kGroup) && sides.block_rows() <= UINT16_MAX;
  // Positions in the pool are in units of 16 bytes; the largest number means "none".
  const auto step = [](std::int64_t distance) { return static_cast<std::uint32_t>(distance / 16); };
  walk.block_step = step(map.batch_stride * bytes);
  walk.line_step = step(height * walk.row_bytes);
  walk.piece_step = step(piece * walk.depth_bytes);
  walk.copy_step = step(deep ? 16 * walk.row_bytes : 256 / height * walk.depth_bytes);
  walk.round_step = step(deep ? 256 / piece * walk.row_bytes : kUnit * walk.depth_bytes);
  return walk;
}

/// Encodes the map for TMA stores in args.out if TMA can write the result, in lines of 64 elements
/// along the contiguous dimension.
inline TmaStore tma_store(Arguments& args) {
  const product::Finish& finish = args.finish;
  if (!finish.plain() || !(finish.wide || finish.tall)) return TmaStore::none;
  const Plane& out = finish.out;
  tile::MatrixMap map{out.data, out.dtype, args.rows, args.walk.cols, 1, out.row, out.batch};
  if (!finish.wide) {
    std::swap(map.inner, map.rows);
    map.row_stride = out.col;
  }
  if (out.batch != 0) map.batches = args.walk.batches;
  if (!tile::tma_writable(map)) return TmaStore::none;
  args.out = tile::tensor_map(map, 16);
  return finish.wide ? TmaStore::by_rows : TmaStore::by_columns;
}

template <class T>
void launch_typed(const Call& call, const Sides& sides) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  const auto& problem = std::get<MatmulProblem>(call.problem);
  const auto& layout = call.planned.layout.get<planning::BsrLayout>();
  Arguments args{};
  args.walk = walk_of(call, sides);
  args.rows = static_cast<int>(layout.rows);
  // The accumulators hold the transpose: the dense columns are their rows.
  args.finish = product::finish_of(problem, !sides.swapped);
  if (layout.tiles == 0) return;
  args.tiles = static_cast<int>(layout.tiles);
  args.tma_store = tma_store(args);
  // Without stored blocks nothing is read, and there may be nothing to encode a map for.
  if (sides.blocks.map.batches > 0 && sides.columns.map.data && shape.k > 0) {
    args.dense = T::kMajorDense == Major::k ? tile::tensor_map(sides.columns.map, T::kShape.n)
                                            : tile::tensor_map(sides.columns.map, tile::kLine);
    const int height = 1 << args.walk.height_shift, piece = tile::kLine >> args.walk.slice_shift;
    if (args.walk.boxed)
      args.blocks = T::kMajorBlocks == Major::k ? tile::tensor_map(sides.blocks.map, height, piece)
                                                : tile::tensor_map(sides.blocks.map, piece, height);
  }
  static_assert(T::kBlocksAtOnce == planning::bsr_ctas_per_sm(T::kShape));
  Kernel<bsr_kernel<T>>::launch({.name = "bsr_kernel",
                                 .grid = grid_of(layout.ctas),
                                 .threads = T::kThreads,
                                 .stream = call.stream,
                                 .shared_bytes = T::kSharedBytes,
                                 .overlapped = true},
                                args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const Sides sides(std::get<MatmulProblem>(call.problem));
  product::with_types<kDtypes>(sides.columns, sides.blocks,
                               [&]<class Element, Major kDense, Major kBlocks>() {
                                 launch_typed<Traits<kTile, Element, kDense, kBlocks>>(call, sides);
                               });
}

}  // namespace tessera::cuda::sm90::bsr
