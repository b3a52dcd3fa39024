#include "src/kernels/cuda/sm90/attention/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "src/kernels/cuda/sm90/attention/rows.hpp"
#include "src/walk/views.hpp"

namespace tessera::planning {
namespace {

/// The shape whose lists the kernel walks: the given shape, or a copy whose mask is replaced by the
/// composed one.
class Walked {
 public:
  Walked(const AttentionShape& given, const ComposedMask& mask) : shape_(&given) {
    if (!mask) return;
    shape_ = &composed_.emplace(given);
    set_mask(*composed_, mask);
  }
  Walked(const Walked&) = delete;
  Walked& operator=(const Walked&) = delete;
  const AttentionShape& shape() const { return *shape_; }

 private:
  std::optional<AttentionShape> composed_;
  const AttentionShape* shape_;
};

/// Query heads with the same keys and lists: as many may be folded into a tile's rows.
std::int64_t heads_alike(const AttentionShape& s) {
  if (s.kv_heads == 0 || (s.masked && s.mask_heads > s.kv_heads)) return 1;
  return s.heads / s.kv_heads;
}

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
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double keys = real(
      std::max<std::int64_t>(s.window_right >= 0 ? s.kv_length - s.q_length / 2 : s.kv_length, 1));
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int pack = 1; pack <= std::min<std::int64_t>(group, kMaxPack); ++pack) {
    if (group % pack != 0) continue;
    const std::int64_t queries = tile.m / pack;
    // A sequence of unknown length ends in the middle of a tile.
    const double tiles = s.q_packed ? real(s.q_total) / real(queries) + 0.5 * real(s.batch)
                                    : real((s.q_length + queries - 1) / queries);
    const double work = tiles / pack * (keys + (narrow ? 0.5 * real(queries) : 0));
    if (work < least) best = pack, least = work;
  }
  return best;
}

/// a / b, rounded up. 32-bit divisions take a fraction of the time of 64-bit ones on many hosts.
std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kNarrow = std::int64_t{1} << 31;
  if (a >= 0 && a < kNarrow && b > 0 && b < kNarrow) {
    const auto x = static_cast<std::uint32_t>(a), y = static_cast<std::uint32_t>(b);
    return (x + y - 1) / y;
  }
  return (a + b - 1) / b;
}

constexpr double kMergeSeconds = 5e-6, kMergeBytesPerSecond = 3e12;
constexpr double kPartSeconds = 1e-6;    // the CTA that counts last adds all parts
constexpr double kStartSeconds = -1e-6;  // a tile takes less in the first round than in later ones
constexpr double kReadSeconds = 2e-6;    // until the first list, or offset, is read
// Time to compose lists, and how much longer a step with the element masks of composed blocks
// takes: not measured.
constexpr double kComposeSeconds = 6e-6, kComposedBytes = 1e12, kMaskedStep = 1.3;

/// Rows with three warpgroups and steps of 64 keys.
constexpr bool is_tall(const Tile& tile) {
  return tile.warpgroups == 3 && tile.kv_splits == 1 && tile.n == kKeyPiece;
}

/// Seconds of a step that a row group skips: the steps before and after it overlap with nothing.
constexpr double pass_seconds(const Tile& tile) { return tile.n > kKeyPiece ? 0.67e-6 : 0.24e-6; }

double step_seconds(const KernelRow& row) { return row.times.step_ns * 1e-9; }
double tile_seconds(const KernelRow& row) { return row.times.tile_ns * 1e-9; }

bool has_window(const AttentionShape& s) { return s.window_right >= 0 || s.window_left >= 0; }

/// Whether the number of keys that a tile visits depends on lists or lengths in device memory,
/// which the shape does not hold.
bool data_tells(const AttentionShape& s) {
  return s.masked || s.q_packed || s.kv_layout == KvLayout::packed || s.has_kv_range;
}

/// Whether tiles may visit different numbers of keys.
bool walks_differ(const AttentionShape& s) { return has_window(s) || data_tells(s); }

/// Whether the shortest walk is at least half as long as the longest: without masks, and under a
/// causal mask where at least half of the keys come before the first query (chunked prefill).
/// Queries are taken to be at their default positions, as positions are no part of a shape.
bool walks_alike(const AttentionShape& s) {
  const bool prefix_is_half =
      s.window_left < 0 && s.window_right == 0 && !data_tells(s) && 2 * s.q_length <= s.kv_length;
  return prefix_is_half || !walks_differ(s);
}

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

