#pragma once

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/family.hpp"
#include "src/walk/backward_walk.hpp"

// How the rows of Hopper's attention backward divide a problem: host arithmetic that the planner
// and the launch share.
namespace tessera::planning {

struct BackwardLayout {
  std::int64_t tiles = 0;         // key tiles of all KV heads, upper bound
  std::int64_t query_blocks = 0;  // numbers of blocks of queries per head
  std::int64_t section = 1;       // KV heads whose tiles are handed out in turns
  bool copies_dout = false;       // TMA cannot read dout
  EdgeSizes edges;                // of a block mask
};

/// dQ of a block of queries is computed, sent and added up in parts of so many columns.
constexpr int dq_part_columns(const Tile& tile) { return tile.k > 64 ? 64 : 32; }
constexpr int dq_parts(const Tile& tile) {
  return (tile.k + dq_part_columns(tile) - 1) / dq_part_columns(tile);
}

/// Thread blocks per key tile: a thread block has all of its keys, or half of them.
constexpr int key_parts(const Tile& tile) { return kKeysPerTile / tile.n; }

BackwardLayout backward_layout(const AttentionBackwardShape& s, const Tile& tile);

/// The walk of a problem; `edges` are in the workspace.
BackwardWalk backward_walk(const AttentionProblem& problem, const AttentionShape& shape,
                           const BackwardLayout& layout, const BlockEdges& edges);

/// The kernels' memory, inside the workspace. Of each block of queries of a head, in the order of
/// RowBlocks: statistics of its queries, sums of dQ, and a turn counter for each part of
/// the columns of dQ.
struct BackwardScratch {
  float* lse = nullptr;    // -log2(e) * lse, in the order of `mixed_query`
  float* delta = nullptr;  // rowsum(dO * O) - dlse, likewise
  float* dq = nullptr;     // in the order of the consumers' registers
  std::int32_t* turns = nullptr;
  int dq_parts = 0;                // per block of queries
  std::int32_t* ticket = nullptr;  // key tiles, or halves of them, handed out
  void* dout = nullptr;            // a copy that TMA can read: [rows of q, heads, dim_v]
  BlockEdges edges;
};
BackwardScratch carve_backward(core::Carver& carver, const AttentionShape& s,
                               const BackwardLayout& layout, const Tile& tile);

/// Where a block's statistics have query `query`: a consumer's thread needs the queries 8 g + 2 c
/// and 8 g + 2 c + 1 of all g for its c, and reads four of them at once. No bank is read twice.
TESSERA_HD constexpr int mixed_query(int query) {
  const int g = query / 8 % 8, c = query / 2 % 4;
  return c * 16 + ((g / 2) ^ (c / 2)) * 4 + g % 2 * 2 + query % 2;
}

KernelFamily sm90_attention_backward_family();

}  // namespace tessera::planning
