#include "src/kernels/cuda/sm90/skinny/plan.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/product/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm90/skinny/rows.hpp"
#include "src/walk/arithmetic.hpp"

namespace tessera::planning {
namespace {

constexpr int kMaxSplits = 4, kMaxAtOnce = 4, kMinHeight = 8;
constexpr int kLine = 64, kLineBytes = 128, kPiece = 16, kPieceBytes = 64 * kPiece * 4;

/// Bytes of shared memory for the ring of each of `at_once` thread blocks on one SM.
int ring_bytes(int at_once) {
  constexpr int kBytes[] = {kSkinnyMaxRing, 108 << 10, 72 << 10, 52 << 10};
  return kBytes[at_once - 1];
}

/// Number of clusters of `blocks` CTAs that run at the same time, with `at_once` (1 to 4) CTAs per
/// SM. Clusters do not cross GPC borders, and GPCs differ in their number of SMs: the minimum over
/// several H200 of 132 SMs (cudaOccupancyMaxActiveClusters), scaled to other SM counts.
std::int64_t clusters_at_once(std::int64_t sms, int at_once, int blocks) {
  constexpr std::int64_t kMeasuredSms = 132;
  constexpr int kClusters[kMaxAtOnce][kMaxSplits] = {
      {132, 66, 39, 30}, {264, 132, 79, 62}, {396, 198, 124, 92}, {528, 264, 163, 124}};
  return std::max<std::int64_t>(kClusters[at_once - 1][blocks - 1] * sms / kMeasuredSms, 1);
}

/// Maximum number of threads of all thread blocks on one SM, limited by registers.
int max_threads(int columns) { return columns >= 128 ? 640 : columns >= 64 ? 1024 : 1280; }

/// Whether the rows of the left operand, and the columns of the right one, are contiguous
/// (Major::mn).
struct Majors {
  bool rows_contiguous = false, cols_contiguous = false;
};

/// What all layouts of a problem have in common.
struct Cut {
  const KernelRow& row;
  bool sparse, rows_contiguous;
  bool shares_columns;  // CTAs of a cluster may share the loads of the columns
  bool short_lines;     // lines of the columns' operand are as short as the columns are few
  int loaded;           // columns loaded per step
  int sms;
  std::int64_t rows, col_tiles, matrices;
  double depth = 0;        // mean depth of one row of the left operand
  double bytes = 0;        // bytes of the left operand
  double memory_rate = 0;  // bytes per second; 0: unknown
};

/// How tiles are computed: rows of a tile, CTAs that split its depth, tiles of a cluster that share
/// the loads of the columns, and CTAs on an SM.
struct Choice {
  int height = 0, splits = 1, together = 1, at_once = 1;

  int units() const { return (height + kLine - 1) / kLine; }
  /// Bytes of a stage, and those that the last unit may read past its rows.
  int stage(const Cut& cut) const { return (height + cut.loaded) * kLineBytes; }
  int beyond(const Cut& cut) const {
    return std::max(0, units() * kLine * kLineBytes - stage(cut));
  }
  int owned(const Cut& cut) const {  // pieces of 16 columns per split
    return (cut.row.tile.n / kPiece + splits - 1) / splits;
  }
  double tiles(const Cut& cut) const {
    return real(ceil_div(cut.rows, height)) * real(cut.col_tiles) * real(cut.matrices);
  }
  double tiles_at_once(const Cut& cut) const {
    return together * real(clusters_at_once(cut.sms, at_once, splits * together));
  }

