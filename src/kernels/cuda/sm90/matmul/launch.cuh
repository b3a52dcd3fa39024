#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/product/finish.hpp"
#include "src/kernels/cuda/sm90/matmul/kernel.cuh"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/product/align.cuh"
#include "src/kernels/cuda/sm90/product/dispatch.hpp"
#include "src/walk/views.hpp"

namespace tessera::cuda::sm90::matmul {

using planning::Call;
using product::Source;

/// The operands as the kernel multiplies them; a and b transposed and exchanged if the product is
/// computed as its transpose.
struct Sides {
  planning::MatmulLayout layout;
  Operand left, right;  // left [M, K], right [K, N]

  Sides(const planning::MatmulLayout& layout, const Operand& a, const Operand& b)
      : layout(layout),
        left(layout.swapped ? transpose(b) : a),
        right(layout.swapped ? transpose(a) : b) {}
};

inline Walk walk_of(const Sides& sides, const planning::MatmulShape& shape,
                    const Tensor& group_offsets) {
  const planning::MatmulLayout& layout = sides.layout;
  Walk walk;
  walk.m = static_cast<int>(layout.rows);
  walk.n = static_cast<int>(layout.cols);
  walk.k = static_cast<int>(shape.k);
  walk.batches = static_cast<int>(layout.matrices);
  walk.splits = layout.splits;
  walk.cut = layout.cut;
  if (layout.cut != planning::Cut::none) {
    const std::int64_t length = shape.group_axis == GroupAxis::rows ? shape.m : shape.k;
    walk.groups = {planning::indices_of(group_offsets), group_offsets.stride(0), walk.batches,
                   static_cast<int>(length)};
  }
  const std::int64_t left = layout.swapped ? shape.b.batch : shape.a.batch;
  const std::int64_t right = layout.swapped ? shape.a.batch : shape.b.batch;
  walk.a_batch_step = left > 1 ? 1 : 0;
  walk.b_batch_step = right > 1 ? 1 : 0;
  walk.group = static_cast<int>(layout.group);
  // With K = 0 nothing is read, whatever the lists in GPU memory say.
  if (!sides.left.is_sparse() || shape.k == 0) return walk;
  const BsrMatrix& matrix = sides.left.sparse;
  walk.sparse = true;
  walk.lists = planning::view_of(matrix);
  walk.lines_per_block = static_cast<int>(matrix.block_rows() / tile::kLine);
  walk.block_depth = static_cast<int>(matrix.block_cols());
  const Tensor& values = matrix.values;
  walk.pool_step = values.rank == 4 && values.size(0) > 1 ? matrix.stored_blocks() : 0;
  return walk;
}

/// The tensor map of an operand with kExtent rows or columns per tile and steps of kDepth: loaded
/// by one box (`whole`) or by boxes of 64 lines.
template <Major kMajor, int kExtent, int kDepth>
CUtensorMap operand_map(const tile::MatrixMap& map, bool whole) {
  if constexpr (kMajor == Major::k)
    return tile::panel_map(map, whole ? kExtent : tile::kLine, 0, kDepth);
  return tile::panel_map(map, tile::kLine, whole ? kExtent / tile::kLine : 0);
}

/// The result as a matrix for TMA stores; `m`, `n`: its rows and columns as `finish` has them.
inline tile::MatrixMap result_map(const product::Finish& finish, std::int64_t m, std::int64_t n,
                                  std::int64_t matrices) {
  const Plane& out = finish.out;
  const std::int64_t batches = out.batch == 0 ? 1 : matrices;
  if (finish.wide) return {out.data, out.dtype, n, m, batches, out.row, out.batch};
  return {out.data, out.dtype, m, n, batches, out.col, out.batch};
}

template <class T>
void launch_typed(const Call& call, const Sides& sides, const Source& a, const Source& b,
                  std::uint64_t* dealt) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  const auto& problem = std::get<MatmulProblem>(call.problem);
  const planning::MatmulLayout& layout = sides.layout;
  if (layout.tiles == 0) return;
  Arguments args{};
  // With K = 0 nothing is read, and there may be nothing to encode a map for.
  if (a.map.data && b.map.data && shape.m > 0 && shape.n > 0 && shape.k > 0) {
    const bool sparse = sides.left.is_sparse();
    args.whole_a = sparse ? sides.left.sparse.block_rows() % T::kShape.m == 0
                          : T::kMajorA == Major::k || (a.map.inner % tile::kLine == 0 &&
                                                       layout.cut != planning::Cut::rows);
    args.whole_b = T::kShape.n % tile::kLine == 0 && b.map.inner % tile::kLine == 0 &&
                   layout.cut != planning::Cut::cols;
    args.a = operand_map<T::kMajorA, T::kShape.m, T::kDepth>(a.map, args.whole_a);
    args.b = operand_map<T::kMajorB, T::kLoadedN, T::kDepth>(
        b.map, T::kMajorB == Major::k || args.whole_b);
  }
  args.walk = walk_of(sides, shape, problem.group_offsets);
  // The sums of FP8 are those of the transposed tile.
  args.finish = product::finish_of(problem, layout.swapped != T::kNarrow);
  if constexpr (T::kNarrow) {
    const bool swapped = layout.swapped;
    const planning::ScaleForm of_a = shape.a.scale, of_b = shape.b.scale;
    args.left =
        factors_of(sides.left, swapped ? of_b : of_a, true, args.walk.m, args.walk.pool_step);
    args.right = factors_of(sides.right, swapped ? of_a : of_b, false, args.walk.n, 0);
  }
  if constexpr (T::kStaged) {
    const Walk& walk = args.walk;
    const tile::MatrixMap out = result_map(args.finish, T::kNarrow ? walk.n : walk.m,
                                           T::kNarrow ? walk.m : walk.n, walk.batches);
    if (args.finish.plain() && (args.finish.wide || args.finish.tall) && tile::tma_writable(out)) {
      args.tma_store =
          args.finish.wide ? product::TmaStore::by_rows : product::TmaStore::by_columns;
      args.out = tile::tensor_map(out, T::Staging::kWidth);
    }
  }
  args.tiles = static_cast<int>(layout.tiles);
  args.walk.clusters = static_cast<int>(layout.clusters);
  if (dealt && layout.tiles > args.walk.clusters) {
    args.walk.next_tile = dealt;
    args.walk.tag = planning::LaunchCount::new_tag();
  }
  Kernel<matmul_kernel<T>>::launch({.name = "matmul_kernel",
                                    .grid = grid_of(args.walk.clusters * layout.splits),
                                    .threads = T::kThreads,
                                    .stream = call.stream,
                                    .shared_bytes = T::kSharedBytes,
                                    .cluster = layout.splits > 1 ? layout.splits : 0,
                                    .overlapped = true},
                                   args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& problem = std::get<MatmulProblem>(call.problem);
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::MatmulLayout>();
  core::Carver carver(call.workspace);
  const planning::MatmulScratch scratch = planning::carve_matmul_scratch(carver, shape, layout);
  Operand a = problem.a, b = problem.b;
  if (scratch.a) {
    // Rows of a group may begin anywhere, so the copy is contiguous along the depth.
    const int depth = a.dense.rank - (a.transposed ? 2 : 1);
    const bool by_rows = shape.grouped && shape.group_axis == GroupAxis::rows;
    a.dense = product::aligned_copy(
        a.dense, by_rows ? depth : product::contiguous_dimension(a.dense), scratch.a, call.stream);
  }
  if (scratch.b)
    b.dense = product::aligned_copy(b.dense, product::contiguous_dimension(b.dense), scratch.b,
                                    call.stream);
  const Sides sides(layout, a, b);
  const Source left = sides.left.is_sparse()
                          ? product::pool_source(sides.left.sparse, sides.left.transposed)
                          : product::dense_source(sides.left.dense, sides.left.transposed);
  const Source right = product::dense_source(sides.right.dense, !sides.right.transposed);
  const auto launch_of = [&]<class Element, Major kA, Major kB>() {
    launch_typed<Traits<kTile, Element, kA, kB>>(call, sides, left, right, scratch.dealt);
  };
  if constexpr (kDtypes == core::dtypes({DType::e4m3})) {  // wgmma reads FP8 along the depth only
    launch_of.template operator()<__nv_fp8_e4m3, Major::k, Major::k>();
  } else {
    product::with_types<kDtypes>(left, right, launch_of);
  }
}

}  // namespace tessera::cuda::sm90::matmul
