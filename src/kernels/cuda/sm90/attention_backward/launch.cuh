#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention_backward/passes.hpp"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm90/attention_backward/dq_launch.cuh"
#include "src/kernels/cuda/sm90/attention_backward/kernel.cuh"
#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"

namespace tessera::cuda::sm90::attention_backward {

using planning::Call;

/// The tensor map of the rows of a head of [batch, length, heads, dim] or [total, heads, dim].
inline CUtensorMap map_of(const Tensor& t, int box_rows, int box_inner) {
  return tile::rows_map(tile::heads_of(t), box_rows, box_inner);
}

template <class T>
void launch_main(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
                 const planning::BackwardWalk& walk, const BackwardScratch& scratch,
                 const Call& call) {
  constexpr float kLog2e = 1.4426950408889634f;
  const AttentionProblem& forward = problem.forward;
  Arguments args{};
  // Without queries nothing is loaded, so any tensor will do.
  const bool loads = shape.q_total > 0;
  const Tensor dout = loads ? readable_dout(problem, scratch.dout) : forward.v;
  args.q = map_of(loads ? forward.q : forward.k, T::kM, T::Queries::kLine);
  args.k = map_of(forward.k, T::kN, T::Keys::kLine);
  args.v = map_of(forward.v, T::kN, T::Values::kLine);
  args.dout = map_of(dout, T::kM, T::Gradients::kLine);
  args.walk = walk;
  args.scratch = scratch;
  args.dk = rows_of_shares(problem.dk, scratch.dk, shape, walk);
  args.dv = rows_of_shares(problem.dv, scratch.dv, shape, walk);
  args.scale = shape.scale;
  args.exponent_scale = T::kCaps ? kLog2e : shape.scale * kLog2e;
  if (T::kCaps) {
    args.transform = cuda::attention::score_transform(shape.scale, shape.softcap);
    args.inverse_cap = 1 / (kLog2e * shape.softcap);
  }
  const auto blocks = call.planned.layout.get<planning::BackwardLayout>().blocks;
  Kernel<attention_backward_kernel<T>>::launch({.name = "attention_backward_kernel",
                                                .grid = grid_of(blocks),
                                                .threads = T::kThreads,
                                                .stream = call.stream,
                                                .shared_bytes = T::kSharedBytes,
                                                .overlapped = loads},
                                               args);
}

/// Calls launch<kSoftcap>() for a shape: whether the kernels have a softcap.
template <planning::Tile kTile>
void with_softcap(const planning::AttentionShape& shape, const auto& launch) {
  if constexpr (planning::supports_softcap(kTile)) {
    if (shape.softcap > 0) return launch.template operator()<true>();
  }
  launch.template operator()<false>();
}

template <planning::Tile kTile, class Element>
void launch_typed(const Call& call) {
  const auto main = [&](const auto& problem, const auto& shape, const auto& walk,
                        const auto& scratch) {
    with_softcap<kTile>(shape, [&]<bool kSoftcap>() {
      launch_main<Traits<kTile, Element, kSoftcap>>(problem, shape, walk, scratch, call);
    });
  };
  const auto dq = [&](const auto& problem, const auto& shape, const auto& walk, const auto& scratch,
                      bool follows_main) {
    if constexpr (kTile.dq_queries > 0)
      with_softcap<kTile>(shape, [&]<bool kSoftcap>() {
        launch_dq<DqTraits<kTile, Element, kSoftcap>>(problem, shape, walk, scratch, follows_main,
                                                      call);
      });
  };
  launch_passes(call, kTile, SumsOrder::by_lane, true, main, dq);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& shape = std::get<planning::AttentionBackwardShape>(call.shape);
  with_multiplied<kDtypes>(shape.dtype,
                           [&]<class Element>() { launch_typed<kTile, Element>(call); });
}

}  // namespace tessera::cuda::sm90::attention_backward
