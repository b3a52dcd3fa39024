#include "src/kernels/cuda/attention_backward/plan.hpp"

#include <algorithm>

#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/walk/arithmetic.hpp"

namespace tessera::planning {
namespace {

/// KV heads whose key tiles are handed out in turns. The sums of a block of queries are added in
/// the order of key tiles, so tiles of one head follow each other step by step: with more heads in
/// turns, fewer tiles of one head start together. With fewer, more thread blocks share a head's Q
/// and dO in L2.
constexpr std::int64_t kSection = 16;

// Estimates until they are measured.
constexpr double kOtherLaunches = 6e-6, kEdgeSeconds = 10e-6, kEdgeBytes = 1e12;

}  // namespace

BackwardLayout backward_layout(const AttentionBackwardShape& s, int turns) {
  BackwardLayout layout;
  if (s.heads == 0 || s.kv_heads == 0 || s.batch == 0) return layout;
  const bool packed = s.kv_layout == KvLayout::packed;
  const RowBlocks queries = RowBlocks::of(kQueriesPerBlock, s.q_packed, s.q_length);
  const RowBlocks keys = RowBlocks::of(kKeysPerTile, packed, s.kv_length);
  layout.query_blocks = queries.bound(s.batch, s.q_total);
  layout.tiles = s.kv_total > 0 ? keys.bound(s.batch, s.kv_total) * s.kv_heads : 0;
  layout.section = packed ? s.kv_heads : std::min(kSection, s.batch * s.kv_heads);
  layout.turns = turns;
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
  std::string text = "; " + std::to_string(layout.tiles) + " key tiles";
  if (layout.copies_dout) text += ", dout copied to rows that TMA can read";
  if (layout.edges)
    text += ", blocks composed into " + std::to_string(kQueriesPerBlock) + " x " +
            std::to_string(kComposedKeys);
  return text;
}

double padding_of(const AttentionBackwardShape& s, const Tile& tile) {
  const double width = real(3 * s.dim + 2 * s.dim_v);
  return real(3 * tile.k + 2 * tile.v) / std::max(width, 1.0) *
         (1 + 0.5 * tile.m / std::max(real(s.q_length), 1.0)) *
         (1 + 0.5 * kKeysPerTile / std::max(real(s.kv_length), 1.0));
}

double seconds_around(const BackwardLayout& layout) {
  return kOtherLaunches + (layout.edges ? kEdgeSeconds + edge_bytes(layout.edges) / kEdgeBytes : 0);
}

double memory_seconds(const AttentionBackwardShape& s, const BackwardLayout& layout,
                      const Tile& tile, double work_bytes, const DeviceFacts& device) {
  if (device.memory_tbs <= 0) return 0;
  const double sums = real(layout.query_blocks) * real(s.heads) * tile.m * tile.k * sizeof(float);
  return (work_bytes + 2 * sums) / (device.memory_tbs * 1e12);
}

BackwardWalk backward_walk(const AttentionProblem& problem, const AttentionShape& shape,
                           const BackwardLayout& layout, const BlockEdges& edges) {
  BackwardWalk walk;
  walk.sequences = sequences_of(problem, shape);
  walk.queries = RowBlocks::of(kQueriesPerBlock, shape.q_packed, shape.q_length);
  walk.keys = RowBlocks::of(kKeysPerTile, shape.kv_layout == KvLayout::packed, shape.kv_length);
  walk.batches = static_cast<int>(shape.batch);
  walk.heads = static_cast<int>(shape.heads);
  walk.kv_heads = static_cast<int>(shape.kv_heads);
  walk.group = static_cast<int>(shape.heads / shape.kv_heads);
  walk.tiles = static_cast<int>(layout.tiles);
  walk.section = static_cast<int>(layout.section);
  walk.query_blocks = static_cast<int>(layout.query_blocks);
  walk.edges = edges;
  return walk;
}

BackwardScratch carve_backward(core::Carver& carver, const AttentionShape& s,
                               const BackwardLayout& layout, const Tile& tile) {
  using core::Size;
  BackwardScratch scratch;
  const Size blocks = Size(layout.query_blocks) * s.heads;
  scratch.lse = carver.add<float>(blocks * tile.m);
  scratch.delta = carver.add<float>(blocks * tile.m);
  scratch.dq = carver.add<float>(blocks * tile.m * tile.k);
  scratch.turns_per_block = layout.turns;
  scratch.turns = carver.add<std::int32_t>(blocks * layout.turns);
  scratch.ticket = carver.add<std::int32_t>(1);
  if (layout.copies_dout)
    scratch.dout = carver.add<char>(Size(s.q_total) * s.heads * s.dim_v * size_of(s.dtype));
  scratch.edges = carve_edges(carver, layout.edges);
  return scratch;
}

}  // namespace tessera::planning
