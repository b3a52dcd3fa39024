#pragma once

#include <variant>

#include "src/kernels/cuda/backend.hpp"
#include "src/kernels/cuda/prepare/convert.hpp"
#include "src/kernels/cuda/spgemm/walk.cuh"
#include "src/walk/transposed_lists.hpp"
#include "src/walk/views.hpp"

// From a problem and its result to the lists that a numeric kernel walks.
namespace tessera::cuda::spgemm {

/// A's lists by row of op(A). For a transposed A they are first written into the workspace.
inline Lists left_lists(const planning::Call& call) {
  const auto& problem = std::get<SpgemmProblem>(call.problem);
  const planning::BsrView stored = planning::view_of(problem.a.sparse);
  if (!problem.a.transposed) return Lists(stored);
  const auto& shape = std::get<planning::SpgemmShape>(call.shape);
  core::Carver carver(call.workspace);
  const planning::GpuLists lists = planning::carve_gpu_lists(carver, shape.a);
  transpose_lists(stored, 1, lists, {shape.device.index, call.stream});
  return Lists(planning::walk_of(problem.a.sparse, lists));
}

inline RightBlocks right_blocks(const SpgemmProblem& problem) {
  return {Lists(planning::view_of(problem.b.sparse)), problem.b.transposed};
}

inline Lists lists_of(const SpgemmPattern& pattern) {
  planning::BsrView view;
  view.offsets.narrow = pattern.offsets;
  view.indices.narrow = pattern.columns;
  view.block_rows = pattern.rows;
  view.block_cols = pattern.cols;
  view.stored = pattern.stored;
  return Lists(view);
}

/// The result's lists: its own, or those of the pattern.
inline Lists result_lists(const SpgemmResult& result) {
  return result.pattern ? lists_of(*result.pattern) : Lists(planning::view_of(result.out));
}

/// Writes all stored blocks of a result into `blocks`, in the order of computation.
void order_blocks(const Lists& a, const RightBlocks& b, const Lists& result, PlannedBlock* blocks,
                  void* stream);

inline ListCopy list_copy(const SpgemmResult& result) {
  if (!result.pattern) return {};
  const auto sink = [](const Tensor& list) {
    planning::IndexSink to;
    if (list.dtype == DType::i64) {
      to.wide = static_cast<std::int64_t*>(list.data);
    } else {
      to.narrow = static_cast<std::int32_t*>(list.data);
    }
    return to;
  };
  const Tensor &offsets = result.out.row_offsets, &columns = result.out.col_indices;
  return {lists_of(*result.pattern), sink(offsets), sink(columns), offsets.stride(0),
          columns.stride(0)};
}

}  // namespace tessera::cuda::spgemm
