#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention/arguments.cuh"
#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm90/attention_backward/dq_kernel.cuh"
#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"

namespace tessera::cuda::sm90::attention_backward {

/// Fills in the arguments of the kernel that computes dQ alone and launches it, after the kernel
/// that composes the mask if its tiles need one. If it directly follows the main kernel, the two
/// may run at the same time: where both leave SMs idle, and while the first ends.
template <class T>
void launch_dq(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
               const planning::BackwardWalk& walk, const BackwardScratch& scratch,
               bool follows_main, const planning::Call& call) {
  constexpr float kLog2e = 1.4426950408889634f;
  const planning::AttentionLayout& layout = call.planned.layout.get<planning::BackwardLayout>().dq;
  const AttentionProblem& given = problem.forward;
  DqArguments args{};
  const auto rows_of_queries = [&](const Tensor& t) {
    return tile::recent_map(tile::heads_of(t), layout.pack, T::kM / layout.pack, T::Queries::kLine);
  };
  args.q = rows_of_queries(given.q);
  args.dout = rows_of_queries(readable_dout(problem, scratch.dout));
  // With no keys, every load is out of bounds, so any tensor will do.
  const auto rows_of_keys = [&](const Tensor& t, int line) {
    return tile::recent_map(tile::heads_of(shape.kv_total > 0 ? t : given.q), 0,
                            planning::kKeyPiece, line);
  };
  args.k = rows_of_keys(given.k, T::Keys::kLine);
  args.v = rows_of_keys(given.v, T::Values::kLine);
  args.zeros_from = shape.kv_layout == planning::KvLayout::dense ? static_cast<int>(shape.kv_length)
                                                                 : planning::kOutOfBounds;
  args.walk = planning::attention_walk(given, shape, layout, T::kTile);
  args.masks = cuda::attention::element_masks(given.mask);
  AttentionProblem result = given;
  result.out = problem.dq;
  result.lse = {};
  args.result = cuda::attention::result_of(result);
  args.result.aligned = problem.dq.dtype != DType::f32 && args.result.out_col == 1 &&
                        tile::tma_readable(tile::heads_of(problem.dq));
  args.query_blocks = walk.queries;
  args.query_blocks_per_head = walk.query_blocks;
  args.lse = scratch.lse;
  args.delta = scratch.delta;
  args.scale = shape.scale;
  args.exponent_scale = T::kCaps ? kLog2e : shape.scale * kLog2e;
  if (T::kCaps) {
    args.transform = cuda::attention::score_transform(shape.scale, shape.softcap);
    args.inverse_cap = 1 / (kLog2e * shape.softcap);
  }
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const bool prepares = layout.composed || layout.ordered;  // kernels between the main one and this
  cuda::attention::begin_walk(args, given, shape, layout, scratch.dq_walk, false, stream);
  Kernel<attention_dq_kernel<T>>::launch({.name = "attention_dq_kernel",
                                          .grid = grid_of(args.walk.blocks),
                                          .threads = T::kThreads,
                                          .stream = stream,
                                          .shared_bytes = T::kSharedBytes,
                                          .overlapped = follows_main && !prepares},
                                         args);
}

}  // namespace tessera::cuda::sm90::attention_backward
