#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/cuda/attention/arguments.cuh"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/kernels/cuda/sm80/attention/kernel.cuh"
#include "src/kernels/cuda/sm80/attention/plan.hpp"
#include "src/problem/tma_rules.hpp"
#include "src/walk/views.hpp"

namespace tessera::cuda::sm80::attention {

using planning::Call;

/// Fills in the kernel's arguments and launches it, after the kernels that compose the mask and
/// order the tiles if these are needed.
template <class T>
void launch_typed(const Call& call) {
  const auto& problem = std::get<AttentionProblem>(call.problem);
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::AttentionLayout>();
  if (layout.tiles == 0 || shape.q_total == 0) return clear_rest(call.problem, call.stream);
  constexpr float kLog2e = 1.4426950408889634f;
  core::Carver carver(call.workspace);
  const planning::AttentionScratch scratch =
      planning::carve_attention_scratch(carver, T::kOfRow, layout);
  Arguments args{};
  args.q = source_of(problem.q);
  args.k = source_of(problem.k);
  args.v = source_of(problem.v);
  args.walk = planning::attention_walk(problem, shape, layout, T::kOfRow);
  set_scores(args, problem, shape);
  if (shape.kv_layout == planning::KvLayout::paged) {
    args.pages = planning::page_view(problem.page_table, problem.k);
    args.rows_of_piece = static_cast<int>(std::min<std::int64_t>(shape.page, planning::kKeyPiece));
    args.exponents.scale = kLog2e;  // the transform multiplies by the scale
  }
  const Tensor& out = problem.out;
  args.result.aligned = out.dtype != DType::f32 && planning::lies_along(out, out.rank - 1) &&
                        planning::begins_aligned(out);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  begin_walk(args, problem, shape, layout, scratch, false, stream);
  Kernel<attention_kernel<T>>::launch(
      {.name = "attention_kernel",
       .grid = grid_of(args.walk.blocks),
       .threads = T::kThreads,
       .stream = stream,
       .shared_bytes = planning::attention_shared_bytes(T::kOfRow, args.pages.table != nullptr),
       .max_shared_bytes = planning::attention_shared_bytes(T::kOfRow, T::kReadsPages)},
      args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  with_multiplied<kDtypes>(shape.dtype, [&]<class Element>() {
    if (shape.transforms_scores || shape.kv_layout == planning::KvLayout::paged) {
      launch_typed<Traits<kTile, Element, Instance::transformed>>(call);
    } else {
      launch_typed<Traits<kTile, Element, Instance::plain>>(call);
    }
  });
}

}  // namespace tessera::cuda::sm80::attention
