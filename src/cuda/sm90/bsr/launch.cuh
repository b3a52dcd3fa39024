#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "src/cuda/common/check.hpp"
#include "src/cuda/common/launch.hpp"
#include "src/cuda/sm90/bsr/kernel.cuh"
#include "src/cuda/sm90/product/dispatch.hpp"
#include "src/cuda/sm90/product/finish.hpp"

#include "src/plan/gpu_layout.hpp"

namespace tessera::cuda::sm90::bsr {

using product::Source;

/// The sparse side gives the rows of the product as it is walked, the dense side its columns.
struct Sides {
  bool swapped;    // b is the sparse one
  Operand sparse;  // as read: [rows, depth]
  Operand dense;   // as read: [depth, columns]
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

/// The largest power of two up to `most` that divides n, a multiple of 16.
inline int largest_part(int n, int most) {
  int part = most;
  while (n % part != 0) part /= 2;
  return part;
}

inline Walk walk_of(const Launch& call, const Sides& sides, int height) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  planning::Carver carver(call.execution.schedule.data);
  const planning::GpuMatmulSchedule schedule = planning::carve_gpu_matmul_schedule(carver, shape);
  const BsrMatrix& matrix = sides.sparse.sparse;
  Walk walk;
  walk.lists = planning::walk_of(matrix, sides.swapped ? schedule.b : schedule.a);
  walk.lines = static_cast<int>((sides.swapped ? shape.n : shape.m) / height);
  walk.cols = static_cast<int>(sides.swapped ? shape.m : shape.n);
  walk.batches = static_cast<int>(shape.batch);
  walk.dense_batch_step = (sides.swapped ? shape.a.batch : shape.b.batch) > 1 ? 1 : 0;
  const Tensor& values = matrix.values;
  walk.pool_step =
      values.rank == 4 && values.size(0) > 1 ? static_cast<int>(matrix.stored_blocks()) : 0;
  walk.lines_per_block = sides.block_rows() / height;
  walk.piece = largest_part(sides.block_depth(), tile::kLine);
  walk.piece_shift = walk.piece == 64 ? 0 : walk.piece == 32 ? 1 : 2;
  walk.pieces_per_block = sides.block_depth() / walk.piece;
  return walk;
}

template <class T>
void launch_typed(const Launch& call, const Sides& sides) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  const auto& problem = std::get<MatmulProblem>(call.problem);
  Arguments args{};
  args.walk = walk_of(call, sides, T::kHeight);
  args.rows = static_cast<int>(sides.swapped ? shape.n : shape.m);
  // Computed with the dense columns as rows: the transpose where a is the sparse one.
  args.finish = product::finish_of(problem, !sides.swapped);
  const auto up = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  const std::int64_t tiles =
      up(args.walk.lines, T::kLines) * up(args.walk.cols, T::kShape.n) * args.walk.batches;
  if (tiles == 0) return;
  constexpr std::int64_t kMostTiles = INT32_MAX / 2;  // a step past the last one still fits
  if (tiles > kMostTiles)
    throw Error(ErrorCode::unsupported, "matmul: out: too many tiles: " + std::to_string(tiles));
  args.tiles = static_cast<int>(tiles);
  // Without blocks nothing is read, and there may be nothing to make a map of.
  if (sides.blocks.map.batches > 0 && sides.columns.map.data && shape.k > 0) {
    args.dense = T::kMajorDense == Major::k ? tile::tensor_map(sides.columns.map, T::kShape.n)
                                            : tile::tensor_map(sides.columns.map, tile::kLine);
    args.blocks = T::kMajorBlocks == Major::k
                      ? tile::tensor_map(sides.blocks.map, T::kHeight, args.walk.piece)
                      : tile::tensor_map(sides.blocks.map, args.walk.piece,
                                         std::min(T::kHeight, tile::kLine));
  }
  const auto kernel = bsr_kernel<T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes),
        "cudaFuncSetAttribute(bsr)");
  const int units = unit_count();
  cudaLaunchConfig_t config{};
  config.gridDim =
      static_cast<unsigned>(std::min<std::int64_t>(tiles, std::int64_t{units} * T::kBlocksAtOnce));
  config.blockDim = T::kThreads;
  config.dynamicSmemBytes = T::kSharedBytes;
  config.stream = static_cast<cudaStream_t>(call.execution.stream);
  check(cudaLaunchKernelEx(&config, kernel, args), "cudaLaunchKernelEx(bsr)");
}

template <planning::Tile kTile, int kHeight>
void launch_height(const Launch& call, const Sides& sides) {
  product::with_types(sides.columns, sides.blocks,
                      [&]<class Element, Major kDense, Major kBlocks>() {
                        launch_typed<Traits<kTile, Element, kHeight, kDense, kBlocks>>(call, sides);
                      });
}

template <planning::Tile kTile>
void launch(const Launch& call) {
  const Sides sides(std::get<MatmulProblem>(call.problem));
  constexpr int kTallest = std::min(kTile.m, 128);
  switch (largest_part(sides.block_rows(), kTallest)) {
    case 128:
      if constexpr (kTallest >= 128) launch_height<kTile, 128>(call, sides);
      break;
    case 64:
      launch_height<kTile, 64>(call, sides);
      break;
    case 32:
      launch_height<kTile, 32>(call, sides);
      break;
    default:
      launch_height<kTile, 16>(call, sides);
      break;
  }
}

}  // namespace tessera::cuda::sm90::bsr
