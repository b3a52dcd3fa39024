#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "src/cuda/common/check.hpp"
#include "src/cuda/common/launch.hpp"
#include "src/cuda/sm90/matmul/kernel.cuh"
#include "src/cuda/sm90/product/finish.hpp"
#include "src/cuda/sm90/product/source.hpp"
#include "src/plan/views.hpp"

namespace tessera::cuda::sm90::matmul {

using product::Source;

/// What the kernel multiplies: left and right, swapped where B is the sparse one.
struct Sides {
  bool swapped;
  Operand left, right;  // as read: left [M, K], right [K, N]

  explicit Sides(const MatmulProblem& problem)
      : swapped(problem.b.is_sparse()),
        left(swapped ? transpose(problem.b) : problem.a),
        right(swapped ? transpose(problem.a) : problem.b) {}
};

inline Walk walk_of(const Sides& sides, const planning::MatmulShape& shape) {
  Walk walk;
  walk.m = sides.swapped ? shape.n : shape.m;
  walk.n = sides.swapped ? shape.m : shape.n;
  walk.k = shape.k;
  walk.batches = static_cast<int>(shape.batch);
  const std::int64_t left = sides.swapped ? shape.b.batch : shape.a.batch;
  const std::int64_t right = sides.swapped ? shape.a.batch : shape.b.batch;
  walk.a_batch_step = left > 1 ? 1 : 0;
  walk.b_batch_step = right > 1 ? 1 : 0;
  if (!sides.left.is_sparse()) return walk;
  const BsrMatrix& matrix = sides.left.sparse;
  walk.sparse = true;
  walk.lists = planning::view_of(matrix);
  walk.block_rows = static_cast<int>(matrix.block_rows());
  walk.block_depth = static_cast<int>(matrix.block_cols());
  const Tensor& values = matrix.values;
  walk.pool_step = values.rank == 4 && values.size(0) > 1 ? matrix.stored_blocks() : 0;
  return walk;
}

template <class T>
void launch_typed(const Launch& call, const Sides& sides, const Source& a, const Source& b) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  const auto& problem = std::get<MatmulProblem>(call.problem);
  Arguments args{};
  const auto box_rows = [](Major major, int extent) {
    return major == Major::k ? extent : tile::kLine;
  };
  // Without depth nothing is read, and there may be nothing to make a map of.
  if (a.map.data && b.map.data && shape.k > 0) {
    args.a = tile::tensor_map(a.map, box_rows(T::kMajorA, T::kShape.m));
    args.b = tile::tensor_map(b.map, box_rows(T::kMajorB, T::kShape.n));
  }
  args.walk = walk_of(sides, shape);
  args.finish = product::finish_of(problem, sides.swapped);
  const auto kernel = matmul_kernel<T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes),
        "cudaFuncSetAttribute(matmul)");
  int device = 0, units = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  const std::int64_t tiles = args.walk.template tiles<T::kShape.m, T::kShape.n>();
  if (tiles == 0) return;
  constexpr std::int64_t kMostTiles = INT32_MAX / 2;  // a step past the last one still fits
  if (tiles > kMostTiles)
    throw Error(ErrorCode::unsupported, "matmul: out: too many tiles: " + std::to_string(tiles));
  args.tiles = static_cast<int>(tiles);
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min<std::int64_t>(tiles, units));
  config.blockDim = kThreads;
  config.dynamicSmemBytes = T::kSharedBytes;
  config.stream = static_cast<cudaStream_t>(call.execution.stream);
  check(cudaLaunchKernelEx(&config, kernel, args), "cudaLaunchKernelEx(matmul)");
}

template <planning::Tile kTile, class Element>
void launch_element(const Launch& call, const Sides& sides, const Source& a, const Source& b) {
  if (a.major == Major::k && b.major == Major::k) {
    launch_typed<Traits<kTile, Element, Major::k, Major::k>>(call, sides, a, b);
  } else if (a.major == Major::k) {
    launch_typed<Traits<kTile, Element, Major::k, Major::mn>>(call, sides, a, b);
  } else if (b.major == Major::k) {
    launch_typed<Traits<kTile, Element, Major::mn, Major::k>>(call, sides, a, b);
  } else {
    launch_typed<Traits<kTile, Element, Major::mn, Major::mn>>(call, sides, a, b);
  }
}

template <planning::Tile kTile>
void launch(const Launch& call) {
  const Sides sides(std::get<MatmulProblem>(call.problem));
  const Source left = sides.left.is_sparse()
                          ? product::pool_source(sides.left.sparse, sides.left.transposed)
                          : product::dense_source(sides.left.dense, sides.left.transposed);
  const Source right = product::dense_source(sides.right.dense, !sides.right.transposed);
  if (left.map.dtype == DType::bf16) {
    launch_element<kTile, __nv_bfloat16>(call, sides, left, right);
  } else {
    launch_element<kTile, __half>(call, sides, left, right);
  }
}

}  // namespace tessera::cuda::sm90::matmul
