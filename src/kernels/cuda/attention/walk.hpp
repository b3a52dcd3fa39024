#pragma once

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/cuda/attention/layout.hpp"
#include "src/walk/tile_walk.hpp"

// What the launches of attention families give to their kernels: scratch memory and walks.
namespace tessera::planning {

/// The kernel's scratch memory, inside the workspace.
struct AttentionScratch {
  std::uint64_t* next_tile = nullptr;     // counter of dynamic tiles
  int* order = nullptr;                   // tiles in order; then their estimated costs
  std::uint64_t* grids_seen = nullptr;    // counts CTAs that saw all earlier grids end
  std::uint64_t* merge_counts = nullptr;  // finished parts, per consumer of a split tile
  float* partials = nullptr;  // partial results, in the layout of the consumers' registers
  ComposedLists composed;
};
/// Floats per thread of a partial result besides the O accumulator: two row maxes, two row sums; of
/// FP8 also the row sums of P before it was rounded.
constexpr int softmax_state(DType dtype) { return dtype == DType::e4m3 ? 6 : 4; }

AttentionScratch carve_attention_scratch(core::Carver& carver, const Tile& tile,
                                         const AttentionLayout& layout,
                                         int state = softmax_state(DType::f16));

/// The walk of a problem, without the counters of a launch.
AttentionWalk attention_walk(const AttentionProblem& problem, const AttentionShape& shape,
                             const AttentionLayout& layout, const Tile& tile);
/// How the composed lists are made from the problem's mask.
MaskComposer composer_of(const AttentionProblem& problem, const AttentionShape& shape,
                         const ComposedMask& to, const ComposedLists& lists);
/// Makes a walk go through composed lists.
void walk_composed(AttentionWalk& walk, const ComposedMask& to, const ComposedLists& lists);

}  // namespace tessera::planning
