#include "src/kernels/cuda/attention_backward/plan.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

// Estimates until they are measured.
constexpr double kOtherLaunches = 6e-6, kEdgeSeconds = 10e-6, kEdgeBytes = 1e12;
constexpr double kShareBytes = 2.5e12;  // per second, of sums of shares, written and read
constexpr std::int64_t kMaxBlockShares = 16;
// Key tiles that begin with the same block may wait for each other for this share of the time.
constexpr double kMaxWaits = 0.04;
// More shares have to reduce the time to this fraction: their sums take memory.
constexpr double kMaxShareOfTime = 0.97;
// Shares of key tiles follow each other by this fraction of the lag, as measured on an H200:
// counted in full, calls of few heads got too few shares and took 10 to 20% longer.
constexpr double kLagOfShares = 0.5;

/// Whether all key tiles visit all queries.
bool visits_all(const AttentionBackwardShape& s) {
  return s.window_left < 0 && s.window_right < 0 && !s.masked;
}

bool is_packed(const AttentionBackwardShape& s) {
  return s.q_packed || s.kv_layout == KvLayout::packed;
}

/// Whether later tiles are shorter, without a block mask. Then sections of heads may ascend and
/// descend in turns. Tiles of a section that ascends start together, each at its own first block,
/// and end one after the other, the last one first; so those of the next section, which all begin
/// with the last block, start one after the other. No tile waits, though few heads are in turns.
bool ends_early(const AttentionBackwardShape& s) {
  return s.window_right >= 0 && s.window_left < 0 && !s.masked;
}

/// Of KV heads whose key tiles are handed out in turns, how many keep waits below kMaxWaits of the
/// time: of tiles that begin with the same block each follows the one before it.
double heads_for_few_waits(const AttentionBackwardShape& s, const TileOrder& order) {
  if (s.window_left >= 0 || s.masked || (order.may_rotate && !ends_early(s))) return 1;
  const std::int64_t keys = ends_early(s) ? s.kv_length - s.q_length : s.kv_length;
  const double flops = 2.0 * kQueriesPerBlock * kKeysPerTile * real(3 * s.dim + 2 * s.dim_v);
  const double blocks = work_of(AnyShape(s)).flops / std::max(flops, 1.0);         // of all tiles
  const double tiles = kMaxWaits * blocks / (order.concurrent_tiles * order.lag);  // of a head
  return real(keys) / kKeysPerTile <= tiles ? 1 : order.concurrent_tiles / std::max(tiles, 1e-3);
}

/// KV heads whose key tiles are handed out in turns, as measured on an H200: with few of them,
/// thread blocks share a head's Q, dO and sums of dQ in L2. Where sums have no order and later
/// tiles are much shorter, long ones of several heads have to come first. Tiles of a window or of
/// lists follow each other step by step, so that few tiles of a head have to start together.
double heads_in_turns(const AttentionBackwardShape& s, bool in_order, const TileOrder& order) {
  const std::int64_t blocks = ceil_div(s.q_length, kQueriesPerBlock);
  const bool limited = s.window_left >= 0 || s.window_right >= 0;
  if (!in_order) return limited && blocks < 128 ? 4 : 1;
  if (s.window_left >= 0 || s.masked) return blocks < 64 ? 16 : 8;
  const double tiles = real(std::max<std::int64_t>(ceil_div(s.kv_length, kKeysPerTile), 1));
  return std::clamp(order.concurrent_tiles / tiles, 1.0, 16.0);
}

/// KV heads of all sequences per section, where sections ascend and descend in turns: `wanted` or
/// more, so that the number of sections is even and the last one as full as possible.
std::int64_t even_section(std::int64_t heads, double wanted) {
  const std::int64_t half = ceil_div(heads, 2);
  const auto least = static_cast<std::int64_t>(std::max(std::ceil(0.95 * wanted), 1.0));
  std::int64_t best = half;
  double fullest = 0;
  for (std::int64_t section = least; section < std::min(2 * least, half) && fullest < 1;
       ++section) {
    const std::int64_t sections = ceil_div(heads, section);
    const double last = real(heads - (sections - 1) * section) / real(section);
    if (sections % 2 == 0 && last > fullest) fullest = last, best = section;
  }
  return best;
}

/// The size of sums of shares.
double bytes_of_shares(const AttentionBackwardShape& s, const TileShares& tile_shares) {
  if (tile_shares.count() == 1) return 0;
  return real(s.kv_total) * real(s.kv_heads) * tile_shares.count() * real(s.dim + s.dim_v) *
         sizeof(float);
}

