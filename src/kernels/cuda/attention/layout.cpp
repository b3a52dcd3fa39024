#include "src/kernels/cuda/attention/layout.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/walk/arithmetic.hpp"

namespace tessera::planning {

namespace {

constexpr int kMaxPack = 64;

/// With a mask: the fewest for which a tile's queries lie in one row of blocks.
int pack_for_blocks(const AttentionShape& s, const Tile& tile) {
  const std::int64_t group = heads_alike(s);
  const auto fits = [&](int pack) { return s.mask_block.rows % (tile.m / pack) == 0; };
  int pack = 1;
  while (!fits(pack) && pack < kMaxPack && group / pack % 2 == 0) pack *= 2;
  return tile.row_groups > 1 && !fits(pack) ? 1 : pack;
}

/// Number of heads folded into a tile's rows. Without a mask: the number with the least work. More
/// heads leave fewer rows of a sequence's last tile empty, and under a causal mask or a window a
/// tile of fewer queries visits fewer keys that only some of them see.
int pack_of(const AttentionShape& s, const Tile& tile) {
  if (s.masked) return pack_for_blocks(s, tile);
  const std::int64_t group = heads_alike(s);
  const bool narrow = s.window_left >= 0 || s.window_right >= 0;
  const double keys = real(
      std::max<std::int64_t>(s.window_right >= 0 ? s.kv_length - s.q_length / 2 : s.kv_length, 1));
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int pack = 1; pack <= std::min<std::int64_t>(group, kMaxPack); ++pack) {
    if (group % pack != 0) continue;
    const std::int64_t queries = tile.m / pack;
    // A sequence of unknown length ends in the middle of a tile.
    const double tiles = s.q_packed ? real(s.q_total) / real(queries) + 0.5 * real(s.batch)
                                    : real(ceil_div(s.q_length, queries));
    const double work = tiles / pack * (keys + (narrow ? 0.5 * real(queries) : 0));
    if (work < least) best = pack, least = work;
  }
  return best;
}

bool has_window(const AttentionShape& s) { return s.window_right >= 0 || s.window_left >= 0; }

/// Whether tiles may visit different numbers of keys.
bool walks_differ(const AttentionShape& s) { return has_window(s) || walks_depend_on_data(s); }

/// The fraction of the work that is saved when consumers without rows skip a sequence's last tile.
/// One consumer alone takes three fifths of the time of three. Where walks differ under a causal
/// mask a third is assumed instead, as the other estimates were fitted with it.
double skipped_share(const AttentionShape& s, const Tile& tile, const AttentionLayout& layout) {
  if (!skips_tiles(tile) || s.q_packed || layout.tiles_per_head == 0) return 0;
  const std::int64_t rows =
      (s.q_length - (layout.tiles_per_head - 1) * layout.queries) * layout.pack;
  const std::int64_t warpgroups = (tile.m - rows) / 64;
  const auto without = static_cast<double>(warpgroups);
  const double all = tile.warpgroups + (s.window_right >= 0 && !walks_alike(s) ? 0 : 2);
  return without / all / static_cast<double>(layout.tiles_per_head);
}

/// Number of tiles that remain after whole rounds of SMs. The unsplit tiles fill all of these
/// rounds or there are none: each CTA has a tile before it takes a share of the split ones.
std::int64_t tiles_past_rounds(const AttentionShape& s, const Tile& tile,
                               const AttentionLayout& layout) {
  const double computed = computed_tiles(s, tile, layout);
  if (computed == static_cast<double>(layout.tiles)) return layout.tiles % layout.sms;
  const std::int64_t left = std::llround(std::fmod(computed, static_cast<double>(layout.sms)));
  return layout.tiles - left < layout.sms ? layout.tiles % layout.sms : left;
}

double longest_seconds(const AttentionShape& s, const KernelRow& row) {
  return static_cast<double>(longest_walk(s, row.tile)) * step_seconds(row);
}

/// Ordering the tiles takes some 3 us, and saves a share of the longest walk.
constexpr double kMinOrderedSeconds = 20e-6;

/// Decides whether the KV of the tiles after the last whole round is split across CTAs, and across
/// how many.
void split_last_tiles(AttentionLayout& layout, const AttentionShape& s, const KernelRow& row) {
  const Tile& tile = row.tile;
  layout.whole = layout.tiles;
  // If later tiles are shorter, they fill the last round. Tiles with lists are not ordered by
  // length.
  const bool shorter = !walks_alike(s) && (has_window(s) || s.q_packed ||
                                           (s.kv_layout == KvLayout::packed && !s.masked));
  if (shorter && layout.tiles >= layout.sms) return;
  const std::int64_t last = shorter ? layout.tiles : tiles_past_rounds(s, tile, layout);
  if (last == 0) return;
  const std::int64_t rounds = longest_walk(s, tile);
  const double step = step_seconds(row), per_tile = tile_seconds(row);
  const auto merging = [&](std::int64_t split_ctas) {
    return merge_seconds(tile, last, split_ctas);
  };
  std::int64_t best = last;
  double least = static_cast<double>(rounds) * step + per_tile;
  const auto consider = [&](std::int64_t split_ctas, double taken) {
    if (taken < least) best = split_ctas, least = taken;
  };
  // Split each tile across the same number of CTAs. More CTAs take longer to merge, so they are
  // only considered if they shorten the walk.
  const std::int64_t max_each = std::min(rounds, layout.sms / last);
  const auto [first, end] = fastest_ctas_per_tile(rounds, step, max_each, last, tile);
  std::int64_t walked = INT64_MAX;
  for (std::int64_t each = first; each < end; ++each) {
    const std::int64_t former = std::exchange(walked, ceil_div(rounds, each));
    if (walked != former)
      consider(each * last, static_cast<double>(walked) * step + per_tile + merging(each * last));
  }
  if (rounds * last > layout.sms) {
    const std::int64_t shared = ceil_div(rounds * last, layout.sms);
    consider(layout.sms, static_cast<double>(shared) * step +
                             (layout.sms % last == 0 ? 1 : 2) * per_tile +
                             (layout.sms > last ? merging(layout.sms) : 0));
  }
  if (best == last) return;
  layout.whole -= last;
  layout.split_ctas = best;
}

}  // namespace

