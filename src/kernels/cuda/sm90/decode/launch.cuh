#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/kernels/cuda/prepare/compose_mask.hpp"
#include "src/kernels/cuda/sm90/attention/launch.cuh"
#include "src/kernels/cuda/sm90/decode/kernel.cuh"
#include "src/kernels/cuda/sm90/decode/plan.hpp"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/walk/views.hpp"

namespace tessera::cuda::sm90::decode {

using planning::Call;

/// Keys and values beyond this do not stay in L2, and are loaded with evict_first.
inline constexpr double kKeptBytes = 32e6;

/// Adds what turns scores into results: scale, softcap, sinks, element masks.
inline void add_scores(Arguments& args, const AttentionProblem& problem,
                       const planning::AttentionShape& shape) {
  constexpr float kLog2e = 1.4426950408889634f;
  args.transforms_scores = shape.transforms_scores;
  args.transform = score_transform(shape.scale, shape.softcap);
  args.exponents.scale = shape.transforms_scores ? kLog2e : shape.scale * kLog2e;
  if (shape.softcap > 0.0f) args.exponents.ceiling = shape.softcap * kLog2e;
  args.sinks = sinks_of(problem.sinks);
  args.masks = element_masks(problem.mask);
}

/// Adds the tensor maps of K and V, and how their rows are found.
template <class T>
void add_keys(Arguments& args, const AttentionProblem& problem,
              const planning::AttentionShape& shape, const planning::DecodeLayout& layout) {
  args.box_rows = static_cast<int>(planning::decode_box_rows(shape));
  if (shape.kv_layout == planning::KvLayout::paged)
    args.pages = planning::page_view(problem.page_table, problem.k);
  // With no keys, every load is out of bounds, so any tensor will do.
  const auto heads_or_q = [&](const Tensor& t) {
    return attention::heads_of(shape.kv_total > 0 ? t : problem.q);
  };
  args.k = attention::map_of(heads_or_q(problem.k), 0, args.box_rows, T::Keys::kLine);
  args.v = attention::map_of(heads_or_q(problem.v), 0, args.box_rows, T::Values::kLine);
  const bool read_once =
      layout.tiles.pack * shape.kv_heads == shape.heads && shape.q_length <= layout.tiles.queries;
  const double bytes =
      static_cast<double>(shape.kv_total) *
      static_cast<double>(shape.kv_heads * (shape.dim + shape.dim_v) * size_of(shape.dtype));
  args.policy = read_once && bytes > kKeptBytes ? tile::kStreams : tile::kStays;
}

template <class T>
void launch_typed(const Call& call) {
  const auto& problem = std::get<AttentionProblem>(call.problem);
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::DecodeLayout>();
  if (layout.tiles.tiles == 0 || shape.q_total == 0) return clear_rest(call.problem, call.stream);
  core::Carver carver(call.workspace);
  const planning::DecodeScratch scratch = planning::carve_decode_scratch(carver, T::kTile, layout);
  Arguments args{};
  args.walk = planning::decode_walk(problem, shape, layout, T::kTile);
  args.walk.tag = planning::LaunchCount::new_tag();
  args.partials = scratch.partials;
  args.merge_counts = scratch.merge_counts;
  const tile::HeadsMap q = attention::heads_of(problem.q);
  args.q = {q.data, q.batch_stride, q.row_stride, q.head_stride, static_cast<int>(shape.dim)};
  add_keys<T>(args, problem, shape, layout);
  add_scores(args, problem, shape);
  args.result = result_of(problem);
  args.result.aligned = problem.out.dtype != DType::f32 && args.result.out_col == 1 &&
                        tile::tma_readable(attention::heads_of(problem.out));
  if (const planning::ComposedMask& composed = layout.tiles.composed) {
    compose_mask(planning::composer_of(problem, shape, composed, scratch.composed),
                 static_cast<cudaStream_t>(call.stream));
    planning::walk_composed(args.walk, composed, scratch.composed);
    args.masks = {reinterpret_cast<const std::uint8_t*>(args.walk.composed), true};
  }
  Kernel<decode_kernel<T>>::launch({.name = "decode_kernel",
                                    .grid = grid_of(layout.blocks),
                                    .threads = T::kThreads,
                                    .stream = call.stream,
                                    .shared_bytes = T::kSharedBytes,
                                    .overlapped = true},
                                   args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  with_multiplied<kDtypes>(shape.dtype,
                           [&]<class Element>() { launch_typed<Traits<kTile, Element>>(call); });
}

}  // namespace tessera::cuda::sm90::decode