/// Number of tiles, not counting the parts that consumers skip, where enough rounds of tiles even
/// them out: with few, some SMs have full tiles alone. Packed sequences end anywhere in their last
/// tile.
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

/// Seconds to write one part of a split tile and read it again.
constexpr double part_seconds(const Tile& tile) {
  return 2.0 * sizeof(float) * tile.m * tile.v / kMergeBytesPerSecond;
}

}  // namespace

double merge_seconds(const Tile& tile, std::int64_t tiles, std::int64_t split_ctas) {
  const auto parts = static_cast<double>(split_ctas + tiles);
  return kMergeSeconds + parts * tile.m * tile.v * 2 * sizeof(float) / kMergeBytesPerSecond +
         kPartSeconds * static_cast<double>(split_ctas) / static_cast<double>(tiles);
}

namespace {

/// Number of tiles that remain after whole rounds of SMs. The unsplit tiles fill all of these
/// rounds or there are none: each CTA has a tile before it takes a share of the split ones.
std::int64_t tiles_past_rounds(const AttentionShape& s, const Tile& tile,
                               const AttentionLayout& layout) {
  const double computed = computed_tiles(s, tile, layout);
  if (computed == static_cast<double>(layout.tiles)) return layout.tiles % layout.sms;
  const std::int64_t left = std::llround(std::fmod(computed, static_cast<double>(layout.sms)));
  return layout.tiles - left < layout.sms ? layout.tiles % layout.sms : left;
}

}  // namespace

CtasPerTile fastest_ctas_per_tile(std::int64_t rounds, double step, std::int64_t max,
                                  std::int64_t tiles, const Tile& tile) {
  constexpr std::int64_t kFew = 8;
  if (max <= kFew) return {2, max + 1};
  // With n CTAs per tile the time is at least f(n) = walk / n + merge * n, and less than one step
  // more, apart from terms that do not depend on n. So the fastest n has f(n) <= f(m) + step +
  // merge, where m is the real number that minimises f; the last two terms account for rounding m
  // up to an integer.
  const double walk = static_cast<double>(rounds) * step;
  const double merge = static_cast<double>(tiles) * part_seconds(tile) + kPartSeconds;
  const double m = std::clamp(std::sqrt(walk / merge), 2.0, static_cast<double>(max));
  const double bound = walk / m + merge * m + step + merge;
  const double middle = bound / (2 * merge);
  const double apart = std::sqrt(std::max(middle * middle - walk / merge, 0.0));
  // One more at each end, for rounding.
  return {std::max<std::int64_t>(static_cast<std::int64_t>(middle - apart) - 1, 2),
          static_cast<std::int64_t>(std::min(middle + apart + 3, static_cast<double>(max + 1)))};
}

