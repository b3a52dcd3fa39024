#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/block_edges.hpp"
#include "src/kernels/cuda/prepare/compose_mask.hpp"
#include "src/kernels/cuda/sm90/attention_backward/kernel.cuh"
#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"

namespace tessera::cuda::sm90::attention_backward {

using planning::Call;

/// The tensor map of the rows of a head of [batch, length, heads, dim] or [total, heads, dim].
inline CUtensorMap map_of(const Tensor& t, int box_rows, int box_inner) {
  return tile::rows_map(tile::heads_of(t), box_rows, box_inner);
}

/// dout, or the copy of it that TMA can read.
inline Tensor readable_dout(const AttentionBackwardProblem& problem, void* copy) {
  if (!copy) return problem.dout;
  Tensor t = problem.dout;
  t.data = copy;
  t.dtype = problem.forward.q.dtype;
  std::int64_t stride = 1;
  for (int i = t.rank; i-- > 0;) {
    t.strides[static_cast<std::size_t>(i)] = stride;
    stride *= t.size(i);
  }
  return t;
}

/// Writes the edges of a block mask.
inline void write_edges(const AttentionProblem& problem, const planning::AttentionShape& shape,
                        const planning::BackwardWalk& walk, void* stream) {
  const planning::BlockEdges& edges = walk.edges;
  compose_mask(planning::composer_of(problem, shape, edges.sizes.mask, edges.lists), stream);
  write_block_edges(edges, walk.sequences, stream);
}

template <class T>
void launch_main(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
                 const planning::BackwardWalk& walk, const BackwardScratch& scratch, void* stream) {
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
  args.dk = HeadRows::of(problem.dk);
  args.dv = HeadRows::of(problem.dv);
  args.scale = shape.scale;
  args.exponent_scale = T::kCaps ? kLog2e : shape.scale * kLog2e;
  if (T::kCaps) {
    args.transform = cuda::attention::score_transform(shape.scale, shape.softcap);
    args.inverse_cap = 1 / (kLog2e * shape.softcap);
  }
  Kernel<attention_backward_kernel<T>>::launch({.name = "attention_backward_kernel",
                                                .grid = grid_of(walk.tiles * T::kKeyParts),
                                                .threads = T::kThreads,
                                                .stream = stream,
                                                .shared_bytes = T::kSharedBytes},
                                               args);
}

template <planning::Tile kTile, class Element>
void launch_typed(const Call& call) {
  using Plain = Traits<kTile, Element, false>;
  const auto& problem = std::get<AttentionBackwardProblem>(call.problem);
  const auto& shape = std::get<planning::AttentionBackwardShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::BackwardLayout>();
  if (shape.heads == 0) return;
  core::Carver carver(call.workspace);
  const BackwardScratch scratch = planning::carve_backward(carver, shape, layout, kTile);
  const planning::BackwardWalk walk =
      planning::backward_walk(problem.forward, shape, layout, scratch.edges);
  if (shape.q_total > 0)
    compute_statistics(problem, walk, scratch, call.stream);
  else
    check(cudaMemsetAsync(scratch.ticket, 0, sizeof(*scratch.ticket),
                          static_cast<cudaStream_t>(call.stream)),
          "cudaMemsetAsync");
  if (problem.dsinks) compute_dsinks(problem, walk, scratch, call.stream);
  if (!problem.dq && !problem.dk && !problem.dv) return;
  if (layout.tiles > 0) {
    if (layout.edges) write_edges(problem.forward, shape, walk, call.stream);
    if (shape.softcap > 0)
      launch_main<Traits<kTile, Element, true>>(problem, shape, walk, scratch, call.stream);
    else
      launch_main<Plain>(problem, shape, walk, scratch, call.stream);
  }
  if (problem.dq && shape.q_total > 0)
    convert_dq(problem, walk, scratch, shape.scale, kTile.k, Plain::kPart, call.stream);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& shape = std::get<planning::AttentionBackwardShape>(call.shape);
  with_multiplied<kDtypes>(shape.dtype,
                           [&]<class Element>() { launch_typed<kTile, Element>(call); });
}

}  // namespace tessera::cuda::sm90::attention_backward