std::int64_t heads_alike(const AttentionShape& s) {
  if (s.kv_heads == 0 || (s.masked && s.mask_heads > s.kv_heads)) return 1;
  return s.heads / s.kv_heads;
}

bool walks_depend_on_data(const AttentionShape& s) {
  return s.masked || s.q_packed || s.kv_layout == KvLayout::packed || s.has_kv_range;
}

bool walks_alike(const AttentionShape& s) {
  const bool prefix_is_half = s.window_left < 0 && s.window_right == 0 &&
                              !walks_depend_on_data(s) && 2 * s.q_length <= s.kv_length;
  return prefix_is_half || !walks_differ(s);
}

double computed_tiles(const AttentionShape& s, const Tile& tile, const AttentionLayout& layout) {
  if (s.q_packed) {
    const double rows = skips_tiles(tile) ? 64 : tile.m;
    return (static_cast<double>(s.q_total * layout.pack) +
            static_cast<double>(s.batch) * rows / 2) /
           tile.m * static_cast<double>(layout.head_groups);
  }
  constexpr std::int64_t kEnoughRounds = 3;
  const bool evens_out = layout.uneven && layout.tiles >= kEnoughRounds * layout.sms;
  const double skipped = evens_out ? skipped_share(s, tile, layout) : 0;
  return static_cast<double>(layout.tiles) * (1 - skipped);
}

std::int64_t longest_walk(const AttentionShape& s, const Tile& tile) {
  std::int64_t keys = s.kv_length;
  if (s.masked && s.mask_capacity <= keys / s.mask_block.cols)  // else lists may name all keys
    keys = std::min(keys, s.mask_capacity * s.mask_block.cols * tile.row_groups);
  if (s.window_left >= 0 && s.window_right >= 0)
    keys = std::min(keys, s.window_left + s.window_right + tile.m);
  return ceil_div(keys, std::int64_t{tile.n} * tile.kv_splits);
}

