#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>
#include <tessera/error.hpp>

#include "src/core/check.hpp"
#include "src/core/recent.hpp"
#include "src/kernels/cuda/attention/order.cuh"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/kernels/cuda/prepare/compose_mask.hpp"
#include "src/kernels/cuda/sm90/attention/kernel.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"

namespace tessera::cuda::sm90::attention {

using planning::Call;

/// A [batch, length, heads, dim] tensor for TMA; a packed [total, heads, dim] tensor becomes one
/// batch.
inline tile::HeadsMap heads_of(const Tensor& t) {
  const int row = t.rank - 3;
  return {t.data,        t.dtype,           t.size(t.rank - 1),
          t.size(row),   t.size(row + 1),   row > 0 ? t.size(0) : 1,
          t.stride(row), t.stride(row + 1), row > 0 ? t.stride(0) : 0};
}

/// The tensor map of a tensor, from a per-thread cache: most calls repeat the maps of an earlier
/// call, and the driver needs up to 0.1 us to encode one. `fold`: heads folded into rows; 0: the
/// rows of one head.
inline const CUtensorMap& map_of(const tile::HeadsMap& t, int fold, int box_rows, int box_inner) {
  thread_local core::Recent<CUtensorMap, 12> maps;
  return maps.get(
      {reinterpret_cast<std::intptr_t>(t.data), static_cast<int>(t.dtype), t.inner, t.rows, t.heads,
       t.batches, t.row_stride, t.head_stride, t.batch_stride, fold, box_rows, box_inner},
      [&] {
        return fold > 0 ? tile::folded_map(t, fold, box_rows, box_inner)
                        : tile::rows_map(t, box_rows, box_inner);
      });
}

/// Fills in the kernel's arguments and launches it, after the kernels that compose the mask and
/// order the tiles if these are needed.
template <class T>
void launch_typed(const Call& call) {
  const auto& problem = std::get<AttentionProblem>(call.problem);
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::AttentionLayout>();
  if (layout.tiles == 0 || shape.q_total == 0) return clear_rest(call.problem, call.stream);
  core::Carver carver(call.workspace);
  const planning::AttentionScratch scratch =
      planning::carve_attention_scratch(carver, T::kTile, layout);
  Arguments args{};
  args.q = map_of(heads_of(problem.q), layout.pack, T::kM / layout.pack, T::Queries::kLine);
  // With no keys, every load is out of bounds, so any tensor will do.
  const auto heads_or_q = [&](const Tensor& t) {
    return heads_of(shape.kv_total > 0 ? t : problem.q);
  };
  args.k = map_of(heads_or_q(problem.k), 0, planning::kKeyPiece, T::Keys::kLine);
  args.v = map_of(heads_or_q(problem.v), 0, planning::kKeyPiece, T::Values::kLine);
  args.walk = planning::attention_walk(problem, shape, layout, T::kTile);
  args.partials = scratch.partials;
  args.merge_counts = scratch.merge_counts;
  args.result = result_of(problem);
  const tile::HeadsMap out = heads_of(problem.out);
  args.result.aligned =
      problem.out.dtype != DType::f32 && args.result.out_col == 1 && tile::tma_readable(out);
  if (args.result.aligned)
    args.stored_rows = T::kRows % layout.pack == 0 ? T::kRows : args.walk.rows();
  if (args.stored_rows > 0)
    args.out = map_of(out, layout.pack, args.stored_rows / layout.pack, T::Queries::kLine);
  args.overlaps_tiles = layout.overlaps;
  constexpr float kLog2e = 1.4426950408889634f;
  args.transform = score_transform(shape.scale, shape.softcap);
  args.exponents.scale = T::kTransformsScores ? kLog2e : shape.scale * kLog2e;
  if (shape.softcap > 0.0f) args.exponents.ceiling = shape.softcap * kLog2e;
  args.sinks = sinks_of(problem.sinks);
  args.masks = element_masks(problem.mask);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  if (layout.composed) {
    compose_mask(planning::composer_of(problem, shape, layout.composed, scratch.composed), stream);
    planning::walk_composed(args.walk, layout.composed, scratch.composed);
    args.masks = {reinterpret_cast<const std::uint8_t*>(args.walk.composed), true};
  }
  args.walk.tag = planning::LaunchCount::new_tag();
  if (layout.dynamic()) {
    args.walk.next_tile = scratch.next_tile;
    args.walk.order = scratch.order;
    args.walk.grids_seen = scratch.grids_seen;
  }
  if (args.walk.order) order_tiles(args.walk, true, stream);
  Kernel<attention_kernel<T>>::launch({.name = "attention_kernel",
                                       .grid = grid_of(args.walk.blocks),
                                       .threads = T::kThreads,
                                       .stream = stream,
                                       .shared_bytes = T::kSharedBytes,
                                       .overlapped = true},
                                      args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  with_multiplied<kDtypes>(shape.dtype, [&]<class Element>() {
    if constexpr (planning::supports_score_transform(kTile)) {
      if (shape.transforms_scores)
        return launch_typed<Traits<kTile, Element, Instance::transformed>>(call);
    }
    launch_typed<Traits<kTile, Element, Instance::plain>>(call);
  });
}

}  // namespace tessera::cuda::sm90::attention
