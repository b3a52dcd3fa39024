#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention/arguments.cuh"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/kernels/cuda/sm90/decode/kernel.cuh"
#include "src/kernels/cuda/sm90/decode/plan.hpp"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"
#include "src/walk/views.hpp"

namespace tessera::cuda::sm90::decode {

using planning::Call;

/// Keys and values beyond this do not stay in L2, and are loaded with evict_first.
inline constexpr double kKeptBytes = 32e6;

/// Adds the tensor maps of K and V, and how their rows are found.
template <class T>
void add_keys(Arguments& args, const AttentionProblem& problem,
              const planning::AttentionShape& shape, const planning::DecodeLayout& layout) {
  args.box_rows = static_cast<int>(planning::decode_box_rows(shape));
  if (shape.kv_layout == planning::KvLayout::paged)
    args.pages = planning::page_view(problem.page_table, problem.k);
  // Without keys nothing is loaded, so any tensor will do.
  const auto heads_or_any = [&](const Tensor& t) {
    tile::HeadsMap keys{problem.q.data, shape.kv_dtype(), 16, 1, 1, 1, 0, 0, 0};
    if (shape.kv_total > 0) keys = tile::heads_of(t);
    keys.streams = true;
    return keys;
  };
  args.k = tile::recent_map(heads_or_any(problem.k), 0, args.box_rows, T::Keys::kLine);
  args.v = tile::recent_map(heads_or_any(problem.v), 0, args.box_rows, T::Values::kLine);
  const bool read_once =
      layout.tiles.pack * shape.kv_heads == shape.heads && shape.q_length <= layout.tiles.queries;
  const double bytes =
      static_cast<double>(shape.kv_total) *
      static_cast<double>(shape.kv_heads * (shape.dim + shape.dim_v) * size_of(shape.kv_dtype()));
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
  const tile::HeadsMap q = tile::heads_of(problem.q);
  args.q = {q.data, q.batch_stride, q.row_stride, q.head_stride, static_cast<int>(shape.dim)};
  add_keys<T>(args, problem, shape, layout);
  args.narrow_queries = shape.dtype == DType::e4m3;
  args.q_factors = factors_of<false>(problem.q_scale, problem.q);
  args.k_factors = factors_of<false>(problem.k_scale, problem.k);
  args.v_factors = factors_of<false>(problem.v_scale, problem.v);
  args.transforms_scores = shape.transforms_scores;
  set_scores(args, problem, shape);
  args.result.aligned = problem.out.dtype != DType::f32 && args.result.out_col == 1 &&
                        tile::tma_readable(tile::heads_of(problem.out));
  set_composed_lists(args, problem, shape, layout.tiles.composed, scratch.composed,
                     static_cast<cudaStream_t>(call.stream));
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
  if (shape.dtype == DType::e4m3)
    return launch_typed<Traits<kTile, __nv_bfloat16, __nv_fp8_e4m3>>(call);
  with_multiplied<kDtypes & ~core::dtypes({DType::e4m3})>(shape.dtype, [&]<class Element>() {
    if (shape.narrow_kv == DType::none)
      launch_typed<Traits<kTile, Element, Element>>(call);
    else
      launch_typed<Traits<kTile, Element, __nv_fp8_e4m3>>(call);
  });
}

}  // namespace tessera::cuda::sm90::decode
