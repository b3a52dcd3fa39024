#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention/masks.cuh"
#include "src/kernels/cuda/attention/order.cuh"
#include "src/kernels/cuda/attention/results.cuh"
#include "src/kernels/cuda/attention/scores.cuh"
#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/cuda/prepare/compose_mask.hpp"
#include "src/walk/launch_count.hpp"

// Host code that fills in what the kernels' arguments of all forward families have in common.
namespace tessera::cuda::attention {

/// What turns scores into results, and where results lie.
template <class Arguments>
void set_scores(Arguments& args, const AttentionProblem& problem,
                const planning::AttentionShape& shape) {
  constexpr float kLog2e = 1.4426950408889634f;
  args.transform = score_transform(shape.scale, shape.softcap);
  args.exponents.scale = shape.transforms_scores ? kLog2e : shape.scale * kLog2e;
  if (shape.softcap > 0.0f) args.exponents.ceiling = shape.softcap * kLog2e;
  args.sinks = sinks_of(problem.sinks);
  args.result = result_of(problem);
  args.masks = element_masks(problem.mask);
}

/// If the mask's lists have to be composed: launches the kernel that composes them, and makes the
/// walk go through them.
template <class Arguments>
void set_composed_lists(Arguments& args, const AttentionProblem& problem,
                        const planning::AttentionShape& shape, const planning::ComposedMask& to,
                        const planning::ComposedLists& lists, cudaStream_t stream) {
  if (!to) return;
  compose_mask(planning::composer_of(problem, shape, to, lists), stream);
  planning::walk_composed(args.walk, to, lists);
  args.masks = {reinterpret_cast<const std::uint8_t*>(args.walk.composed), true};
}

/// Gives the kernel its scratch memory, and launches what comes before it: kernels that compose the
/// mask's lists and order the tiles. `args.walk` is set; `overlapped`: see order_tiles.
template <class Arguments>
void begin_walk(Arguments& args, const AttentionProblem& problem,
                const planning::AttentionShape& shape, const planning::AttentionLayout& layout,
                const planning::AttentionScratch& scratch, bool overlapped, cudaStream_t stream) {
  args.partials = scratch.partials;
  args.merge_counts = scratch.merge_counts;
  set_composed_lists(args, problem, shape, layout.composed, scratch.composed, stream);
  args.walk.tag = planning::LaunchCount::new_tag();
  if (!layout.dynamic()) return;
  args.walk.next_tile = scratch.next_tile;
  args.walk.order = scratch.order;
  args.walk.grids_seen = scratch.grids_seen;
  if (args.walk.order) order_tiles(args.walk, overlapped, stream);
}

}  // namespace tessera::cuda::attention