  /// Whether registers and shared memory suffice, and no SM stays free for the next grid: its
  /// thread blocks would start early on some SMs only.
  bool fits(const Cut& cut) const {
    constexpr int kMinStages = 2;
    if (at_once > 1 && at_once * (units() * 128 + 64) > max_threads(cut.row.tile.n)) return false;
    if (units() * splits * owned(cut) * kPieceBytes > ring_bytes(at_once)) return false;
    if (ring_bytes(at_once) - beyond(cut) < kMinStages * stage(cut)) return false;
    return tiles(cut) > tiles_at_once(cut) || tiles(cut) * splits / cut.sms > at_once - 1;
  }
};

/// Estimated seconds, without the fixed cost of a kernel. 90% of 278 times of random shapes, dense
/// and sparse, on all rows (H100 and H200, CUDA 13.0, 2026-11-26, graph replays) are within .86 to
/// 1.13 of this. Nothing hides anything: the terms add up.
double seconds_of(const Cut& cut, const Choice& at) {
  // Of one SM: bytes per second that it receives, and that it sends to other CTAs of a cluster, and
  // FLOPs per second, which narrow MMAs do not reach.
  constexpr double kIntake = 78e9, kSend = 19.2e9, kFlops = 7.5e12;
  constexpr double kPieceStore = 0.23e-6, kMemory = 0.54;
  const int n = cut.row.tile.n;
  const double of_rate = n >= 64 ? 0.65 : n >= 32 ? 0.5 : 0.3;
  const double rounds = std::max(std::ceil(at.tiles(cut) / at.tiles_at_once(cut)), 1.0);
  const double ctas = at.tiles(cut) * at.splits / rounds / cut.sms;  // per SM
  // Lists differ in length, so some SMs get more than the mean.
  const double on_sm = cut.sparse ? ctas + 0.5 : std::ceil(ctas);
  const double steps = cut.depth / kLine / at.splits;
  const double walked = on_sm * (cut.sparse ? steps : std::ceil(steps));
  // By power, which limits such products, bytes that arrive by multicast cost less.
  const double bytes = at.stage(cut) - (at.together > 1 ? n * kLineBytes / 4 : 0);
  const double multiply = 2.0 * at.units() * kLine * n * kLine / (kFlops * of_rate);
  // Where several tiles of columns read the left operand, it comes from L2.
  constexpr double kFromL2 = 1.5;
  // Contiguous rows whose lines straddle those of L2: 16 x 7904 x 12032 takes 57 us, not 50.
  constexpr double kStraddling = 1.2;
  const double step =
      std::max(bytes / kIntake, multiply) * (cut.sparse || cut.col_tiles == 1 ? 1 : kFromL2) *
      (!cut.sparse && cut.rows_contiguous && cut.rows % kLine != 0 ? kStraddling : 1);
  const double memory = cut.memory_rate > 0 ? kMemory * cut.bytes / rounds / cut.memory_rate : 0;
  // A step's latency is hidden if another thread block fills the gap.
  const double gaps = std::ceil(steps) / std::max(1.0, std::ceil(ctas));
  const double latency = cut.row.times.step_ns * 1e-9;
  // However low a tile, its loads, barriers and MMAs follow each other: 14 x 8 x 9880 takes 8.7 us,
  // and 608 x 8 x 4352 with contiguous columns 9.0 us. Meanwhile memory delivers.
  constexpr double kChain = 0.14e-6, kChainOfShortLines = 0.28e-6;
  const double of_step = cut.short_lines ? kChainOfShortLines : kChain;
  const double chain = std::max(of_step - step - latency, 0.0) * gaps;
  const int bytes_of_unit = n / kPiece * kPieceBytes;  // of its sums
  const double sent = on_sm * at.units() * bytes_of_unit * (1.0 - 1.0 / at.splits);
  // Dense products of little depth wait for their results.
  constexpr double kWritten = 2;
  const double result = 2.0 * at.tiles(cut) * at.height * n;  // bytes
  const double writing =
      cut.sparse || cut.memory_rate <= 0 ? 0 : kWritten * result / cut.memory_rate;
  return rounds * (cut.row.times.tile_ns * 1e-9 + walked * step + latency * gaps +
                   std::max(memory, chain) + at.owned(cut) * kPieceStore + sent / kSend) +
         writing;
}

/// The fastest layout so far.
struct Best {
  Choice choice;
  double seconds = 0;

