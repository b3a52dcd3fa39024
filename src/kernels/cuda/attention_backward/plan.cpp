#include "src/kernels/cuda/attention_backward/plan.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/kernels/cuda/attention_backward/order.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

// Estimates until they are measured.
constexpr double kOtherLaunches = 6e-6, kEdgeSeconds = 10e-6, kEdgeBytes = 1e12;

/// Sums of dQ of a block of queries.
int sums_per_block(const BackwardLayout& layout) { return layout.rotates ? 2 : layout.chains; }

RowBlocks key_tiles(const AttentionBackwardShape& s) {
  return RowBlocks::of(kKeysPerTile, s.kv_layout == KvLayout::packed, s.kv_length);
}

}  // namespace

std::int64_t key_tiles_of(const AttentionBackwardShape& s) {
  return s.kv_total > 0 ? key_tiles(s).bound(s.batch, s.kv_total) * s.kv_heads : 0;
}

BackwardLayout backward_layout(const AttentionBackwardShape& s, int turns, TileShares tile_shares,
                               const TileOrder& order) {
  BackwardLayout layout;
  if (s.heads == 0 || s.kv_heads == 0 || s.batch == 0) return layout;
  const RowBlocks queries = RowBlocks::of(kQueriesPerBlock, s.q_packed, s.q_length);
  layout.query_blocks = queries.bound(s.batch, s.q_total);
  const std::int64_t shares = s.kv_heads * tile_shares.count();
  layout.tiles = key_tiles_of(s) * tile_shares.count();
  layout.tile_shares = tile_shares;
  layout.turns = s.any_order ? 0 : turns;
  set_sections(s, shares, order, layout);
  layout.copies_dout = !s.dout_readable;
  if (s.q_total > 0 && s.kv_total > 0) layout.edges = edge_sizes(s);
  return layout;
}

void refuse_backward_layout(const AttentionBackwardShape& s, const BackwardLayout& layout,
                            Reasons& reasons) {
  reasons.unless_at_most("key tiles", layout.tiles, INT32_MAX / 4);
  reasons.unless_at_most("blocks of queries of all heads", layout.query_blocks * s.heads,
                         INT32_MAX / 4);
  if (!layout.edges || refuse_composed(edge_bytes(layout.edges), reasons)) return;
  const ComposedMask& mask = layout.edges.mask;
  reasons.unless_at_most("entries of composed lists", mask.list_rows() * mask.capacity, INT32_MAX);
}

std::string describe_backward(const BackwardLayout& layout) {
  const int shares = layout.tile_shares.count();
  std::string text = "; " + std::to_string(layout.tiles / shares) + " key tiles";
  if (shares > 1) text += " in " + std::to_string(shares) + " shares each";
  if (layout.dq.queries > 0)
    text += ", dq in a kernel of its own" + describe_layout(layout.dq);
  else if (layout.turns == 0)
    text += ", sums of dq in any order";
  if (layout.chains > 1)
    text += ", " + std::to_string(layout.chains) + " sums of dq that tiles add to in turns";
  if (layout.copies_dout) text += ", dout copied to rows that TMA can read";
  if (layout.edges)
    text += ", blocks composed into " + std::to_string(kQueriesPerBlock) + " x " +
            std::to_string(kComposedKeys);
  return text;
}

double padding_of(const AttentionBackwardShape& s, const Tile& tile) {
  const double width = real(3 * s.dim + 2 * s.dim_v);
  // A key tile is walked by the lists of both its halves.
  const bool unites = s.masked && tile.row_groups == 1 && s.mask_block.cols % kKeysPerTile != 0;
  const double named = unites ? share_of_union(s, 1) : 0;
  return real(3 * tile.k + 2 * tile.v) / std::max(width, 1.0) *
         (named > 0 ? share_of_union(s, 2) / named : 1) *
         (1 + 0.5 * tile.m / std::max(real(s.q_length), 1.0)) *
         (1 + 0.5 * kKeysPerTile / std::max(real(s.kv_length), 1.0));
}

double seconds_around(const BackwardLayout& layout) {
  return kOtherLaunches + (layout.edges ? kEdgeSeconds + edge_bytes(layout.edges) / kEdgeBytes : 0);
}

double sums_bytes(const AttentionBackwardShape& s, const BackwardLayout& layout, const Tile& tile) {
  return real(layout.query_blocks) * real(s.heads) * kQueriesPerBlock * tile.k * sizeof(float);
}

double memory_seconds(const AttentionBackwardShape& s, const BackwardLayout& layout,
                      const Tile& tile, double work_bytes, const DeviceFacts& device) {
  if (device.memory_tbs <= 0) return 0;
  const double sums =
      tile.dq_queries > 0 ? 0 : sums_bytes(s, layout, tile) * sums_per_block(layout);
  return (work_bytes + 2 * (sums + bytes_of_shares(s, layout.tile_shares))) /
         (device.memory_tbs * 1e12);
}

BackwardWalk backward_walk(const AttentionProblem& problem, const AttentionShape& shape,
                           const BackwardLayout& layout, const BlockEdges& edges) {
  BackwardWalk walk;
  walk.sequences = sequences_of(problem, shape);
  walk.queries = RowBlocks::of(kQueriesPerBlock, shape.q_packed, shape.q_length);
  walk.keys = key_tiles(AttentionBackwardShape{shape});
  walk.batches = static_cast<int>(shape.batch);
  walk.heads = static_cast<int>(shape.heads);
  walk.tile_shares = layout.tile_shares;
  walk.shares = static_cast<int>(shape.kv_heads) * layout.tile_shares.count();
  walk.group = static_cast<int>(shape.heads / shape.kv_heads) / layout.tile_shares.heads;
  walk.tiles = static_cast<int>(layout.tiles);
  walk.section = static_cast<int>(layout.section);
  walk.alternates = layout.alternates;
  walk.rotates = layout.rotates;
  walk.query_blocks = static_cast<int>(layout.query_blocks);
  walk.chains = layout.chains;
  walk.edges = edges;
  walk.set_divisors();
  return walk;
}

BackwardScratch carve_backward(core::Carver& carver, const AttentionShape& s,
                               const BackwardLayout& layout, const Tile& tile) {
  using core::Size;
  BackwardScratch scratch;
  const Size blocks = Size(layout.query_blocks) * s.heads;
  scratch.lse = carver.add<float>(blocks * kQueriesPerBlock);
  scratch.delta = carver.add<float>(blocks * kQueriesPerBlock);
  if (tile.dq_queries > 0) {
    scratch.dq_walk = carve_attention_scratch(carver, tile, layout.dq);
  } else {
    scratch.sums = sums_per_block(layout);
    const Size all = blocks * scratch.sums;
    scratch.dq = carver.add<float>(all * kQueriesPerBlock * tile.k);
    scratch.turns_per_block = layout.turns;
    if (layout.turns > 0)
      scratch.turns = carver.add<std::int32_t>(all * layout.turns);
    else
      scratch.cleared = kQueriesPerBlock * tile.k;
  }
  scratch.ticket = carver.add<std::int32_t>(1);
  if (layout.tile_shares.count() > 1) {
    const Size rows = Size(s.kv_total) * s.kv_heads * layout.tile_shares.count();
    scratch.dk = carver.add<float>(rows * s.dim);
    scratch.dv = carver.add<float>(rows * s.dim_v);
  }
  if (layout.copies_dout)
    scratch.dout = carver.add<char>(Size(s.q_total) * s.heads * s.dim_v * size_of(s.dtype));
  scratch.edges = carve_edges(carver, layout.edges);
  return scratch;
}

}  // namespace tessera::planning
