#include "src/kernels/cuda/sm90/skinny/plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/kernels/cuda/product/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm90/skinny/rows.hpp"

namespace tessera::planning {
namespace {

constexpr int kMaxSplits = 4, kMaxAtOnce = 4;
constexpr int kMinHeight = 8, kMaxHeight = 256;
constexpr double kMemoryRate = 4.46e12;
constexpr int kLine = 64, kLineBytes = 128, kPiece = 16, kPieceBytes = 64 * kPiece * 4;

std::int64_t up(std::int64_t length, std::int64_t piece) { return (length + piece - 1) / piece; }

double real(std::int64_t n) { return static_cast<double>(n); }

/// ceil of a non-negative number. The search below calls it often, and std::ceil is a function
/// call.
double ceil_of(double x) {
  const auto whole = static_cast<std::int64_t>(x);
  return real(whole) < x ? real(whole + 1) : real(whole);
}

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

// Rates and costs: bytes per second into one SM and to other CTAs of a cluster, FLOPs per
// SM, and seconds of a cluster barrier, of exchanging sums and of storing a piece.
constexpr double kSmRate = 72e9, kSendRate = 27e9, kSmFlops = 7.5e12;
constexpr double kMeet = 0.6e-6, kExchange = 0.15e-6, kStore = 0.2e-6;
// Grids overlap (programmatic dependent launch), so a part of each kernel's fixed cost is hidden.
// The smallest products take 2 to 3 us of a graph's replay (H100, 2026-11-25).
constexpr double kStart = 0.3e-6, kHidden = 1.8e-6;

/// What all layouts of a problem have in common.
struct Cut {
  const Tile& tile;
  bool sparse, rows_contiguous;
  bool shares_columns;  // CTAs of a cluster may share the loads of the columns
  int loaded;           // columns loaded per step
  int sms;
  std::int64_t rows, col_tiles;
  double per_sm = 0;          // 1 / sms
  double depth = 0;           // mean depth of one row of the left operand
  double steps = 0;           // steps of that depth
  double bytes = 0;           // bytes of the left operand
  double memory_seconds = 0;  // to read these bytes
  double tiles_per_row = 0;   // tiles of the result per row of tiles
  double multiply_rate = 0;   // seconds per FLOP
  double step_seconds = 0;    // overhead per step
};

/// A height of tiles, and the quantities that follow from it for all splits.
struct Height {
  int rows = 0, units = 0;
  int stage = 0, beyond = 0;  // bytes of a stage; bytes that the last unit may read past it
  std::int64_t row_tiles = 0;
  double tiles = 0;                          // tiles of the result
  double steps_per_sm = 0;                   // mean over all rounds
  double step_fetch = 0, step_multiply = 0;  // seconds of a step's loads and MMAs
};

/// A number of splits of a tile's depth, and the quantities that follow from it.
struct Split {
  int count = 1;
  int owned = 0;  // pieces of 16 columns per split
  double share = 1, steps = 0, whole_steps = 0;
  double at_least = 0;  // lower bound of one round's seconds without its steps
};

/// A choice of splits, thread blocks per SM, and tiles whose CTAs share loads.
struct Group {
  Split split;
  int at_once = 1, together = 1;
  int ring = 0;           // bytes
  double concurrent = 0;  // tiles that run at the same time
  double at_least = 0;    // lower bound of one round's seconds without loads and MMAs
};

// Lower bounds add the same terms in another order, so they hold only up to rounding.
constexpr double kRounding = 1 - 1e-9;

/// A lower bound of an SM's seconds, given those of its loads and of its MMAs.
double at_least(const Cut& cut, double fetch, double multiply) {
  const double memory = cut.memory_seconds;
  return std::max(std::max(fetch, memory), multiply) + 0.15 * std::min(fetch, memory);
}

double multiply_factor(int together) { return together > 1 ? 0.97 : 1.0; }

/// Bytes of a stage, weighted by power, which limits such products: bytes that arrive by multicast
/// cost less.
double costly_bytes(const Cut& cut, double height, int together) {
  return (height + cut.loaded) * kLineBytes - (together > 1 ? cut.tile.n * kLineBytes / 4 : 0);
}

/// Seconds to load a step.
double step_fetch(const Cut& cut, double height, int together) {
  return costly_bytes(cut, height, together) * (1 / kSmRate);
}

/// Seconds of a step's MMAs.
double step_multiply(const Cut& cut, double rows, int together) {
  return 2.0 * rows * cut.tile.n * kLine * cut.multiply_rate * multiply_factor(together);
}

constexpr int units_of(int height) { return (height + kLine - 1) / kLine; }

/// A lower bound of the number of thread blocks on the busiest SM.
double min_on_sm(const Cut& cut) { return cut.sparse ? 0.5 : 1; }

Height height_of(const Cut& cut, int rows, int together) {
  Height at;
  at.rows = rows;
  at.units = units_of(rows);
  at.stage = (rows + cut.loaded) * kLineBytes;
  // The last unit may read past its rows into what follows.
  at.beyond = std::max(0, at.units * kLine * kLineBytes - at.stage);
  const auto height = static_cast<std::uint32_t>(rows);
  at.row_tiles = (static_cast<std::uint32_t>(cut.rows) + height - 1) / height;
  at.tiles = real(at.row_tiles) * cut.tiles_per_row;
  at.steps_per_sm = at.tiles * cut.per_sm * cut.steps;
  at.step_fetch = step_fetch(cut, rows, together);
  at.step_multiply = step_multiply(cut, at.units * kLine, together);
  return at;
}

Split split_of(const Cut& cut, int count) {
  constexpr double kShare[kMaxSplits] = {1, 1.0 / 2, 1.0 / 3, 1.0 / 4};
  Split split{.count = count};
  const int pieces = cut.tile.n / kPiece;
  split.owned = (pieces + count - 1) / count;
  split.share = kShare[count - 1];
  split.steps = cut.steps * split.share;
  split.whole_steps = ceil_of(split.steps);
  split.at_least = kStart + split.owned * kStore;
  if (count > 1)
    split.at_least += kMeet + kExchange * count +
                      min_on_sm(cut) * pieces * kPieceBytes * (1.0 - split.share) * (1 / kSendRate);
  return split;
}

/// A lower bound of one round's seconds, without loads and MMAs.
double round_at_least(const Cut& cut, const Split& split, int at_once) {
  // Rounding may give an SM one block more than `at_once`.
  constexpr double kInverse[kMaxAtOnce] = {1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5};
  if (cut.sms < kMaxSplits) return split.at_least;
  return split.at_least + cut.step_seconds * split.steps * kInverse[at_once - 1];
}

Group group_of(const Cut& cut, int at_once, const Split& split, int together) {
  Group group{.split = split, .at_once = at_once, .together = together};
  group.ring = ring_bytes(at_once);
  group.concurrent = together * real(clusters_at_once(cut.sms, at_once, split.count * together));
  group.at_least = round_at_least(cut, split, at_once);
  if (together > 1) group.at_least += kMeet;
  return group;
}

/// Whether registers and shared memory suffice for `units` units.
bool units_fit(const Cut& cut, const Split& split, int at_once, int units) {
  if (at_once > 1 && at_once * (units * 128 + 64) > max_threads(cut.tile.n)) return false;
  return units * split.count * split.owned * kPieceBytes <= ring_bytes(at_once);
}

/// Whether a grid leaves room for more thread blocks on its SMs. Blocks of the next grid would then
/// start early on some SMs only.
bool leaves_room(const Cut& cut, const Group& group, const Height& at) {
  return at.tiles <= group.concurrent &&
         at.tiles * group.split.count * cut.per_sm <= group.at_once - 1;
}

/// Estimated seconds without the fixed cost of a kernel.
double seconds_of(const Cut& cut, const Group& group, const Height& at) {
  const Split& split = group.split;
  const int n = cut.tile.n, pieces = n / kPiece, splits = split.count;
  const double rounds = at.tiles <= group.concurrent ? 1.0 : ceil_of(at.tiles / group.concurrent);
  const double per_round = rounds == 1 ? 1.0 : 1 / rounds;
  const double blocks_per_sm = at.tiles * splits * per_round * cut.per_sm;
  const double whole_blocks = ceil_of(blocks_per_sm);
  // Lists differ in length, so some SMs get more than the mean.
  const double on_sm = cut.sparse ? blocks_per_sm + 0.5 : whole_blocks;
  const double bytes = costly_bytes(cut, at.rows, group.together);
  const double fetch =
      on_sm * (cut.sparse ? split.steps : split.whole_steps) * bytes * (1 / kSmRate);
  const double memory = cut.memory_seconds * per_round;
  const double multiply = on_sm * split.steps * 2.0 * at.units * kLine * n * kLine *
                          cut.multiply_rate * multiply_factor(group.together);
  // The overhead of a step is hidden if another thread block fills the gap.
  double end =
      split.owned * kStore + cut.step_seconds * split.whole_steps / std::max(1.0, whole_blocks);
  if (group.together > 1) end += kMeet;
  if (splits > 1)
    end += kMeet + kExchange * splits +
           on_sm * at.units * pieces * kPieceBytes * (1.0 - split.share) * (1 / kSendRate);
  // The shorter of the two is not hidden entirely.
  return rounds * (kStart + std::max(std::max(fetch, memory), multiply) +
                   0.15 * std::min(fetch, memory) + end) -
         kHidden;
}

/// The fastest layout so far.
struct Best {
  Group group;
  Height height;
  double seconds = 0;
  double limit = std::numeric_limits<double>::infinity();  // limit for lower bounds

