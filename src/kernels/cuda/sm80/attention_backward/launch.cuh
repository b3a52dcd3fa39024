#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention_backward/passes.hpp"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm80/attention_backward/kernel.cuh"
#include "src/kernels/cuda/sm80/attention_backward/plan.hpp"

namespace tessera::cuda::sm80::attention_backward {

template <class T>
void launch_main(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
                 const BackwardWalk& walk, const BackwardScratch& scratch,
                 const planning::Call& call) {
  constexpr float kLog2e = 1.4426950408889634f;
  const AttentionProblem& forward = problem.forward;
  Arguments args{};
  args.k = attention::source_of(forward.k);
  args.v = attention::source_of(forward.v);
  if (shape.q_total > 0) {  // else nothing is loaded
    args.q = attention::source_of(forward.q);
    args.dout = attention::source_of(readable_dout(problem, scratch.dout));
  }
  args.walk = walk;
  args.scratch = scratch;
  args.dk = rows_of_shares(problem.dk, scratch.dk, shape, walk);
  args.dv = rows_of_shares(problem.dv, scratch.dv, shape, walk);
  args.scale = shape.scale;
  args.caps = shape.softcap > 0;
  args.exponent_scale = args.caps ? kLog2e : shape.scale * kLog2e;
  if (args.caps) {
    args.transform = cuda::attention::score_transform(shape.scale, shape.softcap);
    args.inverse_cap = 1 / (kLog2e * shape.softcap);
  }
  Kernel<attention_backward_kernel<T>>::launch(
      {.name = "attention_backward_kernel",
       .grid = grid_of(call.planned.layout.get<planning::BackwardLayout>().blocks),
       .threads = T::kThreads,
       .stream = call.stream,
       .shared_bytes = planning::backward_shared_bytes(T::kOfRow)},
      args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const planning::Call& call) {
  const auto& shape = std::get<planning::AttentionBackwardShape>(call.shape);
  with_multiplied<kDtypes>(shape.dtype, [&]<class Element>() {
    launch_passes(call, kTile, SumsOrder::by_accumulator, false,
                  [&](const auto& problem, const auto& of, const auto& walk, const auto& scratch) {
                    launch_main<Traits<kTile, Element>>(problem, of, walk, scratch, call);
                  });
  });
}

}  // namespace tessera::cuda::sm80::attention_backward
