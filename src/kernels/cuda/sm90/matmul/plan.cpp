#include "src/kernels/cuda/sm90/matmul/plan.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/kernels/cuda/product/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm90/matmul/rows.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/launch_count.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

bool is_narrow(const MatmulShape& s) { return core::is_fp8(s.a.dtype); }

/// Whether the product is computed as its transpose: for a sparse b; in FP8 so that the side whose
/// factors may differ from line to line of a step gives the columns of tiles; else so that the
/// short side of a dense product gives the columns of tiles that are narrower than tall.
bool swaps(const MatmulShape& s, const Tile& tile) {
  if (s.a.sparse || s.b.sparse) return s.b.sparse;
  if (is_narrow(s)) return s.grouped || s.b.scale != ScaleForm::line_128;
  const bool by_rows = s.grouped && s.group_axis == GroupAxis::rows;
  const std::int64_t m = by_rows ? ceil_div(s.m, std::max<std::int64_t>(s.batch, 1)) : s.m;
  return tile.n < tile.m && m < s.n;
}

/// The fastest number of splits of a tile's depth, from the number of rounds of tiles, the steps of
/// a split, and the cost of adding up the splits.
int best_splits(std::int64_t tiles, std::int64_t steps, const Tile& tile, int sms) {
  constexpr double kTileOverhead = 4, kSplitOverhead = 6;  // in steps
  int best = 1;
  double least = 0;
  for (int splits = 1; splits <= std::clamp<std::int64_t>(steps, 1, kMatmulMaxSplits); ++splits) {
    if (splits * owned_pieces(tile.n, splits) > share_slots(tile.n)) continue;
    const double rounds = real(ceil_div(tiles, clusters_at_once(sms, splits)));
    const double time = rounds * (std::ceil(real(steps) / splits) + kTileOverhead +
                                  (splits > 1 ? kSplitOverhead : 0));
    if (splits == 1 || time < least) {
      least = time;
      best = splits;
    }
  }
  return best;
}

/// Mean depth of the stored blocks in one row of blocks of a sparse operand.
double depth_of_lists(const OperandShape& o, std::int64_t depth) {
  const double rows = real(o.transposed ? o.cols : o.rows) / real(o.block.rows);
  return std::min(real(depth), real(o.stored) * real(o.block.cols) / std::max(rows, 1.0));
}

/// Mean number of steps of a tile that any of its lines needs, if lists are unrelated.
std::int64_t fetched_steps(const MatmulShape& s, const Tile& tile, std::int64_t steps) {
  const OperandShape& lists = s.a.sparse ? s.a : s.b;
  const double depth = std::max(real(ceil_div(s.k, tile.k)), 1.0);
  const double lines = std::max(real(tile.m) / real(lists.block.rows), 1.0);
  return static_cast<std::int64_t>(
      std::ceil(depth * (1 - std::pow(1 - std::min(real(steps) / depth, 1.0), lines))));
}

/// Rows of tiles per group where both sides are dense; a group's tiles are walked column by column.
constexpr std::int64_t kRowsTogether = 16;

}  // namespace

