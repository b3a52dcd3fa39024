#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <utility>

#include "src/core/check.hpp"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/spgemm/kernel.cuh"
#include "src/kernels/cuda/spgemm/pattern.hpp"

namespace tessera::cuda::spgemm {

using planning::Call;

/// The stored blocks of a matrix; `transposed` swaps their strides.
inline Pool pool_of(const Tensor& values, bool transposed) {
  Pool pool{values.data, values.dtype, values.stride(0), values.stride(1), values.stride(2)};
  if (transposed) std::swap(pool.row, pool.col);
  return pool;
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  static_assert(kDtypes == core::kFloats, "the kernel is compiled for f32, f16 and bf16");
  const auto& problem = std::get<SpgemmProblem>(call.problem);
  const SpgemmResult& result = *static_cast<const SpgemmResult*>(call.result);
  Arguments args;
  args.a = left_lists(call);
  args.b = right_blocks(problem);
  args.runs.lists = result_lists(result);
  args.copy = list_copy(result);
  args.left = pool_of(problem.a.sparse.values, problem.a.transposed);
  args.right = pool_of(problem.b.sparse.values, problem.b.transposed);
  args.out = pool_of(result.out.values, false);
  const Operand& a = problem.a;
  args.rows = static_cast<int>(result.out.block_rows());
  args.cols = static_cast<int>(result.out.block_cols());
  args.depth = static_cast<int>(a.transposed ? a.sparse.block_rows() : a.sparse.block_cols());
  args.pieces_down = (args.rows + kTile.m - 1) / kTile.m;
  args.pieces_across = (args.cols + kTile.n - 1) / kTile.n;
  args.pieces = args.runs.count() * args.pieces_down * args.pieces_across;
  args.alpha = problem.alpha;
  args.beta = problem.beta;
  constexpr std::int64_t kMaxBlocks = 1 << 20;
  const dim3 grid = grid_of(std::clamp<std::int64_t>(args.pieces, 1, kMaxBlocks));
  with_element(problem.a.sparse.values.dtype, [&](auto element) {
    Kernel<general_kernel<Traits<kTile, decltype(element)>>>::launch(
        {"general_kernel", grid, kThreads, call.stream}, args);
  });
}

}  // namespace tessera::cuda::spgemm
