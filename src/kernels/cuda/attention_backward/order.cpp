#include "src/kernels/cuda/attention_backward/order.hpp"

#include <algorithm>
#include <cmath>

#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

constexpr double kShareBytes = 3e12;  // per second, of sums of shares, written and read
constexpr std::int64_t kMaxBlockShares = 16;
// Key tiles that begin with the same block may wait for each other for this share of the time.
constexpr double kMaxWaits = 0.04;
// More shares have to reduce the time to this fraction: their sums take memory.
constexpr double kMaxShareOfTime = 0.97;
// Shares of key tiles follow each other by this fraction of the lag, as measured on an H200:
// counted in full, calls of few heads got too few shares and took 10 to 20% longer.
constexpr double kLagOfShares = 0.5;
// Sums that tiles of few queries add to in turns: at most so many.
constexpr int kMaxChains = 16;
// Of these, and of shares where tiles are many: at most so many bytes.
constexpr double kMoreSumsBytes = 1 << 30;

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

/// Blocks of queries that a share of a key tile visits, the mean.
double blocks_of_tile(const AttentionBackwardShape& s, double tiles) {
  const double flops = 2.0 * kQueriesPerBlock * kKeysPerTile * real(3 * s.dim + 2 * s.dim_v);
  return work_of(AnyShape(s)).flops / std::max(flops * tiles, 1.0);
}

/// Whether sections may ascend and descend in turns: shares that divide blocks are in one section.
bool may_alternate(const AttentionBackwardShape& s, bool in_order, const TileShares& tile_shares) {
  return in_order && ends_early(s) && s.kv_layout != KvLayout::packed && tile_shares.blocks == 1;
}

