#include "src/kernels/cuda/sm90/skinny/plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/kernels/cuda/sm90/product/refuse.hpp"
#include "src/kernels/cuda/sm90/skinny/rows.hpp"

namespace tessera::planning {
namespace {

constexpr int kMaxSplits = 4, kMaxAtOnce = 4;
constexpr int kMinHeight = 8, kMaxHeight = 256;
constexpr double kMemoryRate = 4.46e12;
constexpr int kLine = 64, kLineBytes = 128, kPiece = 16, kPieceBytes = 64 * kPiece * 4;

std::int64_t up(std::int64_t length, std::int64_t piece) { return (length + piece - 1) / piece; }

double real(std::int64_t n) { return static_cast<double>(n); }

/// Of what is not negative. The search below asks often, and std::ceil is a call.
double ceil_of(double x) {
  const auto whole = static_cast<std::int64_t>(x);
  return real(whole) < x ? real(whole + 1) : real(whole);
}

/// Shared memory for the ring of each of so many blocks of threads on one unit.
int ring_bytes(int at_once) {
  constexpr int kBytes[] = {kSkinnyMaxRing, 108 << 10, 72 << 10, 52 << 10};
  return kBytes[at_once - 1];
}

/// How many clusters of so many blocks run at a time, with 1 to 4 blocks per SM. Clusters do not
/// cross the borders of a GPC, and not all GPCs have the same number of SMs: the least of what
/// several H200 of 132 SMs told (cudaOccupancyMaxActiveClusters), in proportion for other counts.
std::int64_t clusters_at_once(std::int64_t sms, int at_once, int blocks) {
  constexpr std::int64_t kMeasuredSms = 132;
  constexpr int kClusters[kMaxAtOnce][kMaxSplits] = {
      {132, 66, 39, 30}, {264, 132, 79, 62}, {396, 198, 124, 92}, {528, 264, 163, 124}};
  return std::max<std::int64_t>(kClusters[at_once - 1][blocks - 1] * sms / kMeasuredSms, 1);
}

/// Threads of all the blocks on one unit, as their registers allow.
int max_threads(int columns) { return columns >= 128 ? 640 : columns >= 64 ? 1024 : 1280; }

/// Which of the two sides lie with their depth apart: rows of the left one, columns of the right
/// one contiguous.
struct Majors {
  bool rows_contiguous = false, cols_contiguous = false;
};

// Bytes through one SM, bytes from memory, and the cost of adding up and storing.
constexpr double kSmRate = 72e9, kSendRate = 27e9, kSmFlops = 7.5e12;
constexpr double kMeet = 0.6e-6, kExchange = 0.15e-6, kStore = 0.2e-6;
// A grid begins while the one before ends: part of what every kernel costs is hidden.
constexpr double kStart = 0.3e-6, kHidden = 4e-6;

/// What all layouts of a problem share.
struct Cut {
  const Tile& tile;
  bool sparse, rows_contiguous;
  bool shares_columns;  // blocks of a cluster may load the columns for each other
  int loaded;           // columns of a step that are loaded
  int sms;
  std::int64_t rows, col_tiles;
  double per_sm = 0;          // 1 / sms
  double depth = 0;           // of one row of the left side, on average
  double steps = 0;           // of that depth
  double bytes = 0;           // of the left side
  double memory_seconds = 0;  // for these
  double tiles_per_row = 0;   // tiles of the result, for each row of tiles
  double multiply_rate = 0;   // seconds per FLOP
  double step_seconds = 0;    // what a step costs besides its bytes
};

/// A height of tiles, and what it decides for all splits.
struct Height {
  int rows = 0, units = 0;
  int stage = 0, beyond = 0;  // bytes: of a stage; that the last unit may read past a stage
  std::int64_t row_tiles = 0;
  double tiles = 0;                          // of the result
  double steps_per_sm = 0;                   // of all rounds, on average
  double step_fetch = 0, step_multiply = 0;  // seconds of a step's bytes and multiplications
};

/// Splits of a tile's depth, and what their number decides.
struct Split {
  int count = 1;
  int owned = 0;  // pieces of 16 columns that one split adds up and stores
  double share = 1, steps = 0, whole_steps = 0;
  double at_least = 0;  // seconds of one round besides its steps: a lower bound
};

/// Splits, thread blocks per SM and tiles whose blocks load together.
struct Group {
  Split split;
  int at_once = 1, together = 1;
  int ring = 0;           // bytes
  double concurrent = 0;  // tiles that run at a time
  double at_least = 0;    // seconds of one round, besides bytes and multiplications: a lower bound
};

// Lower bounds are sums of the same terms in another order: they hold up to rounding.
constexpr double kRounding = 1 - 1e-9;

/// Seconds that an SM fetches or multiplies, at least, given the seconds of both.
double at_least(const Cut& cut, double fetch, double multiply) {
  const double memory = cut.memory_seconds;
  return std::max(std::max(fetch, memory), multiply) + 0.15 * std::min(fetch, memory);
}

double multiply_factor(int together) { return together > 1 ? 0.97 : 1.0; }

/// Bytes of a stage that cost power: those that come for several blocks cost less, and power is
/// what slows such products down.
double costly_bytes(const Cut& cut, double height, int together) {
  return (height + cut.loaded) * kLineBytes - (together > 1 ? cut.tile.n * kLineBytes / 4 : 0);
}

/// Seconds of the bytes of a step.
double step_fetch(const Cut& cut, double height, int together) {
  return costly_bytes(cut, height, together) * (1 / kSmRate);
}

/// Seconds of the multiplications of a step.
double step_multiply(const Cut& cut, double rows, int together) {
  return 2.0 * rows * cut.tile.n * kLine * cut.multiply_rate * multiply_factor(together);
}

constexpr int units_of(int height) { return (height + kLine - 1) / kLine; }

/// Thread blocks on the SM that has the most of them, at least.
double min_on_sm(const Cut& cut) { return cut.sparse ? 0.5 : 1; }

Height height_of(const Cut& cut, int rows, int together) {
  Height at;
  at.rows = rows;
  at.units = units_of(rows);
  at.stage = (rows + cut.loaded) * kLineBytes;
  // The last unit may read past its rows, into what follows.
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

/// Seconds of one round, besides its bytes and multiplications: a lower bound.
double round_at_least(const Cut& cut, const Split& split, int at_once) {
  // Rounding may give an SM one block more than it runs at once.
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

/// Whether registers and shared memory hold the results of so many units.
bool units_fit(const Cut& cut, const Split& split, int at_once, int units) {
  if (at_once > 1 && at_once * (units * 128 + 64) > max_threads(cut.tile.n)) return false;
  return units * split.count * split.owned * kPieceBytes <= ring_bytes(at_once);
}

/// Whether a grid leaves SMs room for more blocks. The next grid's blocks would come early to some
/// of them.
bool leaves_room(const Cut& cut, const Group& group, const Height& at) {
  return at.tiles <= group.concurrent &&
         at.tiles * group.split.count * cut.per_sm <= group.at_once - 1;
}

/// Seconds without what every kernel costs.
double seconds_of(const Cut& cut, const Group& group, const Height& at) {
  const Split& split = group.split;
  const int n = cut.tile.n, pieces = n / kPiece, splits = split.count;
  const double rounds = at.tiles <= group.concurrent ? 1.0 : ceil_of(at.tiles / group.concurrent);
  const double per_round = rounds == 1 ? 1.0 : 1 / rounds;
  const double blocks_per_sm = at.tiles * splits * per_round * cut.per_sm;
  const double whole_blocks = ceil_of(blocks_per_sm);
  // Lists differ in length, so that some SMs get more than their share.
  const double on_sm = cut.sparse ? blocks_per_sm + 0.5 : whole_blocks;
  const double bytes = costly_bytes(cut, at.rows, group.together);
  const double fetch =
      on_sm * (cut.sparse ? split.steps : split.whole_steps) * bytes * (1 / kSmRate);
  const double memory = cut.memory_seconds * per_round;
  const double multiply = on_sm * split.steps * 2.0 * at.units * kLine * n * kLine *
                          cut.multiply_rate * multiply_factor(group.together);
  // The cost of a step is hidden where another block fills the gap.
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
  double limit = std::numeric_limits<double>::infinity();  // of lower bounds

  bool found() const { return height.row_tiles > 0; }
  /// Whether a layout that takes at least so long is not the fastest one.
  bool beats(double at_least) const { return at_least > limit; }
  void consider(const Cut& cut, const Group& with, const Height& at) {
    // One round that leaves no room has `at_once` blocks on some SM.
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
  // Left is [rows, depth] as read, right is [depth, columns].
  if (skinny_swaps(s))
    return {!s.b.lies_along_depth(!s.b.transposed), !s.a.lies_along_depth(s.a.transposed)};
  return {!s.a.lies_along_depth(s.a.transposed), !s.b.lies_along_depth(!s.b.transposed)};
}

/// The side that streams through.
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
  // Narrow instructions do not reach the full rate.
  cut.multiply_rate = tile.n >= 64   ? 1 / (0.65 * kSmFlops)
                      : tile.n >= 32 ? 1 / (0.5 * kSmFlops)
                                     : 1 / (0.3 * kSmFlops);
  cut.step_seconds = tile.n >= 128 ? 0.01e-6 : 0.03e-6;
  return cut;
}

/// Seconds of the bytes and multiplications of all rounds, for any height: a lower bound. Tiles
/// lower than those that give each SM one block fetch more in all; higher ones fetch more per
/// block. Where blocks load together, an SM's one block is left out.
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

/// No more than a layout's seconds.
double row_at_least(const Cut& cut) {
  if (cut.rows == 0 || cut.tiles_per_row == 0) return 0;  // there is no layout
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
  // Tiles whose blocks load for each other: in one round, and no rows that are multiplied in vain.
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
      // Tiles of lists are parts of blocks, and contiguous rows come in panels of 64.
      if (cut.sparse || cut.rows_contiguous) continue;
      // As low as fills the device in one round, or in two.
      const double one_round = real(cut.rows) * cut.tiles_per_row / group.concurrent;
      for (const double wanted : {one_round, 0.5 * one_round}) {
        if (!(wanted <= tile.m)) continue;
        const int height = std::max(kMinHeight, static_cast<int>(ceil_of(wanted / 8)) * 8);
        if (height % kLine == 0) continue;  // one of those above
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
    words += "; " + std::to_string(layout.splits) + " blocks of threads share a tile's depth";
  if (layout.together > 1)
    words += "; blocks of " + std::to_string(layout.together) + " tiles read the columns together";
  return words;
}

/// What reading the left side takes longer than with the memory that the layouts were measured
/// with.
double slower_memory_seconds(double bytes, const DeviceFacts& device) {
  const double rate = device.memory_tbs > 0 ? device.memory_tbs * 1e12 : kMemoryRate;
  return std::max(0.0, bytes / rate - bytes / kMemoryRate);
}

/// Few columns: the other side streams through.
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
    // The next narrower row is faster.
    if (columns <= row.tile.n / 2 && row.tile.n > kSkinnyNarrowest)
      reasons.layout("the short side", "more than half of the tile's columns");
    reasons.unless_at_most("matrices of a batch", s.batch, kMaxInGrid);
    product::refuse_walk(s, 64, row.tile.k, reasons);
  }
  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device, Reasons&) {
    return skinny_layout(s, row.tile, device);
  }
  static double seconds(const Shape&, const Layout& at, const KernelRow&,
                        const DeviceFacts& device) {
    return at.seconds + slower_memory_seconds(at.bytes, device);
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
