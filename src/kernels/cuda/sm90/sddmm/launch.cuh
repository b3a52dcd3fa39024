#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm90/product/dispatch.hpp"
#include "src/kernels/cuda/sm90/sddmm/kernel.cuh"
#include "src/kernels/family.hpp"
#include "src/walk/views.hpp"

namespace tessera::cuda::sm90::sddmm {

using planning::Call;
using product::Source;

/// CTAs per cluster, where passes are long enough for sharing to pay. Blocks of 128 rows: two
/// adjacent tiles of a row of blocks share its rows of A. Narrow pieces of a B with contiguous
/// rows: several rows of blocks share columns, since TMA needs nearly as long for their short lines
/// as for long ones.
template <class T>
int cluster_of(int piece, int steps) {
  constexpr int kLongPass = 64;
  if (steps < kLongPass) return 1;
  if (T::kCutRows) return 2;
  return T::kMajorB == Major::mn && piece < tile::kLine ? kMaxBlocks : 1;
}

/// The walk without its tiles. A piece is 64, 32 or 16 columns wide, the largest that divides a
/// block.
inline Walk walk_of(const BsrMatrix& out, std::int64_t batch, const planning::Tile& tile) {
  Walk walk;
  walk.lists = planning::view_of(out);
  walk.block_rows = static_cast<int>(out.block_rows());
  walk.block_cols = static_cast<int>(out.block_cols());
  walk.piece_shift = walk.block_cols % 64 == 0 ? 6 : walk.block_cols % 32 == 0 ? 5 : 4;
  walk.batches = static_cast<int>(batch);
  walk.pooled = out.values.rank == 3;
  walk.row_tiles = walk.block_rows / tile.m;
  return walk;
}

/// Divides the stored columns into tiles. `clusters`: number of clusters of `cluster` CTAs that run
/// at the same time.
inline void cut_into_tiles(Walk& walk, const planning::Tile& tile, int clusters, int cluster,
                           bool side_by_side) {
  const std::int64_t lines = std::int64_t{walk.row_tiles} * (walk.pooled ? 1 : walk.batches);
  const planning::sddmm::Cut cut{.columns = walk.lists.stored * walk.block_cols,
                                 .rows = walk.lists.block_rows * (walk.pooled ? walk.batches : 1),
                                 .width = tile.n,
                                 .piece = std::int64_t{1} << walk.piece_shift,
                                 .clusters = clusters,
                                 .cluster = cluster,
                                 .side_by_side = side_by_side};
  walk.body = planning::sddmm::body_of(cut, lines == 1);
  walk.tail = planning::sddmm::tail_of(cut, walk.body);
}

inline Values values_of(const SddmmProblem& problem, int piece_shift) {
  const Tensor& t = problem.out.values;
  const std::int64_t batch = t.rank == 4 && t.size(0) > 1 ? t.stride(0) : 0;
  Values values{.data = t.data,
                .dtype = t.dtype,
                .batch = batch,
                .block = t.stride(t.rank - 3),
                .row = t.stride(t.rank - 2),
                .col = t.stride(t.rank - 1),
                .cols = static_cast<int>(problem.out.block_cols()),
                .piece_shift = piece_shift,
                .alpha = problem.alpha,
                .beta = problem.beta};
  values.wide = values.beta == 0.0f && size_of(t.dtype) == 2 && values.col == 1 &&
                (values.batch | values.block | values.row) % 8 == 0 &&
                reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
  return values;
}

/// Boxes are 64 deep and as wide as a piece.
inline CUtensorMap map_of(const Source& source, int piece) {
  return source.major == Major::k ? tile::tensor_map(source.map, piece)
                                  : tile::tensor_map(source.map, tile::kLine, piece);
}

template <class T>
void launch_typed(const Call& call, const Source& a, const Source& b) {
  const auto& shape = std::get<planning::SddmmShape>(call.shape);
  const auto& problem = std::get<SddmmProblem>(call.problem);
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return;
  Arguments args{};
  args.walk = walk_of(problem.out, shape.batch, T::kShape);
  args.steps = static_cast<int>(planning::ceil_div(shape.k, tile::kLine));
  const int piece = 1 << args.walk.piece_shift;
  args.cluster = cluster_of<T>(piece, args.steps);

  using SddmmKernel = Kernel<sddmm_kernel<T>>;
  Launch how{.name = "sddmm_kernel",
             .grid = grid_of(args.cluster),
             .threads = kThreads,
             .stream = call.stream,
             .shared_bytes = T::kSharedBytes,
             .cluster = args.cluster};
  // Clusters do not cross GPC borders, so fewer may run than the number of SMs suggests.
  const int clusters = std::max(SddmmKernel::max_active_clusters(how), 1);
  cut_into_tiles(args.walk, T::kShape, clusters, args.cluster, T::kCutRows);
  args.jobs = static_cast<int>(args.walk.jobs());
  if (args.jobs == 0) return;
  // With K = 0 nothing is read, and there may be nothing to encode a map for.
  if (args.steps > 0) {
    args.a = map_of(a, T::kRowsBox);
    args.b = map_of(b, piece);
  }
  args.columns_form = form_of<typename T::Element>(T::kMajorB, piece);
  args.values = values_of(problem, args.walk.piece_shift);
  args.a_batch_step = shape.a.batch > 1 ? 1 : 0;
  args.b_batch_step = shape.b.batch > 1 ? 1 : 0;
  how.grid = grid_of(args.cluster * std::min(args.jobs, clusters));
  SddmmKernel::launch(how, args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& problem = std::get<SddmmProblem>(call.problem);
  const Source a = product::dense_source(problem.a.dense, problem.a.transposed);
  const Source b = product::dense_source(problem.b.dense, !problem.b.transposed);
  product::with_types<kDtypes>(a, b, [&]<class Element, Major kA, Major kB>() {
    launch_typed<Traits<kTile, Element, kA, kB>>(call, a, b);
  });
}

}  // namespace tessera::cuda::sm90::sddmm
