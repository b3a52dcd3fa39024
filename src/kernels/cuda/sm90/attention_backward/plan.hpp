#pragma once

#include "src/kernels/cuda/attention_backward/plan.hpp"
#include "src/walk/key_pieces.hpp"

// How the rows of Hopper's attention backward divide a problem, beside what all architectures do.
namespace tessera::planning {

/// Blocks of queries per step.
constexpr int blocks_of_step(const Tile& tile) { return tile.m / kQueriesPerBlock; }

/// Whether registers are left for the derivative of a softcap: not beside scores of two blocks of
/// queries, nor with lists of 64 rows and wide heads.
constexpr bool supports_softcap(const Tile& tile) {
  return blocks_of_step(tile) == 1 && (tile.row_groups == 1 || tile.k <= 64);
}

/// dQ of a block of queries is computed, sent and added up in parts of so many columns, each with a
/// turn counter.
constexpr int dq_part_columns(const Tile& tile) {
  return tile.k > 64 || blocks_of_step(tile) > 1 ? 64 : 32;
}
constexpr int dq_parts(const Tile& tile) {
  return (tile.k + dq_part_columns(tile) - 1) / dq_part_columns(tile);
}

/// The kernel that computes dQ alone, where a row has one. Q and dO of a tile stay in shared
/// memory, and stages of K and V fill the rest but for descriptors, with narrow heads a part of it:
/// one of each in turns, K's first.
constexpr int kDqKeys = 64;  // per step
constexpr int dq_stage_bytes(int columns) { return kDqKeys * columns * 2; }
constexpr int dq_stages_bytes(const Tile& tile) {
  const int columns_of_lists = tile.row_groups > 1 ? tile.row_groups * kMaxRowGroupBlocks / 8 : 0;
  return 224 * 1024 - tile.dq_queries * (tile.k + tile.v) * 2 - columns_of_lists;
}
constexpr int kMaxDqStages = 8;
constexpr int dq_value_stages(const Tile& tile) {
  const int stages = dq_stages_bytes(tile) / dq_stage_bytes(tile.k + tile.v);
  return stages < kMaxDqStages ? stages : kMaxDqStages;
}
constexpr int dq_key_stages(const Tile& tile) {
  const int stages = (dq_stages_bytes(tile) - dq_value_stages(tile) * dq_stage_bytes(tile.v)) /
                     dq_stage_bytes(tile.k);
  return stages < kMaxDqStages ? stages : kMaxDqStages;
}
/// Its tile, in the terms of the forward pass.
constexpr Tile dq_tile(const Tile& tile) {
  return {.m = tile.dq_queries,
          .n = kDqKeys,
          .k = tile.k,
          .stages = dq_key_stages(tile),
          .warpgroups = tile.dq_queries / 64,
          .v = tile.v,
          .row_groups = tile.row_groups};
}

KernelFamily sm90_attention_backward_family();

}  // namespace tessera::planning
