#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm90/product/dispatch.hpp"
#include "src/kernels/cuda/sm90/spgemm/kernel.cuh"
#include "src/kernels/cuda/spgemm/pattern.hpp"

namespace tessera::cuda::sm90::spgemm {

using planning::Call;
using product::Source;

inline Result result_of(const SpgemmProblem& problem, const BsrMatrix& out) {
  Result result;
  const Tensor& v = out.values;
  result.data = v.data;
  result.dtype = v.dtype;
  result.block = v.stride(0);
  result.row = v.stride(1);
  result.col = v.stride(2);
  result.alpha = problem.alpha;
  result.beta = problem.beta;
  const tile::MatrixMap panels{v.data,    v.dtype,     v.size(2),  v.size(1),
                               v.size(0), v.stride(1), v.stride(0)};
  result.mapped = problem.beta == 0.0f && size_of(v.dtype) == 2 && v.stride(2) == 1 &&
                  v.size(0) > 0 && tile::tma_readable(panels);
  if (result.mapped) result.map = tile::tensor_map(panels, tile::kLine);
  return result;
}

template <class T>
void launch_typed(const Call& call, const Source& a, const Source& b) {
  const auto& problem = std::get<SpgemmProblem>(call.problem);
  const SpgemmResult& result = *static_cast<const SpgemmResult*>(call.result);
  Arguments args{};
  const auto box_rows = [](Major major, int extent) {
    return major == Major::k ? extent : tile::kLine;
  };
  // Without stored blocks nothing is read, and there is nothing to encode a map for.
  if (a.map.batches > 0 && b.map.batches > 0) {
    args.a = tile::tensor_map(a.map, box_rows(T::kMajorA, T::kShape.m));
    args.b = tile::tensor_map(b.map, box_rows(T::kMajorB, T::kShape.n));
  }
  args.walk = {cuda::spgemm::left_lists(call), cuda::spgemm::right_blocks(problem),
               cuda::spgemm::result_lists(result)};
  args.copy = cuda::spgemm::list_copy(result);
  args.result = result_of(problem, result.out);
  const Operand& left = problem.a;
  const std::int64_t depth = left.transposed ? left.sparse.block_rows() : left.sparse.block_cols();
  args.parts = static_cast<int>(depth / tile::kLine);
  if (T::kSlots == 1 && result.pattern) args.planned = result.pattern->blocks;
  const std::int64_t runs =
      args.planned ? args.walk.result.stored : ResultRuns<T::kSlots>{args.walk.result}.count();
  args.runs = static_cast<int>(runs);

  Kernel<spgemm_kernel<T>>::launch(
      {.name = "spgemm_kernel",
       .grid = grid_of(std::clamp(args.runs, 1, kBlocksPerSm * sm_count())),
       .threads = kThreads,
       .stream = call.stream,
       .shared_bytes = T::kSharedBytes},
      args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& problem = std::get<SpgemmProblem>(call.problem);
  const Source a = product::pool_source(problem.a.sparse, problem.a.transposed);
  const Source b = product::pool_source(problem.b.sparse, !problem.b.transposed);
  product::with_types<kDtypes>(a, b, [&]<class Element, Major kA, Major kB>() {
    launch_typed<Traits<kTile, Element, kA, kB>>(call, a, b);
  });
}

}  // namespace tessera::cuda::sm90::spgemm