/// Sets the shares whose tiles are handed out in turns, and whether sections of them alternate. A
/// block of queries may be in another share of the next tile, so all shares of a head that divide
/// blocks are in one section: no tile waits for one that is handed out after it.
void set_sections(const AttentionBackwardShape& s, std::int64_t shares, const TileOrder& order,
                  BackwardLayout& layout) {
  const std::int64_t all = s.batch * shares, blocks = layout.tile_shares.blocks;
  const bool in_order = layout.turns > 0;
  layout.section = s.kv_layout == KvLayout::packed ? shares : all;
  if (s.kv_layout == KvLayout::packed || (in_order && layout.tile_shares.count() > 1)) return;
  const double least = in_order ? heads_for_few_waits(s, order) : 1;
  const double heads = std::max(heads_in_turns(s, in_order, order), least);
  if (in_order && ends_early(s)) {
    layout.alternates = 2 * least <= real(all);
    if (layout.alternates) layout.section = even_section(all, std::min(heads, real(all) / 2));
  } else if (heads < real(all)) {
    layout.section = std::max<std::int64_t>(static_cast<std::int64_t>(heads) / blocks, 1) * blocks;
  }
}

RowBlocks key_tiles(const AttentionBackwardShape& s) {
  return RowBlocks::of(kKeysPerTile, s.kv_layout == KvLayout::packed, s.kv_length);
}

}  // namespace

std::int64_t key_tiles_of(const AttentionBackwardShape& s) {
  return s.kv_total > 0 ? key_tiles(s).bound(s.batch, s.kv_total) * s.kv_heads : 0;
}

ChosenShares best_shares(const AttentionBackwardShape& s, const TileCosts& costs,
                         const TileOrder& order, bool in_order) {
  ChosenShares best;
  if (s.kv_heads == 0 || s.batch == 0) return best;
  const double tiles = real(key_tiles_of(s));
  if (tiles < 1 || tiles > 4 * costs.concurrent_tiles) return best;
  double least = INFINITY;
  const double of_head = real(key_tiles(s).count(static_cast<int>(s.kv_length)));
  const double of_tile =  // blocks of queries, of all heads of a group
      real(ceil_div(s.q_length, kQueriesPerBlock)) * real(s.heads / s.kv_heads);
  // Where tiles visit all queries, those of a head that run at a time begin with the same block, so
  // each follows the one before it, unless tiles that are not divided begin at blocks of their own.
  const bool starts_apart = order.may_rotate && !is_packed(s);
  const bool may_wait = in_order && visits_all(s);
  const auto waits_of = [&](double all) {
    const double lines = all / std::max(of_head, 1.0);
    const double together = std::clamp(costs.concurrent_tiles / lines, 1.0, of_head);
    return kLagOfShares * (together - 1) * order.lag * costs.seconds /
           std::max(tiles * of_tile, 1.0);
  };
  const auto consider = [&](std::int64_t heads, std::int64_t blocks) {
    const TileShares tile_shares{static_cast<int>(heads), static_cast<int>(blocks)};
    const double all = tiles * tile_shares.count();
    const bool waits = may_wait && (tile_shares.count() > 1 || !starts_apart);
    const double waiting = waits ? waits_of(all) : 0;
    const double rounds = std::ceil(all / costs.concurrent_tiles), mean = costs.seconds / all;
    const double seconds = rounds * costs.tile_seconds + std::max(rounds, costs.imbalance) * mean +
                           waiting + 2 * bytes_of_shares(s, tile_shares) / kShareBytes;
    if (seconds < kMaxShareOfTime * least) least = seconds, best = {tile_shares, waiting};
  };
  const std::int64_t group = s.heads / s.kv_heads;
  for (std::int64_t heads = 1; heads <= group; ++heads)
    if (group % heads == 0) consider(heads, 1);
  const std::int64_t blocks = ceil_div(ceil_div(s.q_total, s.batch), kQueriesPerBlock);
  for (std::int64_t shares = 2; shares <= std::min(blocks, kMaxBlockShares); ++shares)
    consider(group, shares);
  return best;
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

bool may_rotate(const AttentionBackwardShape& s, const BackwardLayout& layout) {
  return layout.turns > 0 && visits_all(s) && !is_packed(s) && layout.tile_shares.count() == 1;
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
      tile.dq_queries > 0 ? 0 : sums_bytes(s, layout, tile) * (layout.rotates ? 2 : 1);
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
    scratch.sums = layout.rotates ? 2 : 1;
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