std::int64_t section_of(std::int64_t heads, std::int64_t tiles_per_head, std::int64_t sms) {
  const std::int64_t enough = 2 * sms;  // tiles that fill the GPU twice
  const std::int64_t min_section = std::max<std::int64_t>(enough / tiles_per_head, 1);
  for (std::int64_t section = min_section; section <= 2 * min_section;) {
    const std::int64_t sections = heads / section, rest = heads % section;
    if (rest == 0 || rest * tiles_per_head >= enough) return section;
    if (sections == 0) break;  // longer sections leave the same remainder
    // Increasing the section without changing the number of sections only shrinks the remainder:
    // skip ahead.
    section += std::max<std::int64_t>(rest / sections, 1);
  }
  return min_section;
}

ComposedMask composed_mask(const AttentionShape& s, const Tile& tile) {
  if (!s.masked || s.heads == 0 || s.kv_heads == 0) return {};
  const std::int64_t queries =
      tile.row_groups > 1 ? row_group_queries(tile) : tile.m / pack_of(s, tile);
  if (s.mask_block.rows % queries == 0 && s.mask_block.cols % kKeyPiece == 0) return {};
  return compose(s, queries);
}

AttentionLayout attention_layout(const AttentionShape& given, const KernelRow& row,
                                 std::int64_t sms) {
  const Tile& tile = row.tile;
  AttentionLayout layout;
  layout.sms = std::max<std::int64_t>(sms, 1);
  if (given.heads == 0 || given.kv_heads == 0 || given.batch == 0) return layout;
  layout.composed = composed_mask(given, tile);
  const WalkedShape walked(given, layout.composed);
  const AttentionShape& s = *walked;
  layout.pack = pack_of(s, tile);
  layout.queries = tile.m / layout.pack;
  layout.row_groups = tile.row_groups;
  layout.head_groups = s.heads / layout.pack;
  layout.tiles_per_head =
      s.q_packed ? s.q_total / layout.queries + s.batch : ceil_div(s.q_length, layout.queries);
  layout.tiles = layout.tiles_per_head * layout.head_groups * (s.q_packed ? 1 : s.batch);
  // With dynamic tiles, CTAs drift apart, which costs half a percent or more in long walks.
  constexpr double kMinSkippedShare = 0.01;
  layout.uneven = walks_differ(s) ||
                  (layout.tiles > layout.sms && skipped_share(s, tile, layout) > kMinSkippedShare);
  split_last_tiles(layout, s, row);
  layout.ordered = walks_depend_on_data(s) && longest_seconds(s, row) >= kMinOrderedSeconds &&
                   layout.whole > layout.sms && layout.whole <= kMaxOrderedTiles &&
                   s.batch <= kMaxOrderedSequences;
  // Where all tiles walk nearly all keys, those of one head side by side share them in L2.
  if (s.window_right >= 0 && !walks_alike(s) && layout.tiles_per_head > 0)
    layout.section = section_of(s.batch * layout.head_groups, layout.tiles_per_head, layout.sms);
  constexpr std::int64_t kShortWalk = 4;  // steps
  layout.overlaps = longest_walk(s, tile) > kShortWalk;
  return layout;
}

std::string describe_layout(const AttentionLayout& layout) {
  std::string text = "; " + std::to_string(layout.tiles) + " tiles";
  if (layout.pack > 1) text += ", " + std::to_string(layout.pack) + " heads folded into rows";
  if (layout.row_groups > 1)
    text += ", " + std::to_string(layout.row_groups) + " row groups of " +
            std::to_string(layout.queries / layout.row_groups) + " rows walked together";
  if (layout.composed)
    text += ", blocks composed into " + std::to_string(layout.composed.queries) + " x " +
            std::to_string(kComposedKeys);
  if (layout.split_ctas > 0)
    text += ", keys of the last " + std::to_string(layout.split_tiles()) + " split across " +
            std::to_string(layout.split_ctas) + " CTAs";
  return text;
}

}  // namespace tessera::planning