/// Of KV heads whose key tiles are handed out in turns, how many keep waits below kMaxWaits of the
/// time: of tiles that begin with the same block each follows the one before it.
double heads_for_few_waits(const AttentionBackwardShape& s, const TileOrder& order) {
  if (s.window_left >= 0 || s.masked || (order.may_rotate && !ends_early(s))) return 1;
  const std::int64_t keys = ends_early(s) ? s.kv_length - s.q_length : s.kv_length;
  const double blocks = blocks_of_tile(s, 1);                                      // of all tiles
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

/// Shares whose tiles have to be in turns so that the additions to a block, one after the other,
/// take no longer than the walks of all tiles.
double heads_for_additions(const AttentionBackwardShape& s, double shares, const TileOrder& order) {
  const double tiles = real(ceil_div(s.kv_length, kKeysPerTile)) * shares;
  return std::min(order.concurrent_tiles, tiles) * kLagOfShares * order.lag /
         std::max(blocks_of_tile(s, tiles) + order.tile_blocks, 1e-3);
}

/// Bytes of Q, dO and sums of dQ that `tiles` tiles of a share visit at about the same time. Causal
/// tiles, which differ in length, drift apart by the heads of a group. Of long sequences they are
/// in a part of the queries, as they begin 128 queries apart.
double bytes_in_turn(const AttentionBackwardShape& s, double group, double tiles) {
  const double heads = 1 + (group - 1) * (ends_early(s) ? 0.6 : 0.1);
  return heads * std::min(real(s.q_length), 1.5 * kKeysPerTile * std::max(tiles, 1.0)) *
         (real(s.dim + s.dim_v) * real(size_of(s.dtype)) + real(s.dim) * sizeof(float));
}

struct Section {
  std::int64_t shares = 1;
  double slowdown = 1;
};

/// Shares per section, where sections ascend and descend in turns: `least` or more. Fitted to 60
/// choices for ten shapes on an H200: sections of fewer tiles than SMs wait, what L2 does not hold
/// is slower, and an odd number of sections or a narrow last one leaves SMs idle.
Section alternating_section(const AttentionBackwardShape& s, std::int64_t shares, double group,
                            double least, const TileOrder& order) {
  const double tiles = real(std::max<std::int64_t>(ceil_div(s.kv_length, kKeysPerTile), 1));
  const std::int64_t half = ceil_div(shares, 2);
  const double concurrent = std::min(order.concurrent_tiles, real(half) * tiles);
  const double all_rounds = real(shares) * tiles / order.concurrent_tiles;
  const double enough = 4 * std::ceil(order.concurrent_tiles / tiles);
  const auto first = std::min(static_cast<std::int64_t>(std::ceil(0.95 * least)), half);
  const auto last = std::min(first + static_cast<std::int64_t>(enough), half);
  Section best{half, INFINITY};
  for (std::int64_t section = std::max<std::int64_t>(first, 1); section <= last;
       section += 1 + (last - first) / 64) {
    const double rounds = real(section) * tiles / (0.95 * concurrent);
    const double waits = std::max(std::pow(rounds, -0.7), 1.0);
    const double tiles_of_share = order.concurrent_tiles / real(section);
    const double bytes = real(section) * bytes_in_turn(s, group, tiles_of_share);
    const double beyond =
        order.cache_bytes > 0 ? std::clamp((bytes / order.cache_bytes - 0.8) / 1.6, 0.0, 1.0) : 0;
    const std::int64_t sections = ceil_div(shares, section);
    const double rest = real(shares - (sections - 1) * section) / real(section);
    const double idle = all_rounds > 1 ? 0.5 * (sections % 2 == 0 ? 1 - rest : 1) / all_rounds : 0;
    const double slowdown = waits * (1 + 0.5 * beyond) * (1 + idle);
    if (slowdown < 0.999 * best.slowdown) best = {section, slowdown};
  }
  return best;
}

/// Shares whose tiles are handed out in turns, where sections do not alternate. `additions`: see
/// heads_for_additions; 0: tiles of a head follow each other closely, or in any order.
double shares_in_turns(const AttentionBackwardShape& s, const TileOrder& order, double group,
                       bool in_order, double additions) {
  const double shares = heads_in_turns(s, in_order, order);
  if (2 * additions <= shares) return shares;
  // Where additions would be waited for, up to as many as fill .6 of L2 (measured in bursts).
  // More without need take power: in sustained calls of S1024 to S16384 they were 1 to 3% slower.
  const double in_cache =
      0.6 * order.cache_bytes / std::max(bytes_in_turn(s, group, order.concurrent_tiles), 1.0);
  return std::min(8 * additions, std::max(in_cache, 2 * additions));
}

/// Sums of a block of queries that tiles add to in turns, where all shares, `shares`, are in turns
/// and few.
int chains_of(const AttentionBackwardShape& s, const TileOrder& order, double shares,
              double additions, const BackwardLayout& layout) {
  const double tiles = real(ceil_div(s.kv_length, kKeysPerTile));
  // Tiles that begin at blocks of their own wait less, where a head has as many blocks.
  const bool apart = order.may_rotate && visits_all(s) && layout.tile_shares.count() == 1 &&
                     real(ceil_div(s.q_length, kQueriesPerBlock)) >= tiles;
  if (shares >= (apart ? 1 : 2) * additions) return 1;
  const double sums = real(layout.query_blocks) * real(s.heads) * kQueriesPerBlock *
                      real(std::max<std::int64_t>(s.dim, 64)) * sizeof(float);
  const double most = std::min({real(kMaxChains), tiles, kMoreSumsBytes / std::max(sums, 1.0)});
  int chains = 1;
  while (chains * shares < 2 * additions && 2 * chains <= most) chains *= 2;
  return chains;
}

/// Of packed sequences, all of whose tiles are handed out before those of the next one: the more
/// of a head run at a time, the longer they wait for each other. On an H200, groups of eight heads
/// under a causal mask take 1.27 times as long with 33 tiles per head at a time as with 8, and 1.08
/// times with 16.
double slowdown_of_packed(const AttentionBackwardShape& s, const TileOrder& order, double shares) {
  if (s.kv_layout != KvLayout::packed || s.window_left >= 0 || s.masked) return 1;
  const double together = std::min(order.concurrent_tiles / std::max(shares, 1.0),
                                   real(ceil_div(s.kv_length, kKeysPerTile)));
  return 1 + 0.012 * std::max(together - 10, 0.0);
}

}  // namespace

double longest_tile(const AttentionBackwardShape& s) {
  const double flops = work_of(AnyShape(s)).flops;
  if (s.masked || s.window_left >= 0 || flops <= 0) return 1;
  const double all = 2.0 * real(s.q_total) * real(s.kv_total) / std::max(real(s.batch), 1.0) *
                     real(s.heads) * real(3 * s.dim + 2 * s.dim_v);
  return std::clamp(all / flops, 1.0, 2.0);
}

double bytes_of_shares(const AttentionBackwardShape& s, const TileShares& tile_shares) {
  if (tile_shares.count() == 1) return 0;
  return real(s.kv_total) * real(s.kv_heads) * tile_shares.count() * real(s.dim + s.dim_v) *
         sizeof(float);
}