MatmulLayout matmul_layout(const MatmulShape& s, const Tile& tile, const DeviceFacts& device) {
  const int sms = std::max(device.units, 1);
  MatmulLayout at;
  at.swapped = swaps(s, tile);
  at.rows = at.swapped ? s.n : s.m;
  at.cols = at.swapped ? s.m : s.n;
  at.matrices = s.batch;
  const bool sparse = s.a.sparse || s.b.sparse;
  std::int64_t down = ceil_div(at.rows, tile.m), across = ceil_div(at.cols, tile.n);
  std::int64_t depth = s.k;
  if (s.grouped && s.group_axis == GroupAxis::rows) {
    at.cut = at.swapped ? Cut::cols : Cut::rows;
    // Each group may end with a partial tile.
    (at.swapped ? across : down) += s.batch;
    at.tiles = product::count_tiles(down, across);
  } else {
    if (s.grouped) {
      at.cut = Cut::depth;
      depth = ceil_div(s.k, std::max<std::int64_t>(s.batch, 1));
    }
    at.tiles = product::count_tiles(product::count_tiles(down, across), s.batch);
  }
  at.group = kRowsTogether;
  if (sparse) {
    const OperandShape& lists = s.a.sparse ? s.a : s.b;
    depth = static_cast<std::int64_t>(depth_of_lists(lists, s.k));
    at.dealt = at.tiles > sms && at.tiles < LaunchCount::kMax;
    at.together = lists.block.rows % tile.m != 0;
    // The tiles of one column of a group read the same piece of the dense side, so a group has as
    // many rows of tiles as keep their stored blocks in L2.
    constexpr double kStaysInL2 = 24e6;
    const double bytes =
        real(size_of(lists.dtype)) * real(lists.stored) * real(lists.block.rows * lists.block.cols);
    const double rows = real(down) * kStaysInL2 / std::max(bytes, 1.0);
    at.group = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::min(rows, 1e9)),
                                        kRowsTogether, std::max(down, kRowsTogether));
  }
  at.step_depth = tile.k;
  at.steps = at.fetched = ceil_div(depth, tile.k);
  if (sparse) at.fetched = fetched_steps(s, tile, at.steps);
  if (can_split(tile) && !sparse && !s.grouped && !is_narrow(s))
    at.splits = best_splits(at.tiles, at.steps, tile, sms);
  at.copy_a = !s.a.sparse && !s.a.tma_readable;
  at.copy_b = !s.b.sparse && !s.b.tma_readable;
  at.clusters = std::min(at.tiles, clusters_at_once(sms, at.splits));
  return at;
}

MatmulScratch carve_matmul_scratch(core::Carver& carver, const MatmulShape& s,
                                   const MatmulLayout& layout) {
  // Large enough for either orientation, since strides are not part of a shape.
  const auto add = [&](const OperandShape& o) -> void* {
    const core::Size rows = core::Size(o.rows) * copied_pitch(o.cols);
    const core::Size cols = core::Size(o.cols) * copied_pitch(o.rows);
    return carver.add<std::uint16_t>(core::Size(o.batch) * std::max(rows.value(), cols.value()));
  };
  MatmulScratch scratch;
  if (layout.copy_a) scratch.a = add(s.a);
  if (layout.copy_b) scratch.b = add(s.b);
  if (layout.dealt) scratch.dealt = carver.add<std::uint64_t>(1);
  return scratch;
}