namespace {

/// Rounds of steps in the longest walk of a tile.
std::int64_t longest_walk(const AttentionShape& s, const Tile& tile) {
  std::int64_t keys = s.kv_length;
  if (s.masked && s.mask_capacity <= keys / s.mask_block.cols)  // else lists may name all keys
    keys = std::min(keys, s.mask_capacity * s.mask_block.cols * tile.row_groups);
  if (s.window_left >= 0 && s.window_right >= 0)
    keys = std::min(keys, s.window_left + s.window_right + tile.m);
  return ceil_div(keys, std::int64_t{tile.n} * tile.kv_splits);
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
  const Walked walked(given, layout.composed);
  const AttentionShape& s = walked.shape();
  layout.pack = pack_of(s, tile);
  layout.queries = tile.m / layout.pack;
  layout.row_groups = tile.row_groups;
  layout.head_groups = s.heads / layout.pack;
  layout.tiles_per_head = s.q_packed ? s.q_total / layout.queries + s.batch
                                     : (s.q_length + layout.queries - 1) / layout.queries;
  layout.tiles = layout.tiles_per_head * layout.head_groups * (s.q_packed ? 1 : s.batch);
  // With dynamic tiles, CTAs drift apart, which costs half a percent or more in long walks.
  constexpr double kMinSkippedShare = 0.01;
  layout.uneven = walks_differ(s) ||
                  (layout.tiles > layout.sms && skipped_share(s, tile, layout) > kMinSkippedShare);
  split_last_tiles(layout, s, row);
  layout.ordered = data_tells(s) && longest_seconds(s, row) >= kMinOrderedSeconds &&
                   layout.whole > layout.sms && layout.whole <= kMaxOrderedTiles &&
                   s.batch <= kMaxOrderedSequences;
  // Where all tiles walk nearly all keys, those of one head side by side share them in L2.
  if (s.window_right >= 0 && !walks_alike(s) && layout.tiles_per_head > 0)
    layout.section = section_of(s.batch * layout.head_groups, layout.tiles_per_head, layout.sms);
  constexpr std::int64_t kShortWalk = 4;  // steps
  layout.overlaps = longest_walk(s, tile) > kShortWalk;
  return layout;
}

double share_of_union(const AttentionShape& s, int row_groups) {
  const double keys = static_cast<double>(std::max<std::int64_t>(s.kv_length, 1));
  const double named =
      static_cast<double>(s.mask_capacity) * static_cast<double>(s.mask_block.cols);
  return 1 - std::pow(1 - std::min(named / keys, 1.0), row_groups);
}

double attention_seconds(const AttentionShape& given, const AttentionLayout& layout,
                         const KernelRow& row, const DeviceFacts& device, const Work& work) {
  const Tile& tile = row.tile;
  const Walked walked(given, layout.composed);
  const AttentionShape& s = walked.shape();
  if (layout.tiles == 0 || device.units == 0) return 0;
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double queries = real(s.q_total) * real(s.heads);
  const double width = real(std::max<std::int64_t>(s.dim + s.dim_v, 1));
  // Keys that a tile walks: those that one query sees, plus, where rows see different keys, those
  // that only other rows of the same walk see. With tall tiles all consumers begin and end a walk
  // together anyway, except for consumers that join late.
  double keys = work.flops / std::max(2 * queries * width, 1.0);
  const auto of_others = [&](bool each_for_itself) {
    return 0.5 * (each_for_itself ? 64.0 : tile.m) / layout.pack;
  };
  // Of packed sequences only the longest is known: they are taken to be as long as the mean of its
  // length and the average one, in geometric terms.
  if (s.kv_layout == KvLayout::packed && s.kv_length > 0 && s.batch > 0)
    keys *= std::sqrt(std::min(real(s.kv_total) / (real(s.batch) * real(s.kv_length)), 1.0));
  if (s.window_right >= 0) keys += of_others(leaves_sooner(tile) && !is_tall(tile));
  if (s.window_left >= 0) keys += of_others(joins_later(tile));
  const double steps = std::ceil(keys / (tile.n * tile.kv_splits));
  // The last round of tiles is rarely full; but tiles of different lengths fill it, or it is split
  // across CTAs.
  const auto in_whole_tiles = [&](double rounds) {
    return walks_alike(s) ? std::ceil(rounds) : std::max(rounds, 1.0);
  };
  const double rounds = real(layout.tiles) / device.units;
  const double computed_rounds = computed_tiles(s, tile, layout) / device.units;
  double filled = in_whole_tiles(rounds), computed = in_whole_tiles(computed_rounds);
  if (layout.split_ctas > 0) {
    const double shares = real(layout.split_tiles()) / real(layout.split_ctas);
    filled = real(layout.whole) / device.units + shares;
    computed = std::max(computed_rounds - real(layout.split_tiles()) / device.units, 0.0) + shares;
  }
  constexpr double kMeasuredTflops = 970;  // dense rate of the card on which steps were measured
  const double slower =
      device.tensor_tflops > 0 ? kMeasuredTflops * device.units / (132 * device.tensor_tflops) : 1;
  const double step = step_seconds(row) * (layout.composed ? kMaskedStep : 1);
  double compute = computed * steps * step * slower;
  // Few tiles of packed sequences end with the longest sequence.
  if (s.q_packed && layout.split_ctas == 0)
    compute = std::max(compute, real(longest_walk(s, tile)) * step * slower);
  const double memory = device.memory_tbs > 0 ? work.bytes / (device.memory_tbs * 1e12) : 0;
  // A tile with one list computes on all keys that it loads, which takes longer than loading them.
  // A tile with several lists loads keys that not all of its consumers need. Composed blocks with
  // an element mask are loaded once per row group.
  double fetched = 0;
  if (layout.row_groups > 1 && device.l2_tbs > 0) {
    const double share = layout.composed ? layout.row_groups * share_of_union(s, 1)
                                         : share_of_union(s, layout.row_groups);
    const double bytes =
        real(layout.tiles) * share * real(s.kv_length) * real(tile.k + tile.v) * size_of(s.dtype);
    fetched = bytes / (device.l2_tbs * 1e12) * filled / rounds;
    const double loaded = share * real(s.kv_length) / tile.n;
    compute += filled * std::max(loaded - steps, 0.0) * pass_seconds(tile) * slower;
  }
  const double merging =
      layout.split_ctas > 0 ? merge_seconds(tile, layout.split_tiles(), layout.split_ctas) : 0;
  const double composing =
      layout.composed ? kComposeSeconds + composed_bytes(layout.composed) / kComposedBytes : 0;
  const double tiles = std::max(filled, 1.0) * tile_seconds(row);
  const double reading = data_tells(s) ? kReadSeconds : 0;
  return std::max(std::max(compute, fetched) + tiles, memory) + reading + merging + composing +
         kStartSeconds;
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

AttentionScratchSm90 carve_attention_scratch(core::Carver& carver, const Tile& tile,
                                             const AttentionLayout& layout) {
  AttentionScratchSm90 scratch;
  const int consumers = tile.m / 64;  // 64 rows per consumer
  // Static tiles need no counter, so small problems need no workspace.
  if (layout.dynamic()) scratch.next_tile = carver.add<std::uint64_t>(1);
  if (layout.dynamic() && layout.ordered) {
    scratch.order = carver.add<int>(2 * layout.tiles);
    scratch.grids_seen = carver.add<std::uint64_t>(1);
  }
  if (layout.split_ctas > 0) {
    scratch.merge_counts = carver.add<std::uint64_t>(layout.split_tiles() * consumers);
    const core::Size parts = core::Size(layout.split_ctas + layout.split_tiles()) * consumers;
    scratch.partials = carver.add<float>(parts * 128 * (tile.v / 2 + 4));
  }
  if (layout.composed) scratch.composed = carve_composed(carver, layout.composed);
  return scratch;
}

AttentionWalk attention_walk(const AttentionProblem& problem, const AttentionShape& shape,
                             const AttentionLayout& layout, const Tile& tile) {
  AttentionWalk walk;
  walk.sequences = sequences_of(problem, shape);
  if (shape.masked) {
    walk.mask = view_of(problem.mask, shape.kv_length, shape.heads_per_list());
    if (problem.mask.bit_tile) {
      walk.bits_tile = problem.mask.bits.stride(0);
      walk.bits_row = problem.mask.bits.stride(1);
      walk.bits_byte = problem.mask.bits.stride(2);
    }
  }
  walk.batches = static_cast<int>(shape.batch);
  walk.head_groups = static_cast<int>(layout.head_groups);
  walk.pack = SmallDivisor::of(layout.pack);
  walk.group = static_cast<int>(shape.heads / shape.kv_heads);
  walk.queries = static_cast<int>(layout.queries);
  walk.blocks = static_cast<int>(layout.blocks());
  walk.tiles_per_head = static_cast<int>(layout.tiles_per_head);
  walk.tiles = static_cast<int>(layout.tiles);
  walk.whole = static_cast<int>(layout.whole);
  walk.split_ctas = static_cast<int>(layout.split_ctas);
  walk.section = static_cast<int>(std::min<std::int64_t>(layout.section, 1 << 20));
  walk.step_pieces = tile.n / kKeyPiece * tile.kv_splits;
  walk.row_groups = layout.row_groups;
  walk.packed_q = shape.q_packed;
  walk.longest_last = shape.window_right >= 0;
  walk.reverses_odd_rounds = shape.masked && walk.row_groups == 1 && !walk.longest_last;
  walk.reads_sequences = walk.sequences.lie_in_memory();
  walk.reads_lists = shape.masked;
  if (!walk.reads_sequences) walk.uniform_sequence = SequenceDescriptor::of(walk.sequences.at(0));
  return walk;
}

MaskComposer composer_of(const AttentionProblem& problem, const AttentionShape& shape,
                         const ComposedMask& to, const ComposedLists& lists) {
  MaskComposer composer;
  composer.given = view_of(problem.mask, shape.kv_length, shape.heads_per_list());
  if (const Tensor& bits = problem.mask.bits)
    composer.bits = {static_cast<const std::uint8_t*>(bits.data), bits.stride(0), bits.stride(1),
                     bits.stride(2)};
  composer.q_length = shape.q_length;
  composer.kv_length = shape.kv_length;
  composer.to = to;
  composer.lists = lists;
  return composer;
}

void walk_composed(AttentionWalk& walk, const ComposedMask& to, const ComposedLists& lists) {
  constexpr int kWord = sizeof(std::uint64_t);
  walk.mask = view_of(to, lists);
  walk.bits_tile = to.block_words() * kWord;
  walk.bits_row = kWord;
  walk.bits_byte = 1;
  walk.composed = lists.bits;
  walk.words = static_cast<int>(to.words);
  walk.word_queries = SmallDivisor::of(static_cast<int>(to.word_queries()));
}

namespace {

constexpr std::int64_t kMaxLength = std::int64_t{1} << 29;
constexpr std::int64_t kMaxTiles = INT32_MAX / 2;  // one more step still fits

}  // namespace

Work walked_work(const AttentionShape& s, const ComposedMask& composed) {
  return work_of(Walked(s, composed).shape());
}

void refuse_attention(const AttentionShape& s, const KernelRow& row, Reasons& reasons) {
  const Tile& tile = row.tile;
  if (s.kv_layout == KvLayout::paged) reasons.unsupported("page_table");
  if (s.batch_invariant) reasons.unsupported("batch_invariant");
  if (s.dim == 0 || s.dim_v == 0) reasons.required("a head dimension above 0");
  reasons.unless_multiple("head dimension", s.dim, 8);
  reasons.unless_multiple("head dimension of v", s.dim_v, 8);
  reasons.unless_at_most("head dimension", s.dim, tile.k);
  reasons.unless_at_most("head dimension of v", s.dim_v, tile.v);
  if (!s.tma_readable) reasons.layout("q, k and v", "contiguous rows at multiples of 16 bytes");
  if (s.transforms_scores && !supports_score_transform(tile))
    reasons.unsupported("softcap or a scale of zero or less");
  reasons.unless_at_most("the largest size",
                         std::max({s.q_total, s.kv_total, s.kv_length, s.heads, s.batch}),
                         kMaxLength - 1);
  if (!s.masked && tile.row_groups > 1) reasons.required("a block mask");
}

void refuse_attention_layout(const AttentionShape& s, const KernelRow& row,
                             const AttentionLayout& at, Reasons& reasons) {
  const Tile& tile = row.tile;
  reasons.unless_at_most("tiles of the result", at.tiles, kMaxTiles);
  if (!s.masked) return;
  // The mask's blocks if the tiles fit them, else the composed blocks.
  const Walked with(s, at.composed);
  const AttentionShape& walked = with.shape();
  const std::int64_t block_kv = std::max<std::int64_t>(walked.mask_block.cols, 1);
  if (tile.row_groups > 1) {
    const auto fills_tile = [&](const AttentionShape& of) {
      return at.queries > 0 && of.mask_block.rows % at.queries == 0;
    };
    if (fills_tile(s) || fills_tile(walked))
      reasons.layout("mask", "lists that differ within the queries of a tile");
    reasons.unless_at_most("columns of blocks", (s.kv_length - 1) / block_kv + 1,
                           kMaxRowGroupBlocks);
  }
  reasons.unless_at_most("blocks of the longest list", walked.mask_capacity,
                         (kMaxLength - 1) / block_kv);
  if (composed_bytes(at.composed) > kMaxComposedBytes)
    reasons.layout("mask", "blocks that can be composed within 8 GiB");
}

namespace {

struct Attention {
  using Shape = AttentionShape;
  using Layout = AttentionLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    refuse_attention(s, row, reasons);
  }

  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Layout at = attention_layout(s, row, device.units);
    refuse_attention_layout(s, row, at, reasons);
    return at;
  }

  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    return attention_seconds(s, at, row, device, walked_work(s, at.composed));
  }
  static BufferSizes buffers(const Shape&, const Layout& at, const KernelRow& row, int) {
    core::Carver carver;
    carve_attention_scratch(carver, row.tile, at);
    return {carver.used(), 0};
  }
  static std::string describe(const Shape&, const Layout& at) { return describe_layout(at); }
};

}  // namespace

KernelFamily sm90_attention_family() {
  KernelFamily family =
      make_family<Attention>("sm90_attention", Backend::sm90, Op::attention, kSm90AttentionRows);
  family.clears_rest = true;
  return family;
}

}  // namespace tessera::planning
