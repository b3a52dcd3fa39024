#include "src/kernels/cuda/sm90/attention/plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/kernels/cuda/sm90/attention/rows.hpp"
#include "src/walk/arithmetic.hpp"

namespace tessera::planning {

namespace {

constexpr double kStartSeconds = -1e-6;  // a tile takes less in the first round than in later ones
constexpr double kReadSeconds = 2e-6;    // until the first list, or offset, is read

/// Rows with three warpgroups and steps of 64 keys.
constexpr bool is_tall(const Tile& tile) {
  return tile.warpgroups == 3 && tile.kv_splits == 1 && tile.n == kKeyPiece;
}

/// Seconds of a step that a row group skips: the steps before and after it overlap with nothing.
constexpr double pass_seconds(const Tile& tile) { return tile.n > kKeyPiece ? 0.67e-6 : 0.24e-6; }

/// Estimated seconds, without the launch. `work`: of the problem as it is walked (with composed
/// blocks).
double attention_seconds(const AttentionShape& given, const AttentionLayout& layout,
                         const KernelRow& row, const DeviceFacts& device, const Work& work) {
  const Tile& tile = row.tile;
  const WalkedShape walked(given, layout.composed);
  const AttentionShape& s = *walked;
  if (layout.tiles == 0 || device.units == 0) return 0;
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
  const double slower = step_factor(device);
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
  const double tiles = std::max(filled, 1.0) * tile_seconds(row);
  const double reading = walks_depend_on_data(s) ? kReadSeconds : 0;
  return std::max(std::max(compute, fetched) + tiles, memory) + reading + merging +
         compose_seconds(layout.composed) + kStartSeconds;
}

void refuse_fp8(const AttentionShape& s, const Tile& tile, Reasons& reasons) {
  // A packed sequence begins anywhere in the rows that share a factor.
  if (s.kv_layout == KvLayout::packed && s.kv_scales_by_rows)
    reasons.unsupported("factors for 64 or 128 rows of packed keys");
  if (has_factors_by_step(s) && !supports_score_transform(tile))
    reasons.unsupported("more than one factor per head of k and v");
  if (!s.v_by_keys) return;
  if (s.kv_layout == KvLayout::paged)
    reasons.layout("v",
                   "pages of contiguous rows at multiples of 16 bytes, got pages of "
                   "contiguous keys");
  // TMA reads no box that begins between multiples of 16 bytes.
  if (s.kv_layout == KvLayout::packed)
    reasons.layout("v", "packed sequences of contiguous rows, got contiguous keys");
  // Two rows of K are a box, which has to be a multiple of 128 bytes in shared memory.
  if (tile.k % 64 != 0)
    reasons.unsupported("v with contiguous keys in tiles whose columns are no multiple of 64");
}

/// The precision of attention in FP8; nothing of other types.
std::string describe_precision(const AttentionShape& s) {
  if (s.dtype != DType::e4m3) return {};
  std::string words = "; e4m3 x e4m3, P in e4m3, sums of 128 keys in the tensor cores, then f32";
  if (s.v_by_keys) words += "; v by keys";
  if (!s.has_q_scale && !s.has_kv_scales) return words + "; no factors";
  words += s.has_q_scale ? "; factors: q" : "; factors:";
  if (!s.has_kv_scales) return words;
  words += s.has_q_scale ? ", k and v " : " k and v ";
  if (s.kv_scales_by_rows) return words + "for 64 or 128 rows";
  return words + (has_factors_by_step(s) ? "by page" : "one per head and sequence");
}

struct Attention {
  using Shape = AttentionShape;
  using Layout = AttentionLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    if (s.kv_layout == KvLayout::paged && s.page % kKeyPiece != 0)
      reasons.layout("page_table", "pages of a multiple of 64 keys");
    if (s.dtype == DType::e4m3) refuse_fp8(s, row.tile, reasons);
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
  static BufferSizes buffers(const Shape& s, const Layout& at, const KernelRow& row, int) {
    core::Carver carver;
    carve_attention_scratch(carver, row.tile, at, softmax_state(s.dtype));
    return {carver.used(), 0};
  }
  static std::string describe(const Shape& s, const Layout& at) {
    return describe_precision(s) + describe_layout(at);
  }
};

}  // namespace

KernelFamily sm90_attention_family() {
  KernelFamily family =
      make_family<Attention>("sm90_attention", Backend::sm90, Op::attention, kSm90AttentionRows);
  family.clears_rest = true;
  return family;
}

}  // namespace tessera::planning