  void consider(const Cut& cut, const Choice& at) {
    if (!at.fits(cut)) return;
    const double taken = seconds_of(cut, at);
    if (choice.height > 0 && !(taken < seconds)) return;
    *this = {at, taken};
  }
};

}  // namespace

bool skinny_swaps(const MatmulShape& s) {
  return s.a.sparse || s.b.sparse ? s.b.sparse : s.m < s.n;
}

namespace {

Majors majors_of(const MatmulShape& s) {
  // Left is [rows, depth], right is [depth, columns].
  if (skinny_swaps(s))
    return {!s.b.lies_along_depth(!s.b.transposed), !s.a.lies_along_depth(s.a.transposed)};
  return {!s.a.lies_along_depth(s.a.transposed), !s.b.lies_along_depth(!s.b.transposed)};
}

/// The streamed operand.
const OperandShape& left_of(const MatmulShape& s) { return skinny_swaps(s) ? s.b : s.a; }

Cut cut_of(const MatmulShape& s, const KernelRow& row, const DeviceFacts& device) {
  const OperandShape& left = left_of(s);
  const Tile& tile = row.tile;
  const bool swapped = skinny_swaps(s);
  const std::int64_t rows = swapped ? s.n : s.m, cols = swapped ? s.m : s.n;
  const Majors majors = majors_of(s);
  Cut cut{.row = row,
          .sparse = left.sparse,
          .rows_contiguous = majors.rows_contiguous,
          .shares_columns = tile.n == kSkinnyTogether * kSkinnySharedLines && !left.sparse &&
                            s.batch == 1 && cols <= tile.n,
          .short_lines = majors.cols_contiguous && cols <= 16,
          .loaded = skinny_loaded(tile.n, majors.cols_contiguous),
          .sms = std::max(device.units, 1),
          .rows = rows,
          .col_tiles = ceil_div(cols, tile.n),
          .matrices = s.batch};
  cut.depth = real(s.k);
  if (left.sparse) {
    const double lists =
        std::max(real(rows) / real(std::max<std::int64_t>(left.block.rows, 1)), 1.0);
    cut.depth = std::min(real(s.k), real(left.stored) * real(left.block.cols) / lists);
  }
  cut.bytes = 2.0 * real(rows) * cut.depth * real(left.batch);
  cut.memory_rate = device.memory_tbs * 1e12;
  return cut;
}

}  // namespace

SkinnyLayout skinny_layout(const MatmulShape& s, const KernelRow& row, const DeviceFacts& device) {
  const Tile& tile = row.tile;
  const Cut cut = cut_of(s, row, device);
  if (cut.rows == 0 || cut.col_tiles * cut.matrices == 0) return {};
  Best best;
  // Tiles whose CTAs share loads: only in one round, and without rows that are multiplied in vain.
  if (cut.shares_columns) {
    for (int height = kLine; height <= tile.m; height += kLine) {
      const Choice at{.height = height, .together = kSkinnyTogether};
      if (real(cut.rows) / height <= at.tiles_at_once(cut)) best.consider(cut, at);
    }
  }
  const std::int64_t block_rows = cut.sparse ? left_of(s).block.rows : 0;
  for (int at_once = 1; at_once <= kMaxAtOnce; ++at_once) {
    for (int splits = 1; splits <= kMaxSplits; ++splits) {
      if (splits > 1 && cut.depth < real(splits) * kLine) break;
      Choice at{.splits = splits, .at_once = at_once};
      for (at.height = kLine; at.height <= tile.m; at.height += kLine)
        if (block_rows % at.height == 0) best.consider(cut, at);
      // Other heights are not possible: with lists, tiles are parts of blocks; contiguous rows are
      // loaded in panels of 64.
      if (cut.sparse || cut.rows_contiguous) continue;
      // The lowest heights that fill the device in one round, or in two.
      const double one_round =
          real(cut.rows) * real(cut.col_tiles * cut.matrices) / at.tiles_at_once(cut);
      for (const double wanted : {one_round, 0.5 * one_round}) {
        if (!(wanted <= tile.m)) continue;
        at.height = std::max(kMinHeight, static_cast<int>(std::ceil(wanted / 8)) * 8);
        if (at.height % kLine != 0) best.consider(cut, at);  // else tried above
      }
    }
  }
  const Choice& at = best.choice;
  if (at.height == 0) return {};
  const bool swapped = skinny_swaps(s);
  return {
      .swapped = swapped,
      .rows = cut.rows,
      .cols = swapped ? s.m : s.n,
      .batches = s.batch,
      .height = at.height,
      .splits = at.splits,
      .together = at.together,
      .at_once = at.at_once,
      .stages = std::min(tile.stages, (ring_bytes(at.at_once) - at.beyond(cut)) / at.stage(cut)),
      .shared_bytes = ring_bytes(at.at_once),
      .row_tiles = ceil_div(cut.rows, at.height),
      .col_tiles = cut.col_tiles,
      .seconds = std::max(best.seconds, cut.memory_rate > 0 ? cut.bytes / cut.memory_rate : 0)};
}

namespace {

std::string describe_layout(const SkinnyLayout& layout) {
  std::string words = "; tiles of " + std::to_string(layout.height) + " rows";
  if (layout.swapped) words += "; computed as its transpose";
  if (layout.splits > 1)
    words += "; " + std::to_string(layout.splits) + " thread blocks split a tile's depth";
  if (layout.together > 1)
    words += "; clusters of " + std::to_string(layout.together) +
             " tiles share the loads of the columns";
  return words;
}

/// The family: products with few columns; the other operand is streamed.
struct Skinny {
  using Shape = MatmulShape;
  using Layout = SkinnyLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    product::refuse_two_sparse(s, reasons);
    if (s.grouped) reasons.unsupported("group_offsets");
    product::refuse_unaligned(s.a.tma_readable, s.b.tma_readable, reasons);
    product::refuse_sizes(s, reasons);
    constexpr std::int64_t kMaxColumns = 1024, kMaxInGrid = 65535;
    const std::int64_t columns = s.a.sparse ? s.n : s.b.sparse ? s.m : std::min(s.m, s.n);
    reasons.unless_at_most("the short side", columns, kMaxColumns);
    // A narrower kernel row is faster.
    if (columns <= row.tile.n / 2 && row.tile.n > kSkinnyNarrowest)
      reasons.layout("the short side", "more than half of the tile's columns");
    reasons.unless_at_most("matrices of a batch", s.batch, kMaxInGrid);
    product::refuse_walk(s, 64, row.tile.k, reasons);
  }
  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device, Reasons&) {
    return skinny_layout(s, row, device);
  }
  static double seconds(const Shape& s, const Layout& at, const KernelRow&,
                        const DeviceFacts& device) {
    // Grids overlap (programmatic dependent launch), so most of a kernel's fixed cost is hidden.
    constexpr double kFixed = 0.6e-6;
    return at.seconds + product::narrow_store_seconds(s, std::max(device.units, 1)) + kFixed -
           overhead_seconds(device);
  }
  static BufferSizes buffers(const Shape&, const Layout&, const KernelRow&, int) { return {}; }
  static std::string describe(const Shape&, const Layout& at) { return describe_layout(at); }
};

}  // namespace

KernelFamily sm90_skinny_family() {
  return make_family<Skinny>("sm90_skinny", Backend::sm90, Op::matmul, kSm90SkinnyRows);
}

}  // namespace tessera::planning