  bool found() const { return height.row_tiles > 0; }
  /// Whether a layout with this lower bound cannot be the fastest.
  bool beats(double at_least) const { return at_least > limit; }
  void consider(const Cut& cut, const Group& with, const Height& at) {
    // If one round leaves no room, some SM has `at_once` thread blocks.
    const double blocks = min_on_sm(cut) * (at.tiles <= with.concurrent ? with.at_once : 1);
    const double steps = std::max(at.steps_per_sm, with.split.steps * blocks);
    if (beats(with.at_least + at_least(cut, steps * at.step_fetch, steps * at.step_multiply)))
      return;
    constexpr int kMinStages = 2;
    if (with.ring - at.beyond < kMinStages * at.stage || leaves_room(cut, with, at)) return;
    const double taken = seconds_of(cut, with, at);
    if (found() && !(taken < seconds)) return;
    *this = {with, at, taken, (taken + kHidden) / kRounding};
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

Cut cut_of(const MatmulShape& s, const Tile& tile, const DeviceFacts& device) {
  const OperandShape& left = left_of(s);
  const bool swapped = skinny_swaps(s);
  const std::int64_t rows = swapped ? s.n : s.m, cols = swapped ? s.m : s.n;
  const Majors majors = majors_of(s);
  Cut cut{.tile = tile,
          .sparse = left.sparse,
          .rows_contiguous = majors.rows_contiguous,
          .shares_columns = tile.n == kSkinnyTogether * kSkinnySharedLines && !left.sparse &&
                            s.batch == 1 && cols <= tile.n,
          .loaded = skinny_loaded(tile.n, majors.cols_contiguous),
          .sms = std::max(device.units, 1),
          .rows = rows,
          .col_tiles = up(cols, tile.n)};
  cut.per_sm = 1 / real(cut.sms);
  cut.depth = real(s.k);
  if (left.sparse) {
    const double lists =
        std::max(real(rows) / real(std::max<std::int64_t>(left.block.rows, 1)), 1.0);
    cut.depth = std::min(real(s.k), real(left.stored) * real(left.block.cols) / lists);
  }
  cut.steps = cut.depth / kLine;
  cut.bytes = 2.0 * real(rows) * cut.depth * real(left.batch);
  cut.memory_seconds = cut.bytes / kMemoryRate;
  cut.tiles_per_row = real(cut.col_tiles) * real(s.batch);
  // Narrow MMAs do not reach the full rate.
  cut.multiply_rate = tile.n >= 64   ? 1 / (0.65 * kSmFlops)
                      : tile.n >= 32 ? 1 / (0.5 * kSmFlops)
                                     : 1 / (0.3 * kSmFlops);
  cut.step_seconds = tile.n >= 128 ? 0.01e-6 : 0.03e-6;
  return cut;
}

/// A lower bound, for any height, of the seconds of all rounds' loads and MMAs. Heights below the
/// one that gives each SM one thread block load more in total; heights above it load more per
/// thread block. Where CTAs share loads, the minimum of one thread block per SM is left out.
double any_height_at_least(const Cut& cut, const Split& split, int together) {
  const double row_steps = real(cut.rows) * cut.tiles_per_row * cut.per_sm * cut.steps;
  const double block_steps = together > 1 ? 0 : split.steps * min_on_sm(cut);
  double height = cut.tile.m;
  if (row_steps < block_steps * height)
    height = std::max(row_steps / block_steps, real(kMinHeight));
  const double steps = std::max(row_steps / height, block_steps);
  return at_least(cut, steps * step_fetch(cut, height, together),
                  step_multiply(cut, std::max(row_steps, kLine * block_steps), together));
}

/// A lower bound of the seconds of every layout.
double row_at_least(const Cut& cut) {
  if (cut.rows == 0 || cut.tiles_per_row == 0) return 0;  // no layout exists
  double least = std::numeric_limits<double>::infinity();
  for (int splits = 1; splits <= kMaxSplits; ++splits) {
    const Split split = split_of(cut, splits);
    least = std::min(least,
                     round_at_least(cut, split, kMaxAtOnce) + any_height_at_least(cut, split, 1));
  }
  if (cut.shares_columns) {
    const Split split = split_of(cut, 1);
    least = std::min(least, kMeet + round_at_least(cut, split, 1) +
                                any_height_at_least(cut, split, kSkinnyTogether));
  }
  return least * kRounding - kHidden;
}

}  // namespace

SkinnyLayout skinny_layout(const MatmulShape& s, const Tile& tile, const DeviceFacts& device) {
  const Cut cut = cut_of(s, tile, device);
  Best best;
  // Tiles whose CTAs share loads: only in one round, and without rows that are multiplied in vain.
  if (cut.shares_columns) {
    const Group group = group_of(cut, 1, split_of(cut, 1), kSkinnyTogether);
    for (int height = kLine; height <= tile.m; height += kLine)
      if (real(cut.rows) / height <= group.concurrent &&
          units_fit(cut, group.split, 1, units_of(height)))
        best.consider(cut, group, height_of(cut, height, group.together));
  }
  const std::int64_t block_rows = cut.sparse ? left_of(s).block.rows : 0;
  std::array<Height, kMaxHeight / kLine> heights;
  std::size_t whole_heights = 0;
  for (int height = kLine; height <= tile.m; height += kLine)
    if (block_rows % height == 0) heights[whole_heights++] = height_of(cut, height, 1);
  std::array<Split, kMaxSplits> splits;
  std::array<double, kMaxSplits> any_height;  // lower bounds
  std::size_t split_counts = 0;
  for (int count = 1; count <= kMaxSplits; ++count) {
    if (count > 1 && cut.depth < real(count) * kLine) break;
    const Split& split = splits[split_counts] = split_of(cut, count);
    any_height[split_counts++] = any_height_at_least(cut, split, 1);
  }
  for (int at_once = 1; at_once <= kMaxAtOnce; ++at_once) {
    for (std::size_t i = 0; i < split_counts; ++i) {
      const Split& split = splits[i];
      if (!units_fit(cut, split, at_once, 1) ||
          best.beats(any_height[i] + round_at_least(cut, split, at_once)))
        continue;
      const Group group = group_of(cut, at_once, split, 1);
      for (std::size_t j = 0; j < whole_heights; ++j)
        if (units_fit(cut, split, at_once, heights[j].units)) best.consider(cut, group, heights[j]);
      // Other heights are not possible: with lists, tiles are parts of blocks; contiguous rows are
      // loaded in panels of 64.
      if (cut.sparse || cut.rows_contiguous) continue;
      // The lowest heights that fill the device in one round, or in two.
      const double one_round = real(cut.rows) * cut.tiles_per_row / group.concurrent;
      for (const double wanted : {one_round, 0.5 * one_round}) {
        if (!(wanted <= tile.m)) continue;
        const int height = std::max(kMinHeight, static_cast<int>(ceil_of(wanted / 8)) * 8);
        if (height % kLine == 0) continue;  // tried above
        if (units_fit(cut, split, at_once, units_of(height)))
          best.consider(cut, group, height_of(cut, height, 1));
      }
    }
  }
  if (!best.found()) return {};
  const Height& height = best.height;
  const Group& group = best.group;
  const bool swapped = skinny_swaps(s);
  return {.swapped = swapped,
          .rows = cut.rows,
          .cols = swapped ? s.m : s.n,
          .batches = s.batch,
          .height = height.rows,
          .splits = group.split.count,
          .together = group.together,
          .at_once = group.at_once,
          .stages = std::min(tile.stages, (group.ring - height.beyond) / height.stage),
          .shared_bytes = group.ring,
          .row_tiles = height.row_tiles,
          .col_tiles = cut.col_tiles,
          .bytes = cut.bytes,
          .seconds = best.seconds};
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

/// Additional seconds to read the left operand, compared with the memory on which the rates above
/// were measured.
double slower_memory_seconds(double bytes, const DeviceFacts& device) {
  const double rate = device.memory_tbs > 0 ? device.memory_tbs * 1e12 : kMemoryRate;
  return std::max(0.0, bytes / rate - bytes / kMemoryRate);
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
    return skinny_layout(s, row.tile, device);
  }
  static double seconds(const Shape& s, const Layout& at, const KernelRow&,
                        const DeviceFacts& device) {
    return at.seconds + slower_memory_seconds(at.bytes, device) +
           product::narrow_store_seconds(s, std::max(device.units, 1));
  }
  static double at_least(const Shape& s, const KernelRow& row, const DeviceFacts& device) {
    const Cut cut = cut_of(s, row.tile, device);
    return row_at_least(cut) + slower_memory_seconds(cut.bytes, device) * kRounding;
  }
  static BufferSizes buffers(const Shape&, const Layout&, const KernelRow&, int) { return {}; }
  static std::string describe(const Shape&, const Layout& at) { return describe_layout(at); }
};

}  // namespace

KernelFamily sm90_skinny_family() {
  return make_family<Skinny>("sm90_skinny", Backend::sm90, Op::matmul, kSm90SkinnyRows);
}

}  // namespace tessera::planning
