#include "src/plan/attention_sm90.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::planning {
namespace {

/// Heads that can be folded into rows: they read the same keys under the same lists.
int most_packed(const AttentionShape& s, const Tile& tile) {
  if (s.kv_heads == 0) return 1;
  const bool own_lists = s.masked && s.mask_heads > 1;
  if (own_lists) return 1;
  const std::int64_t group = s.heads / s.kv_heads;
  int pack = 1;
  while (pack * 2 <= std::min(64, tile.m) && group % (pack * 2) == 0 && tile.m % (pack * 2) == 0)
    pack *= 2;
  return pack;
}

/// As few as make queries fit: into a row of the mask's blocks, or where there are not many.
int pack_of(const AttentionShape& s, const Tile& tile) {
  const int most = most_packed(s, tile);
  int pack = 1;
  if (s.masked) {
    while (pack < most && s.mask_block.rows % (tile.m / pack) != 0) pack *= 2;
    if (tile.lines > 1 && s.mask_block.rows % (tile.m / pack) != 0) return 1;
  } else {
    while (pack < most && s.q_length * pack * 2 <= tile.m) pack *= 2;
    // One more where the last queries would leave most of a tile empty.
    if (pack < most && s.q_length * pack < tile.m) pack *= 2;
  }
  return pack;
}

constexpr double kTileSeconds = 2e-6, kMergeSeconds = 8e-6;  // around a tile; a second kernel
constexpr double kPassSeconds = 0.24e-6;                     // a step that a line does not need
constexpr double kMergeBytes = 3e12;                         // a second

/// Seconds of one step on one multiprocessor, as measured on an H200: its share of what the tensor
/// cores and the exponentials alone would take, and what it costs besides, which more warpgroups
/// hide better but divide among more rows.
double step_seconds(const AttentionShape& s, const Tile& tile) {
  constexpr double kTensor = 7.5e12, kExponentials = 28e9;  // FLOP and results a second
  const double pairs = static_cast<double>(tile.m) * tile.n;
  double besides = tile.warpgroups == 2 ? 0.55e-6 : tile.warpgroups == 3 ? 0.65e-6 : 0.50e-6;
  // Rows of three warpgroups see less alike than those of two.
  if (tile.warpgroups == 3 && s.window_right >= 0) besides += 0.12e-6;
  return 0.87 * 2 * pairs * (tile.k + tile.v) / kTensor + 0.21 * pairs / kExponentials + besides;
}

/// Into how many tiles the keys of one output tile are divided. Where there are fewer tiles than
/// multiprocessors, more of them work at once, and a second kernel joins what they found.
int splits_of(const AttentionShape& s, const Tile& tile, std::int64_t tiles) {
  constexpr std::int64_t kUnits = 132, kMost = 32;
  // Rows of packed queries that belong to nobody must not be written.
  if (s.q_packed || tiles == 0 || tiles >= kUnits) return 1;
  std::int64_t keys = s.kv_length;
  if (s.masked && s.mask_capacity <= keys / s.mask_block.cols)  // else lists may name all of them
    keys = std::min(keys, s.mask_capacity * s.mask_block.cols * tile.lines);
  if (s.window_left >= 0 && s.window_right >= 0)
    keys = std::min(keys, s.window_left + s.window_right + tile.m);
  const std::int64_t steps = (keys + tile.n - 1) / tile.n;
  const double step = step_seconds(s, tile);
  const double joined = 4.0 * static_cast<double>(s.q_total * s.heads * s.dim_v);
  const auto seconds = [&](std::int64_t splits) {
    const auto rounds = static_cast<double>((tiles * splits + kUnits - 1) / kUnits);
    const auto walked = static_cast<double>((steps + splits - 1) / splits);
    const double merged = kMergeSeconds + 2 * joined * static_cast<double>(splits) / kMergeBytes;
    return rounds * (walked * step + kTileSeconds) + (splits > 1 ? merged : 0);
  };
  std::int64_t best = 1;
  for (std::int64_t splits = 2; splits <= std::min(kMost, steps / 2); ++splits)
    if (seconds(splits) < seconds(best)) best = splits;
  return static_cast<int>(best);
}

}  // namespace

