#pragma once

#include "src/kernels/cuda/attention_backward/plan.hpp"

// How the rows of Hopper's attention backward divide a problem, beside what all architectures do.
namespace tessera::planning {

/// Blocks of queries per step.
constexpr int blocks_of_step(const Tile& tile) { return tile.m / kQueriesPerBlock; }

/// dQ of a block of queries is computed, sent and added up in parts of so many columns, each with a
/// turn counter.
constexpr int dq_part_columns(const Tile& tile) {
  return tile.k > 64 || blocks_of_step(tile) > 1 ? 64 : 32;
}
constexpr int dq_parts(const Tile& tile) {
  return (tile.k + dq_part_columns(tile) - 1) / dq_part_columns(tile);
}

KernelFamily sm90_attention_backward_family();

}  // namespace tessera::planning
