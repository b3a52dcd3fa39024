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
  } else {
    while (pack < most && s.q_length * pack * 2 <= tile.m) pack *= 2;
    // One more where the last queries would leave most of a tile empty.
    if (pack < most && s.q_length * pack < tile.m) pack *= 2;
  }
  return pack;
}

}  // namespace

AttentionLayout attention_layout(const AttentionShape& s, const Tile& tile) {
  AttentionLayout layout;
  if (s.heads == 0 || s.kv_heads == 0 || s.batch == 0) return layout;
  layout.pack = pack_of(s, tile);
  layout.queries = tile.m / layout.pack;
  layout.head_groups = s.heads / layout.pack;
  layout.tiles_a_head = s.q_packed ? s.q_total / layout.queries + s.batch
                                   : (s.q_length + layout.queries - 1) / layout.queries;
  layout.tiles = layout.tiles_a_head * layout.head_groups * (s.q_packed ? 1 : s.batch);
  layout.uneven = s.masked || s.window_right >= 0 || s.window_left >= 0 || s.q_packed ||
                  s.kv_layout == KvLayout::packed;
  // Tiles of one head side by side share its keys. Where later tiles are longer, the long ones of
  // as many heads as fill the GPU come first, so that short ones end the work.
  constexpr std::int64_t kFillsTheGpu = 264;
  if (s.window_right >= 0 && layout.tiles_a_head > 0)
    layout.section = std::max<std::int64_t>(kFillsTheGpu / layout.tiles_a_head, 1);
  return layout;
}

namespace {

/// What walking in whole steps costs, in the time of as many keys at full rate: a step costs as
/// much as 30 keys besides its own, and the first and last ones of a tile have nothing to overlap
/// with.
double cost_of_steps(double keys, const Tile& tile) {
  if (!(keys >= 1)) return 1;
  constexpr double kBesides = 30, kAround = 1.65, kUsual = 1 + kBesides / 128;
  return (std::ceil(keys / tile.n) + kAround) * (tile.n + kBesides) / (keys * kUsual);
}

}  // namespace

double attention_sm90_ms(const AttentionShape& s, const Tile& tile, const DeviceFacts& device,
                         const Work& work) {
  const AttentionLayout layout = attention_layout(s, tile);
  if (layout.tiles == 0 || device.units == 0) return 0;
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  // Tiles are computed whole: rows beyond the last query, columns beyond the dimensions.
  const double rows = real(layout.tiles) * tile.m, queries = real(s.q_total) * real(s.heads);
  const double width = real(std::max<std::int64_t>(s.dim + s.dim_v, 1));
  const double keys = work.flops / std::max(2 * queries * width, 1.0);  // that a query sees
  const double wider = real(tile.k + tile.v) / width * cost_of_steps(keys, tile);
  const double flops = work.flops * std::max(rows / std::max(queries, 1.0), 1.0) * wider;
  constexpr double kShareOfPeak = 0.7, kTileSeconds = 2e-6;
  // The last round of tiles is rarely full, but tiles are dealt as they are asked for.
  const double rounds = real(layout.tiles * layout.splits) / device.units;
  const double filled = layout.uneven ? std::max(rounds, 1.0) : std::ceil(rounds);
  const double rate = device.tensor_tflops * 1e12 * kShareOfPeak;  // 0: unknown
  const double compute = rate > 0 ? flops / rate * filled / rounds : 0;
  const double memory = device.memory_tbs > 0 ? work.bytes / (device.memory_tbs * 1e12) : 0;
  return (std::max(compute, memory) + filled * kTileSeconds) * 1e3;
}

std::string describe(const AttentionLayout& layout) {
  std::string text = "; " + std::to_string(layout.tiles) + " tiles";
  if (layout.pack > 1) text += ", " + std::to_string(layout.pack) + " heads folded into rows";
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
