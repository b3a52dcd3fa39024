#include "src/kernels/cuda/sm90/skinny/plan.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cuda/sm90/product/refuse.hpp"
#include "src/kernels/cuda/sm90/skinny/rows.hpp"

namespace tessera::planning {
namespace {

constexpr int kMaxSplits = 4, kMaxAtOnce = 4;
constexpr double kMemoryRate = 4.46e12;
constexpr int kLine = 64, kLineBytes = 128, kPiece = 16, kPieceBytes = 64 * kPiece * 4;

std::int64_t up(std::int64_t length, std::int64_t piece) { return (length + piece - 1) / piece; }

double real(std::int64_t n) { return static_cast<double>(n); }

/// Of what is not negative. The search below asks hundreds of times, and std::ceil is a call.
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

struct Cut {
  const Tile& tile;
  std::int64_t sms;
  Majors majors;
  bool sparse;
  double depth;  // that one row of the left side has, on average
  // What every height, split and count of blocks shares.
  double per_sm, steps, memory_seconds, copies;
  std::int64_t col_tiles;
  double clusters[kMaxAtOnce][kMaxSplits];  // that run at a time
};

/// Fills in what follows from height, splits and at_once; false where it does not fit. The search
/// below asks hundreds of times: what does not fit is found out first, and divisions are few.
bool complete(const Cut& cut, SkinnyLayout& at) {
  const int n = cut.tile.n;
  // Contiguous rows come in panels of 64.
  if (cut.majors.rows_contiguous && at.height % kLine != 0) return false;
  if (at.at_once > 1 && at.at_once * (at.units() * 128 + 64) > max_threads(n)) return false;
  at.shared_bytes = ring_bytes(at.at_once);
  const int owned = (n / kPiece + at.splits - 1) / at.splits;
  if (at.units() * at.splits * owned * kPieceBytes > at.shared_bytes) return false;
  const int stage = (at.height + skinny_loaded(n, cut.majors.cols_contiguous)) * kLineBytes;
  // The last unit may read past its rows, into what follows.
  const int beyond = std::max(0, at.units() * kLine * kLineBytes - stage);
  constexpr int kMinStages = 2;
  if (at.shared_bytes - beyond < kMinStages * stage) return false;
  const auto rows = static_cast<std::uint32_t>(at.rows),
             height = static_cast<std::uint32_t>(at.height);
  at.row_tiles = (rows + height - 1) / height;
  at.col_tiles = cut.col_tiles;

  // Bytes through one SM, bytes from memory, and what adding up and storing costs.
  constexpr double kSmRate = 72e9, kSendRate = 27e9, kSmFlops = 7.5e12;
  constexpr double kMeet = 0.6e-6, kExchange = 0.15e-6, kStore = 0.2e-6;
  // A grid begins while the one before ends: part of what every kernel costs is hidden.
  constexpr double kStart = 0.3e-6, kHidden = 4e-6;
  constexpr double kInverse[kMaxSplits] = {1, 1.0 / 2, 1.0 / 3, 1.0 / 4};
  const double tiles = real(at.row_tiles) * cut.copies;
  const double concurrent = at.together * cut.clusters[at.at_once - 1][at.splits * at.together - 1];
  const double rounds = tiles <= concurrent ? 1.0 : ceil_of(tiles / concurrent);
  const double per_round = rounds == 1 ? 1.0 : 1 / rounds, per_split = kInverse[at.splits - 1];
  const double blocks_per_sm = tiles * at.splits * per_round * cut.per_sm;
  const double whole_blocks = ceil_of(blocks_per_sm);
  // Where SMs have room for more, the next grid's blocks come early to some of them.
  if (rounds == 1 && whole_blocks < at.at_once) return false;
  // Lists differ in length, so that some SMs get more than their share.
  const double on_sm = cut.sparse ? blocks_per_sm + 0.5 : whole_blocks;
  const double steps = cut.steps * per_split, whole_steps = ceil_of(steps);
  // Bytes that come for several blocks cost less power, which is what slows such products down.
  const double bytes = stage - (at.together > 1 ? n * kLineBytes / 4 : 0);
  const double fetch = on_sm * (cut.sparse ? steps : whole_steps) * bytes * (1 / kSmRate);
  const double memory = cut.memory_seconds * per_round;
  // Narrow instructions do not reach the full rate.
  const double rate = n >= 64   ? 1 / (0.65 * kSmFlops)
                      : n >= 32 ? 1 / (0.5 * kSmFlops)
                                : 1 / (0.3 * kSmFlops);
  const double multiply =
      on_sm * steps * 2.0 * at.units() * kLine * n * kLine * rate * (at.together > 1 ? 0.97 : 1.0);
  // What a step costs besides its bytes, where no other block fills the gap: less where the next
  // one is multiplied meanwhile.
  const double step = n >= 128 ? 0.01e-6 : 0.03e-6;
  double end = owned * kStore + step * whole_steps / std::max(1.0, whole_blocks);
  if (at.together > 1) end += kMeet;
  if (at.splits > 1)
    end += kMeet + kExchange * at.splits +
           on_sm * at.units() * (n / kPiece) * kPieceBytes * (1.0 - per_split) * (1 / kSendRate);
  // The shorter of the two is not hidden entirely.
  at.seconds = rounds * (kStart + std::max(std::max(fetch, memory), multiply) +
                         0.15 * std::min(fetch, memory) + end) -
               kHidden;
  at.stages = std::min(cut.tile.stages, (at.shared_bytes - beyond) / stage);
  return true;
}

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

}  // namespace

SkinnyLayout skinny_layout(const MatmulShape& s, const Tile& tile, const DeviceFacts& device) {
  SkinnyLayout base;
  base.swapped = skinny_swaps(s);
  base.rows = base.swapped ? s.n : s.m;
  base.cols = base.swapped ? s.m : s.n;
  base.batches = s.batch;
  const OperandShape& left = base.swapped ? s.b : s.a;
  const std::int64_t sms = std::max(device.units, 1);
  Cut cut{.tile = tile,
          .sms = sms,
          .majors = majors_of(s),
          .sparse = left.sparse,
          .depth = real(s.k),
          .per_sm = 1 / real(sms),
          .steps = 0,
          .memory_seconds = 0,
          .copies = 0,
          .col_tiles = up(base.cols, tile.n),
          .clusters = {}};
  for (int at_once = 1; at_once <= kMaxAtOnce; ++at_once)
    for (int blocks = 1; blocks <= kMaxSplits; ++blocks)
      cut.clusters[at_once - 1][blocks - 1] = real(clusters_at_once(sms, at_once, blocks));
  if (left.sparse) {
    const double lists =
        std::max(real(base.rows) / real(std::max<std::int64_t>(left.block.rows, 1)), 1.0);
    cut.depth = std::min(real(s.k), real(left.stored) * real(left.block.cols) / lists);
  }
  base.bytes = 2.0 * real(base.rows) * cut.depth * real(left.batch);
  cut.steps = cut.depth / kLine;
  cut.memory_seconds = base.bytes / kMemoryRate;
  cut.copies = real(cut.col_tiles) * real(base.batches);

  SkinnyLayout best;
  const auto consider = [&](int height) {
    base.height = height;
    if (complete(cut, base) && (best.row_tiles == 0 || base.seconds < best.seconds)) best = base;
  };
  // Tiles whose blocks load for each other: in one round, and no rows that are multiplied in vain.
  const auto consider_together = [&] {
    base.together = kSkinnyTogether;
    const double most = base.together * cut.clusters[0][base.together - 1];
    for (int height = kLine; height <= tile.m; height += kLine)
      if (real(base.rows) / height <= most) consider(height);
    base.together = 1;
  };
  if (tile.n == kSkinnyTogether * kSkinnySharedLines && !left.sparse && s.batch == 1 &&
      base.cols <= tile.n)
    consider_together();
  for (base.at_once = 1; base.at_once <= kMaxAtOnce; ++base.at_once) {
    for (base.splits = 1; base.splits <= kMaxSplits; ++base.splits) {
      if (base.splits > 1 && cut.depth < real(base.splits) * kLine) break;
      for (int height = kLine; height <= tile.m; height += kLine)
        if (!left.sparse || left.block.rows % height == 0) consider(height);
      if (left.sparse) continue;  // tiles are parts of blocks
      // As low as fills the device in one round, or in two.
      const double one_round =
          real(base.rows) * cut.copies / cut.clusters[base.at_once - 1][base.splits - 1];
      for (const double height : {one_round, 0.5 * one_round})
        if (height <= tile.m) consider(std::max(8, static_cast<int>(ceil_of(height / 8)) * 8));
    }
  }
  return best;
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
    const double rate = device.memory_tbs > 0 ? device.memory_tbs * 1e12 : kMemoryRate;
    return at.seconds + std::max(0.0, at.bytes / rate - at.bytes / kMemoryRate);
  }
  static BufferSizes buffers(const Shape&, const Layout&, const KernelRow&, int) { return {}; }
  static std::string describe(const Shape&, const Layout& at) { return describe_layout(at); }
};

}  // namespace

KernelFamily sm90_skinny_family() {
  return make_family<Skinny>("sm90_skinny", Backend::sm90, Op::matmul, kSm90SkinnyRows);
}

}  // namespace tessera::planning
