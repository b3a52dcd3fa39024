#include "src/kernels/cuda/sm90/decode/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/kernels/cuda/sm90/decode/rows.hpp"
#include "src/walk/arithmetic.hpp"

namespace tessera::planning {
namespace {

/// The heads to fold into a tile's rows, so that the keys of a group of heads are read by the
/// fewest tiles.
int pack_of(const AttentionShape& s, const Tile& tile) {
  const std::int64_t group = heads_alike(s);
  int best = 1;
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (int pack = 1; pack <= std::min<std::int64_t>(group, tile.m); ++pack) {
    if (group % pack != 0) continue;
    const std::int64_t tiles =
        group / pack * ceil_div(std::max<std::int64_t>(s.q_length, 1), tile.m / pack);
    if (tiles <= fewest) best = pack, fewest = tiles;
  }
  return best;
}

/// Queries per tile: as many as fit. With a mask whose blocks the kernel walks, they are inside one
/// row of blocks.
std::int64_t queries_of(const AttentionShape& s, const Tile& tile, int pack) {
  const std::int64_t fit = tile.m / pack;
  const bool composed = s.mask_block.cols % kKeyPiece != 0;
  if (!s.masked || composed || s.q_length <= s.mask_block.rows) return fit;
  std::int64_t queries = fit;
  while (s.mask_block.rows % queries != 0) --queries;
  return queries;
}

/// As many strands as divide the head groups of a set, up to those whose keys are in one row of
/// memory's banks; few CTAs may be left over.
std::int64_t strands_of(std::int64_t groups, std::int64_t ctas) {
  constexpr std::int64_t kMost = 16, kLeftOver = 32;  // one of so many CTAs
  std::int64_t most = 1;
  for (std::int64_t strands = 2; strands <= std::min({kMost, groups, ctas}); ++strands)
    if (groups % strands == 0 && ctas % strands * kLeftOver <= ctas) most = strands;
  return most;
}

/// The longest list of a tile, or range of keys, in pieces.
double pieces_per_tile(const AttentionShape& s, const Work& work) {
  const double width = real(std::max<std::int64_t>(s.dim + s.dim_v, 1));
  const double queries = std::max(real(s.q_total) * real(s.heads), 1.0);
  return std::ceil(work.flops / (2 * queries * width) / kKeyPiece);
}

/// Those of all tiles. Where only the device knows lengths, a sequence may have fewer keys than the
/// longest one, but pages say how many all have together, as sequences seldom share them.
double pieces_of(const AttentionShape& s, const DecodeLayout& at, const Work& work) {
  const double longest = real(at.tiles.tiles) * pieces_per_tile(s, work);
  if (s.kv_layout != KvLayout::paged || !s.has_kv_range || s.masked) return longest;
  const double per_sequence = real(at.tiles.tiles) / real(s.batch);
  return std::min(longest, per_sequence * real(s.pages) * real(s.page) / kKeyPiece);
}

// Estimates, not measured. A call finds its shares, waits for its first keys and merges parts of
// tiles, while memory is busy if there are many keys. It begins like other kernels' calls
// (sm90/attention), but first reads lengths and lists.
constexpr double kLatencySeconds = 5e-6, kReadSeconds = 1e-6, kStartSeconds = -1e-6;
// Keys that several tiles read come from L2, at less than its best rate.
constexpr double kShareOfL2 = 0.75;

// Fixed parts of a tile: short enough for one short sequence to occupy most SMs, and long enough
// for merging to be short beside them.
constexpr std::int64_t kPartPieces = 8, kMaxParts = 32;

/// Keys of the sequence by which kernel rows are chosen if results may not depend on the batch: the
/// longest sequence decides the width of a page table and the longest list.
constexpr std::int64_t kKeysOfOne = 4096;

/// The shape of one sequence of a batch with that many keys, all of them in its lists.
AttentionShape one_of(AttentionShape s) {
  s.batch = s.mask_batch = 1;
  s.q_total = s.q_length;
  s.kv_layout = KvLayout::dense;
  s.kv_length = s.kv_total = std::max(kKeysOfOne, s.q_length);
  s.mask_capacity = ceil_div(s.kv_length, std::max<std::int64_t>(s.mask_block.cols, 1));
  return s;
}

struct Decode {
  using Shape = AttentionShape;
  using Layout = DecodeLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    refuse_heads(s, row.tile, reasons);
    refuse_pages(s, reasons);
    // A packed sequence begins anywhere in the rows that share a factor.
    if (s.kv_layout == KvLayout::packed && s.kv_scales_by_rows)
      reasons.unsupported("factors for 64 or 128 rows of packed keys");
    if (s.v_by_keys) reasons.layout("v", "contiguous rows, got contiguous keys");
  }

  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Layout at = decode_layout(s, row, device.units);
    refuse_tiles(s, at.tiles, reasons);
    return at;
  }

  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    // With many queries, times that no measurement has confirmed have to be clearly shorter than
    // those of sm90_attention, which reads no pages of fewer than 64 keys. With queries in FP8 they
    // were 1.3 to 3 times as long (H200: 6 shapes of 75 to 721 queries).
    constexpr std::int64_t kFewQueries = 16;
    const double unconfirmed = s.dtype == DType::e4m3 ? 4 : 1.3;
    const bool alone = s.kv_layout == KvLayout::paged && s.page % kKeyPiece != 0;
    const bool clear = alone || s.q_length <= kFewQueries;
    if (!s.batch_invariant) return (clear ? 1 : unconfirmed) * seconds_of(s, at, row, device);
    // Scaled by the same number for all rows, so that their order does not depend on the batch.
    const Shape one = one_of(s);
    const double scale = std::max(real(s.batch) * real(s.kv_length), 1.0) / real(one.kv_length);
    return scale * seconds_of(one, decode_layout(one, row, device.units), row, device);
  }

  static double seconds_of(const Shape& s, const Layout& at, const KernelRow& row,
                           const DeviceFacts& device) {
    if (at.tiles.tiles == 0 || device.units == 0) return 0;
    const Work work = walked_work(s, at.tiles.composed);
    const double pieces = pieces_of(s, at, work);
    // Warps without rows do not compute.
    const std::int64_t rows =
        at.tiles.pack * std::min(at.tiles.queries, std::max<std::int64_t>(s.q_length, 1));
    const double warps = real(ceil_div(rows, 16)) / real(row.tile.m / 16);
    const double step = step_seconds(row) * warps * (at.tiles.composed ? kMaskedStep : 1);
    const double compute =
        pieces / device.units * step + real(at.tiles.tiles) / device.units * tile_seconds(row);
    const auto seconds_of = [](double bytes, double tbs) {
      return tbs > 0 ? bytes / (tbs * 1e12) : 0;
    };
    const double loaded = pieces * kKeyPiece * real(s.dim + s.dim_v) * size_of(s.kv_dtype());
    const double memory = std::max(seconds_of(work.bytes, device.memory_tbs),
                                   seconds_of(loaded, device.l2_tbs * kShareOfL2));
    const bool reads = s.masked || s.q_packed || s.kv_layout != KvLayout::dense || s.has_kv_range;
    return std::max(compute + kLatencySeconds, memory) + (reads ? kReadSeconds : 0) +
           compose_seconds(at.tiles.composed) + kStartSeconds;
  }

  static BufferSizes buffers(const Shape&, const Layout& at, const KernelRow& row, int) {
    core::Carver carver;
    carve_decode_scratch(carver, row.tile, at);
    return {carver.used(), 0};
  }

  static std::string describe(const Shape& s, const Layout& at) {
    std::string text = s.dtype == DType::e4m3 ? "; e4m3 x e4m3 in f16, P in f16, sums in f32" : "";
    text += describe_layout(at.tiles);
    if (at.part_pieces > 0)
      text += ", keys split into at most " + std::to_string(at.max_parts) + " parts of at least " +
              std::to_string(at.part_pieces * kKeyPiece);
    else
      text += ", keys split evenly across " + std::to_string(at.blocks / at.strands * at.strands) +
              " CTAs";
    if (s.kv_layout == KvLayout::paged) text += ", pages of " + std::to_string(s.page) + " keys";
    return text;
  }
};

}  // namespace