ChosenShares best_shares(const AttentionBackwardShape& s, const TileCosts& costs,
                         const TileOrder& order, bool in_order) {
  ChosenShares best;
  if (s.kv_heads == 0 || s.batch == 0 || costs.concurrent_tiles <= 0) return best;
  const double tiles = real(key_tiles_of(s));
  const bool many = tiles > 4 * costs.concurrent_tiles;
  const std::int64_t group = s.heads / s.kv_heads;
  if (tiles < 1 || (many && (group == 1 || !in_order))) return best;
  const double of_head = real(ceil_div(s.kv_length, kKeysPerTile));
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
  // Tiles that an SM walks one after the other, or at the same time.
  const auto rounds_of = [&](double all, double longest) {
    const double resident = std::max(order.concurrent_tiles, costs.concurrent_tiles);
    const double per_sm = all / costs.concurrent_tiles, full = all / resident;
    if (longest > 1)
      return std::max(per_sm, 1.0) * std::max(full <= 1 ? longest : longest / full, 1.0);
    return full <= 1 ? std::ceil(per_sm) : std::ceil(full) * resident / costs.concurrent_tiles;
  };
  double least = INFINITY;
  const double longest = longest_tile(s), few_waits = heads_for_few_waits(s, order);
  const double passes = many ? 1 : 2;  // of many tiles, sums are written while others multiply
  const auto consider = [&](std::int64_t heads, std::int64_t blocks) {
    const TileShares tile_shares{static_cast<int>(heads), static_cast<int>(blocks)};
    if (many && bytes_of_shares(s, tile_shares) > kMoreSumsBytes) return;
    const double all = tiles * tile_shares.count(), shares = real(s.kv_heads * heads);
    const bool waits = may_wait && (tile_shares.count() > 1 || !starts_apart);
    const double waiting = waits ? waits_of(all) : 0;
    double mean = costs.seconds / all;
    const std::int64_t lines = s.batch * s.kv_heads * heads;
    if (may_alternate(s, in_order, tile_shares) && 2 * few_waits <= real(lines))
      // With fewer heads each, more of what tiles load stays in L2.
      mean *= alternating_section(s, lines, real(group / heads), few_waits, order).slowdown;
    if (in_order) mean *= slowdown_of_packed(s, order, shares);
    // Of tiles that wait for each other, shares of blocks save less: they begin together.
    const bool begin_together = in_order && (group == 1 || blocks > 1);
    const double rounds = rounds_of(all, begin_together ? 1 : longest);
    const double seconds = std::ceil(all / costs.concurrent_tiles) * costs.tile_seconds +
                           rounds * mean + waiting +
                           passes * bytes_of_shares(s, tile_shares) / kShareBytes;
    if (seconds < kMaxShareOfTime * least) least = seconds, best = {tile_shares, waiting};
  };
  for (std::int64_t heads = 1; heads <= group; ++heads)
    if (group % heads == 0) consider(heads, 1);
  if (many) return best;
  const std::int64_t blocks = ceil_div(ceil_div(s.q_total, s.batch), kQueriesPerBlock);
  for (std::int64_t shares = 2; shares <= std::min(blocks, kMaxBlockShares); ++shares)
    consider(group, shares);
  return best;
}

void set_sections(const AttentionBackwardShape& s, std::int64_t shares, const TileOrder& order,
                  BackwardLayout& layout) {
  const std::int64_t all = s.batch * shares, blocks = layout.tile_shares.blocks;
  const bool in_order = layout.turns > 0;
  const double group = real(s.heads / s.kv_heads / layout.tile_shares.heads);
  const double least = in_order ? heads_for_few_waits(s, order) : 1;
  if (may_alternate(s, in_order, layout.tile_shares) && 2 * least <= real(all)) {
    const Section section = alternating_section(s, all, group, least, order);
    layout.alternates = true;
    layout.section = section.shares, layout.slowdown = section.slowdown;
    return;
  }
  const bool follow = s.window_left >= 0 || s.masked || is_packed(s);
  const double additions = in_order && !follow ? heads_for_additions(s, real(all), order) : 0;
  layout.section = s.kv_layout == KvLayout::packed ? shares : all;
  if (s.kv_layout != KvLayout::packed && !(in_order && (blocks > 1 || ends_early(s)))) {
    const double wanted = std::max(shares_in_turns(s, order, group, in_order, additions), least);
    if (wanted < real(all))
      layout.section =
          std::max<std::int64_t>(static_cast<std::int64_t>(wanted) / blocks, 1) * blocks;
  }
  if (in_order) layout.slowdown = slowdown_of_packed(s, order, real(shares));
  if (additions <= 0) return;
  if (layout.section == all) layout.chains = chains_of(s, order, real(all), additions, layout);
  layout.slowdown = std::max(additions / (real(layout.section) * layout.chains), 1.0);
}

bool may_rotate(const AttentionBackwardShape& s, const BackwardLayout& layout) {
  return layout.turns > 0 && visits_all(s) && !is_packed(s) && layout.chains == 1 &&
         layout.tile_shares.count() == 1;
}

}  // namespace tessera::planning