AttentionLayout attention_layout(const AttentionShape& s, const Tile& tile) {
  AttentionLayout layout;
  if (s.heads == 0 || s.kv_heads == 0 || s.batch == 0) return layout;
  layout.pack = pack_of(s, tile);
  layout.queries = tile.m / layout.pack;
  layout.lines = tile.lines;
  layout.head_groups = s.heads / layout.pack;
  layout.tiles_a_head = s.q_packed ? s.q_total / layout.queries + s.batch
                                   : (s.q_length + layout.queries - 1) / layout.queries;
  layout.tiles = layout.tiles_a_head * layout.head_groups * (s.q_packed ? 1 : s.batch);
  layout.uneven = s.masked || s.window_right >= 0 || s.window_left >= 0 || s.q_packed ||
                  s.kv_layout == KvLayout::packed;
  layout.splits = splits_of(s, tile, layout.tiles);
  // Tiles of one head side by side share its keys. Where later tiles are longer, the long ones of
  // as many heads as fill the GPU come first, so that short ones end the work.
  constexpr std::int64_t kFillsTheGpu = 264;
  if (s.window_right >= 0 && layout.tiles_a_head > 0)
    layout.section = std::max<std::int64_t>(kFillsTheGpu / layout.tiles_a_head, 1);
  return layout;
}

double share_of_union(const AttentionShape& s, int lines) {
  const double keys = static_cast<double>(std::max<std::int64_t>(s.kv_length, 1));
  const double named =
      static_cast<double>(s.mask_capacity) * static_cast<double>(s.mask_block.cols);
  return 1 - std::pow(1 - std::min(named / keys, 1.0), lines);
}

double attention_sm90_ms(const AttentionShape& s, const Tile& tile, const DeviceFacts& device,
                         const Work& work) {
  const AttentionLayout layout = attention_layout(s, tile);
  if (layout.tiles == 0 || device.units == 0) return 0;
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double queries = real(s.q_total) * real(s.heads);
  const double width = real(std::max<std::int64_t>(s.dim + s.dim_v, 1));
  // Keys that a tile walks: what one query sees, and where that differs from row to row, what the
  // others of the tile see besides.
  double keys = work.flops / std::max(2 * queries * width, 1.0);
  if (s.window_right >= 0 || s.window_left >= 0) keys += 0.5 * real(layout.queries);
  const double steps = std::ceil(keys / tile.n) / layout.splits;
  // The last round of tiles is rarely full, but tiles are dealt as they are asked for.
  const double rounds = real(layout.tiles * layout.splits) / device.units;
  const double filled = layout.uneven ? std::max(rounds, 1.0) : std::ceil(rounds);
  constexpr double kMeasuredTflops = 970;  // dense, of the card whose steps were measured
  const double slower =
      device.tensor_tflops > 0 ? kMeasuredTflops * device.units / (132 * device.tensor_tflops) : 1;
  double compute = filled * steps * step_seconds(s, tile) * slower;
  const double memory = device.memory_tbs > 0 ? work.bytes / (device.memory_tbs * 1e12) : 0;
  // A tile of one list computes on whatever it loads, which takes longer; one that walks several
  // loads more than a consumer needs.
  double fetched = 0;
  if (layout.lines > 1 && device.l2_tbs > 0) {
    const double bytes = real(layout.tiles) * share_of_union(s, layout.lines) * real(s.kv_length) *
                         real(tile.k + tile.v) * size_of(s.dtype);
    fetched = bytes / (device.l2_tbs * 1e12) * filled / rounds;
    const double loaded = share_of_union(s, layout.lines) * real(s.kv_length) / tile.n;
    compute += filled * std::max(loaded / layout.splits - steps, 0.0) * kPassSeconds * slower;
  }
  const double joined = 8.0 * queries * real(s.dim_v) * layout.splits / kMergeBytes;
  const double merge = layout.splits > 1 ? kMergeSeconds + joined : 0;
  return (std::max({compute, memory, fetched}) + filled * kTileSeconds + merge) * 1e3;
}

std::string describe(const AttentionLayout& layout) {
  std::string text = "; " + std::to_string(layout.tiles) + " tiles";
  if (layout.pack > 1) text += ", " + std::to_string(layout.pack) + " heads folded into rows";
  if (layout.lines > 1)
    text += ", " + std::to_string(layout.lines) + " lines of " +
            std::to_string(layout.queries / layout.lines) + " rows walked together";
  if (layout.splits > 1) text += ", keys divided by " + std::to_string(layout.splits);
  return text;
}

AttentionScratchSm90 carve_attention_scratch(Carver& carver, const AttentionShape& s,
                                             const AttentionLayout& layout) {
  AttentionScratchSm90 scratch;
  if (layout.uneven) scratch.dealt = carver.add<int>(1);
  if (layout.splits > 1) {
    const core::Size rows = core::Size(layout.splits) * s.q_total * s.heads;
    scratch.out = carver.add<float>(rows * s.dim_v);
    scratch.lse = carver.add<float>(rows);
  }
  return scratch;
}

}  // namespace tessera::planning