std::int64_t decode_box_rows(const AttentionShape& s) {
  return s.kv_layout == KvLayout::paged ? std::min<std::int64_t>(s.page, kKeyPiece) : kKeyPiece;
}

DecodeLayout decode_layout(const AttentionShape& s, const KernelRow& row, std::int64_t sms) {
  const Tile& tile = row.tile;
  DecodeLayout layout;
  AttentionLayout& tiles = layout.tiles;
  tiles.sms = layout.blocks = std::max<std::int64_t>(sms, 1);
  if (s.heads == 0 || s.kv_heads == 0 || s.batch == 0) return layout;
  tiles.pack = pack_of(s, tile);
  tiles.queries = queries_of(s, tile, tiles.pack);
  if (s.masked && s.mask_block.cols % kKeyPiece != 0) tiles.composed = compose(s, tiles.queries);
  tiles.head_groups = s.heads / tiles.pack;
  tiles.tiles_per_head =
      s.q_packed ? s.q_total / tiles.queries + s.batch : ceil_div(s.q_length, tiles.queries);
  tiles.tiles = tiles.tiles_per_head * tiles.head_groups * (s.q_packed ? 1 : s.batch);
  tiles.whole = tiles.tiles;
  layout.sets = s.masked ? s.mask_heads : 1;
  layout.strands = strands_of(tiles.head_groups / layout.sets, layout.blocks);
  if (s.batch_invariant) {
    const std::int64_t per_sequence =
        tiles.head_groups * ceil_div(std::max<std::int64_t>(s.q_length, 1), tiles.queries);
    layout.part_pieces = kPartPieces;
    layout.max_parts = std::clamp<std::int64_t>(2 * layout.blocks / per_sequence, 1, kMaxParts);
  }
  return layout;
}