namespace {

const char* factors_text(ScaleForm form) {
  switch (form) {
    case ScaleForm::none:
      return "none";
    case ScaleForm::tensor:
      return "one";
    case ScaleForm::matrix:
      return "per matrix";
    case ScaleForm::line:
      return "per line";
    case ScaleForm::line_128:
      return "1x128";
    case ScaleForm::block_128:
      return "128x128";
    case ScaleForm::stored_block:
      return "per stored block";
  }
  return "";
}

/// The precision of a product in FP8; nothing of others.
std::string describe_precision(const MatmulShape& s, const MatmulLayout& layout) {
  if (!is_narrow(s)) return {};
  std::string words =
      core::words("; ", to_string(s.a.dtype), " x ", to_string(s.b.dtype), ", sums of ",
                  layout.step_depth, " in the tensor cores, then f32");
  const auto line = [](const OperandShape& o, const char* of_lines) {
    return o.scale == ScaleForm::line ? of_lines : factors_text(o.scale);
  };
  return words +
         core::words("; factors: a ", line(s.a, "per row"), ", b ", line(s.b, "per column"));
}

std::string describe_layout(const MatmulLayout& layout) {
  std::string words;
  if (layout.swapped) words += "; computed as its transpose";
  if (layout.splits > 1)
    words += "; " + std::to_string(layout.splits) + " thread blocks split a tile's depth";
  if (layout.together) words += "; rows of blocks share their loads of the dense side";
  if (layout.dealt) words += "; dynamic tiles, long lists first";
  for (const auto& [copied, name] : {std::pair(layout.copy_a, "a"), std::pair(layout.copy_b, "b")})
    if (copied)
      words += std::string("; copies ") + name + " to rows at multiples of 16 bytes first";
  return words;
}

/// How much longer a dense operand's lines of 128 bytes take from L2 where they straddle two of its
/// lines. H100: 5000^3 reaches .54 and 7296x6296x8280 .58 of cuBLASLt, 8192^3 1.0, which a factor
/// of 2 explains. Pitches are no part of a shape: rows are taken to lie without padding.
double line_factor(const OperandShape& o, bool copied) {
  const std::int64_t length = o.unit_col_stride == o.transposed ? o.rows : o.cols;
  return copied || length * size_of(o.dtype) % 128 == 0 ? 1 : 2;
}

/// Seconds that TMA takes longer where an operand's lines are so short that it fetches a tile line
/// by line: depths of 8 to 24 take 7 us longer than 48 (H200).
double short_lines_seconds(const OperandShape& o, bool copied) {
  const std::int64_t length = o.unit_col_stride == o.transposed ? o.rows : o.cols;
  constexpr std::int64_t kShort = 32;
  return copied || length > kShort ? 0 : 5e-6;
}

/// Seconds of the walks of all tiles.
double walk_seconds(const MatmulShape& s, const MatmulLayout& at, const KernelRow& row,
                    const DeviceFacts& device) {
  const Tile& tile = row.tile;
  // B is loaded for each fetched step; A only for the lines that multiply it.
  double left = tile.m, right = tile.n * real(at.fetched) / std::max(real(at.steps), 1.0);
  if (!s.a.sparse && !s.b.sparse && !s.grouped) {
    left *= line_factor(at.swapped ? s.b : s.a, at.swapped ? at.copy_b : at.copy_a);
    right *= line_factor(at.swapped ? s.a : s.b, at.swapped ? at.copy_a : at.copy_b);
  }
  const double step =
      row.times.step_ns * 1e-9 * product::step_factor(device) * (left + right) / (tile.m + tile.n);
  double tiles = real(at.tiles);
  // The bound has a partial tile in each group. About half of a tile is empty per group; the rows
  // of FP8 are fitted to that.
  if (is_narrow(s) && at.cut != Cut::none)
    tiles -= 0.5 * real(s.batch) *
             real(at.swapped ? ceil_div(at.rows, tile.m) : ceil_div(at.cols, tile.n));
  const double rounds = std::ceil(tiles / real(clusters_at_once(device.units, at.splits)));
  constexpr double kSplitSeconds = 2e-6;
  constexpr double kDealtSeconds = 2.5e-6;  // until the counter of tiles answers
  return rounds * (std::ceil(real(at.steps) / at.splits) * step + row.times.tile_ns * 1e-9 +
                   (at.splits > 1 ? kSplitSeconds : 0)) +
         (at.dealt ? kDealtSeconds : 0);
}

double seconds_of(const MatmulShape& s, const MatmulLayout& at, const KernelRow& row,
                  const DeviceFacts& device, double bytes) {
  const double work = walk_seconds(s, at, row, device);
  // Around the walks: copies, which run first, and results that are stored by element.
  const double around = (at.copy_a ? product::copy_seconds(s.a, device) : 0) +
                        (at.copy_b ? product::copy_seconds(s.b, device) : 0) +
                        product::narrow_store_seconds(s, std::max(device.units, 1));
  if (s.a.sparse || s.b.sparse) {
    // Stored blocks arrive from memory at a share of its rate, as few are in flight: 12032 x 9408
    // in blocks of 64 takes 163 (n256) or 107 us (n128) for one token at density .5. Where more
    // tiles read them, from L2, the walks take longer.
    const double streamed = !at.together ? 0.3 : row.tile.n > 128 ? 0.14 : 0.2;
    const OperandShape& o = s.a.sparse ? s.a : s.b;
    const double stored = real(o.stored) * real(o.block.rows * o.block.cols) * size_of(o.dtype);
    const double rate = device.memory_tbs * 1e12 * streamed;
    const double walks = std::max(work, rate > 0 ? stored / rate : 0);
    return product::with_memory(walks, bytes, device) + around;
  }
  // Dense products draw more power than sparse ones, which lowers the clock: 4352 x 11016 x 4736
  // takes 1.1 times its steps (H200).
  // FP8 waits for its factors, not for power.
  const double power = is_narrow(s) ? 1 : 1.08;
  // Those with a short side reach .6 of what memory gives (128 columns, H200).
  constexpr double kOfMemory = 0.65;
  const double rate = device.memory_tbs * 1e12 * kOfMemory;
  const double memory = rate > 0 ? bytes / rate : 0;
  // The smaller of the two is not hidden entirely.
  return std::max(power * work, memory) + 0.1 * std::min(work, memory) + around +
         std::max(short_lines_seconds(s.a, at.copy_a), short_lines_seconds(s.b, at.copy_b));
}

/// What products in FP8 require besides.
void refuse_narrow(const MatmulShape& s, Reasons& reasons) {
  constexpr const char* kAlongDepth =
      "FP8 that is contiguous along the depth (rows of a, columns of b), each line at a multiple "
      "of 16 bytes";
  const auto refuse_side = [&](const OperandShape& o, bool is_left, const char* name) {
    if (!o.tma_readable || !o.lies_along_depth(is_left == o.transposed))
      reasons.layout(name, kAlongDepth);
    if (!o.scale_fits) reasons.layout(name, "factors that span less than 2^31 elements");
  };
  refuse_side(s.a, true, "a");
  refuse_side(s.b, false, "b");
  if (s.grouped && s.group_axis == GroupAxis::inner)
    reasons.unsupported("groups along the depth in FP8");
  // The side of the tiles' rows has one factor per step.
  if (s.b.scale == ScaleForm::line_128 && (s.grouped || s.a.scale == ScaleForm::line_128))
    reasons.unsupported(
        s.grouped ? "b.scale of 1 x 128 beside groups" : "1 x 128 factors of both sides",
        "128 x 128 for b is supported");
}

/// The family: dense and grouped products, and products with one sparse side.
struct Matmul {
  using Shape = MatmulShape;
  using Layout = MatmulLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    product::refuse_two_sparse(s, reasons);
    if (row.dtypes == kNarrowMatmulDtypes) {
      if (is_narrow(s)) refuse_narrow(s, reasons);
      product::refuse_sizes(s, reasons);
      return product::refuse_walk(s, matmul::kLine, row.tile.k, reasons);
    }
    // Dense operands that TMA cannot read are copied.
    product::refuse_unaligned(!s.a.sparse || s.a.tma_readable, !s.b.sparse || s.b.tma_readable,
                              reasons);
    product::refuse_sizes(s, reasons);
    if (row.tile.n < 128 && !s.grouped && s.a.tma_readable && s.b.tma_readable)
      reasons.required("group_offsets, or an operand that has to be copied");
    product::refuse_walk(s, row.tile.k, row.tile.k, reasons);
  }
  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Layout at = matmul_layout(s, row.tile, device);
    product::refuse_tiles(at.tiles, reasons);
    return at;
  }
  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    return seconds_of(s, at, row, device, work_of(s).bytes);
  }
  static BufferSizes buffers(const Shape& s, const Layout& at, const KernelRow&, int) {
    core::Carver carver;
    carve_matmul_scratch(carver, s, at);
    return {carver.used(), 0};
  }
  static std::string describe(const Shape& s, const Layout& at) {
    return describe_precision(s, at) + describe_layout(at);
  }
};

}  // namespace

KernelFamily sm90_matmul_family() {
  return make_family<Matmul>("sm90_matmul", Backend::sm90, Op::matmul, kSm90MatmulRows);
}

}  // namespace tessera::planning
