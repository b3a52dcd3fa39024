#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/product/bsr_sides.hpp"
#include "src/kernels/cuda/product/finish.hpp"
#include "src/kernels/cuda/sm90/bsr/kernel.cuh"
#include "src/kernels/cuda/sm90/product/dispatch.hpp"

#include "src/kernels/cuda/sm90/bsr/plan.hpp"

namespace tessera::cuda::sm90::bsr {

using planning::Call;
using product::Source;

/// The two sides of a product, as TMA reads them.
struct Sides : product::BsrSides {
  Source blocks, columns;

  explicit Sides(const MatmulProblem& problem)
      : product::BsrSides(problem),
        blocks(product::pool_source(sparse.sparse, sparse.transposed)),
        columns(product::dense_source(dense.dense, !dense.transposed)) {}
};

inline Walk walk_of(const Call& call, const Sides& sides) {
  Walk walk = product::bsr_walk(call, sides);
  const bool deep = sides.blocks.major == Major::k;
  const int height = walk.height(), piece = walk.piece();
  walk.boxed =
      piece >= 32 && (deep ? height >= 32 : height == kGroup) && sides.block_rows() <= UINT16_MAX;
  walk.copy_step = product::bsr_step(deep ? 16 * walk.row_bytes : 256 / height * walk.depth_bytes);
  walk.round_step =
      product::bsr_step(deep ? 256 / piece * walk.row_bytes : kUnit * walk.depth_bytes);
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