DecodeScratch carve_decode_scratch(core::Carver& carver, const Tile& tile,
                                   const DecodeLayout& layout) {
  DecodeScratch scratch;
  // Per part and 16 rows: chunks of 32 columns in the layout of PartialResult<32, 32>.
  const core::Size chunks = core::Size(layout.slots()) * (tile.m / 16) * (tile.v / kDecodeChunk);
  scratch.merge_counts = carver.add<std::uint64_t>(layout.counters());
  scratch.partials = carver.add<float>(chunks * 32 * (kDecodeChunk / 2 + 4));
  if (layout.tiles.composed) scratch.composed = carve_composed(carver, layout.tiles.composed);
  return scratch;
}

DecodeWalk decode_walk(const AttentionProblem& problem, const AttentionShape& shape,
                       const DecodeLayout& layout, const Tile& tile) {
  DecodeWalk walk{attention_walk(problem, shape, layout.tiles, tile)};
  walk.step_pieces = 1;  // keys are split at any piece
  walk.longest_last = walk.reverses_odd_rounds = false;
  walk.sets = Divisor::of(static_cast<int>(layout.sets));
  walk.strands = Divisor::of(static_cast<int>(layout.strands));
  walk.groups_per_strand = Divisor::of(static_cast<int>(layout.groups_per_strand()));
  if (shape.kv_layout == KvLayout::paged) walk.page = Divisor::of(static_cast<int>(shape.page));
  walk.ctas_per_strand = static_cast<int>(layout.blocks / layout.strands);
  walk.tiles_per_strand = walk.tiles / static_cast<int>(layout.strands);
  walk.sees_all_used = !shape.masked && !shape.q_packed && shape.kv_layout != KvLayout::packed &&
                       layout.tiles.tiles_per_head == 1 && shape.window_left < 0 &&
                       !problem.q_position && !problem.kv_position;
  if (walk.sees_all_used) {
    SequenceView all = walk.sequences;
    all.kv_begin = all.kv_end = {};
    walk.uniform_sequence = SequenceDescriptor::of(all.at(0));
    walk.reads_sequences = false;
  }
  walk.min_units = Divisor::of(tile.kv_splits);
  walk.part_pieces = static_cast<int>(layout.part_pieces);
  walk.max_parts = static_cast<int>(layout.max_parts);
  return walk;
}

KernelFamily sm90_decode_family() {
  KernelFamily family =
      make_family<Decode>("sm90_decode", Backend::sm90, Op::attention, kSm90DecodeRows);
  family.clears_rest = true;
  return family;
}

}  // namespace tessera::planning
