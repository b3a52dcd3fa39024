// The walks of Hopper's products against brute force: one tile computes each element of a result,
// one thread block each step of its depth, and each stored block of a list is used once.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "src/kernels/cuda/sm90/bsr/plan.hpp"
#include "src/kernels/cuda/sm90/bsr/rows.hpp"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/matmul/rows.hpp"
#include "src/kernels/cuda/sm90/sddmm/rows.hpp"
#include "src/kernels/cuda/sm90/skinny/plan.hpp"
#include "src/kernels/cuda/sm90/skinny/rows.hpp"
#include "src/walk/bsr_walk.hpp"
#include "src/walk/matmul_walk.hpp"
#include "src/walk/sddmm_walk.hpp"
#include "src/walk/skinny_walk.hpp"
#include "src/walk/spgemm_walk.hpp"
#include "tests/support/random.hpp"

namespace tessera::planning {
namespace {

using generate::Random;

constexpr int kSmCounts[] = {16, 58, 66, 78, 108, 114, 132, 142};

DeviceFacts device_of(int sms) {
  DeviceFacts device;
  device.units = sms;
  return device;
}
int draw_sms(Random& random) { return random.pick({16, 58, 66, 78, 108, 114, 132, 142}); }
int draw(Random& random, std::int64_t low, std::int64_t high) {
  return static_cast<int>(random.between(low, high));
}

/// Lists by row of blocks, as a BSR matrix has them.
struct BlockRows {
  int batches = 1, rows = 0, cols = 0;
  std::int64_t stored = 0;  // per batch
  bool own_lists = false;   // per batch
  std::vector<std::int64_t> offsets, indices;
  std::vector<std::int32_t> narrow_offsets, narrow_indices;
  BsrView view;

  BlockRows(Random& random, int rows_, int cols_, int batches_, bool sorted)
      : batches(batches_), rows(rows_), cols(cols_), own_lists(batches > 1 && random.chance(0.5)) {
    const double density = random.pick({0.0, 0.1, 0.4, 0.9, 1.0});
    std::vector<std::vector<std::int64_t>> lists;
    for (int row = 0; row < rows * (own_lists ? batches : 1); ++row) {
      auto& list = lists.emplace_back();
      const double here = random.chance(0.1) ? 0.0 : random.chance(0.1) ? 1.0 : density;
      for (int col = 0; col < cols; ++col)
        if (random.chance(here)) list.push_back(col);
      if (!sorted) random.shuffle(list);
    }
    // Each batch has as many entries as the largest; those beyond a batch's lists are unused.
    for (int b = 0; b < (own_lists ? batches : 1); ++b) {
      std::int64_t count = 0;
      for (int row = 0; row < rows; ++row)
        count += static_cast<std::int64_t>(lists[static_cast<std::size_t>(b * rows + row)].size());
      stored = std::max(stored, count);
    }
    for (int b = 0; b < (own_lists ? batches : 1); ++b) {
      std::int64_t at = 0;
      offsets.push_back(0);
      for (int row = 0; row < rows; ++row) {
        const auto& list = lists[static_cast<std::size_t>(b * rows + row)];
        indices.insert(indices.end(), list.begin(), list.end());
        at += static_cast<std::int64_t>(list.size());
        offsets.push_back(at);
      }
      indices.resize(static_cast<std::size_t>((b + 1) * stored), -1);
    }
    narrow_offsets.assign(offsets.begin(), offsets.end());
    narrow_indices.assign(indices.begin(), indices.end());
    const bool wide = random.chance(0.5);
    view.offsets =
        wide ? Indices{nullptr, offsets.data()} : Indices{narrow_offsets.data(), nullptr};
    view.indices =
        wide ? Indices{nullptr, indices.data()} : Indices{narrow_indices.data(), nullptr};
    view.offset_batch = own_lists ? rows + 1 : 0;
    view.index_batch = own_lists ? stored : 0;
    view.block_rows = rows;
    view.block_cols = cols;
    view.stored = stored;
  }

  std::int64_t begin(int batch, int row) const {
    return offsets[static_cast<std::size_t>((own_lists ? batch * (rows + 1) : 0) + row)];
  }
  std::int64_t column(int batch, std::int64_t entry) const {
    return indices[static_cast<std::size_t>((own_lists ? batch * stored : 0) + entry)];
  }
};

/// Counts of the elements of a result.
class Counts {
 public:
  Counts(std::int64_t batches, std::int64_t rows, std::int64_t cols)
      : rows_(rows), cols_(cols), counts_(static_cast<std::size_t>(batches * rows * cols)) {}
  void add(std::int64_t batch, std::int64_t row, std::int64_t row_end, std::int64_t col,
           std::int64_t col_end) {
    for (std::int64_t r = row; r < std::min(row_end, rows_); ++r)
      for (std::int64_t c = col; c < std::min(col_end, cols_); ++c)
        ++counts_[static_cast<std::size_t>((batch * rows_ + r) * cols_ + c)];
  }
  int at(std::int64_t batch, std::int64_t row, std::int64_t col) const {
    return counts_[static_cast<std::size_t>((batch * rows_ + row) * cols_ + col)];
  }
  bool all_once() const {
    return std::all_of(counts_.begin(), counts_.end(), [](int n) { return n == 1; });
  }

 private:
  std::int64_t rows_, cols_;
  std::vector<int> counts_;
};

/// The tile numbers that the clusters of a launch take, in a random interleaving. With `dynamic`
/// they come from a counter, else each cluster has its own.
std::vector<int> taken_by(int clusters, int tiles, bool dynamic, Random& random) {
  std::vector<int> next(static_cast<std::size_t>(clusters)), taken;
  for (int c = 0; c < clusters; ++c) next[static_cast<std::size_t>(c)] = c;
  int counter = 0;
  while (!next.empty()) {
    const auto at =
        static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(next.size()) - 1));
    if (next[at] >= tiles) {
      next.erase(next.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    taken.push_back(next[at]);
    next[at] = dynamic ? clusters + counter++ : next[at] + clusters;
  }
  return taken;
}

// ---- matmul

/// The walk of a layout, as launch.cuh sets it.
matmul::Walk matmul_walk(const MatmulShape& s, const MatmulLayout& layout) {
  matmul::Walk walk;
  walk.m = static_cast<int>(layout.rows);
  walk.n = static_cast<int>(layout.cols);
  walk.k = static_cast<int>(s.k);
  walk.batches = static_cast<int>(layout.matrices);
  walk.splits = layout.splits;
  walk.clusters = static_cast<int>(layout.clusters);
  walk.cut = layout.cut;
  walk.group = static_cast<int>(layout.group);
  return walk;
}

/// Checks that a tile's ranks multiply each step of its depth once.
void check_depth(const matmul::Walk& walk, const matmul::TileAt& at) {
  std::vector<int> times(static_cast<std::size_t>(walk.k));
  for (int rank = 0; rank < walk.splits; ++rank) {
    const matmul::Walk::Depth depth = walk.depth(at, rank);
    ASSERT_EQ(depth.begin % 8, 0);
    for (int part = 0; part < depth.parts; ++part) {
      const int begin = depth.begin + part * matmul::kLine;
      const int from = part == 0 ? depth.skip : 0;
      const int to = part == depth.parts - 1 ? depth.valid : matmul::kLine;
      for (int d = begin + from; d < std::min(begin + to, walk.k); ++d)
        ++times[static_cast<std::size_t>(d)];
    }
  }
  for (int d = 0; d < walk.k; ++d)
    ASSERT_EQ(times[static_cast<std::size_t>(d)], d >= at.depth_begin && d < at.depth_end)
        << "depth " << d;
}

template <int kRow>
void check_dense(std::uint64_t seed) {
  constexpr Tile kTile = kSm90MatmulRows[kRow].tile;
  Random random(seed);
  MatmulShape s;
  s.m = draw(random, 0, random.chance(0.5) ? 300 : 1500);
  s.n = draw(random, 0, random.chance(0.5) ? 300 : 1500);
  s.k = draw(random, 0, 600);
  s.batch = draw(random, 1, 4);
  s.grouped = random.chance(0.6);
  std::vector<std::int64_t> offsets;
  if (s.grouped) {
    if (random.chance(0.1)) s.batch = draw(random, 30, 70);
    s.group_axis = random.chance(0.5) ? GroupAxis::rows : GroupAxis::inner;
    const std::int64_t length = s.group_axis == GroupAxis::rows ? s.m : s.k;
    for (int g = 0; g <= s.batch; ++g) offsets.push_back(random.between(0, length));
    std::sort(offsets.begin(), offsets.end());
    if (random.chance(0.5)) offsets.front() = 0, offsets.back() = length;
    // One invalid offset: the walk still reads offsets that never decrease and stay inside.
    if (random.chance(0.2)) offsets[random.bits() % offsets.size()] = random.between(-9, 2000);
  }
  const MatmulLayout layout = matmul_layout(s, kTile, device_of(draw_sms(random)));
  if (layout.tiles == 0) return;
  matmul::Walk walk = matmul_walk(s, layout);
  if (s.grouped)
    walk.groups = {{nullptr, offsets.data()},
                   1,
                   walk.batches,
                   static_cast<int>(s.group_axis == GroupAxis::rows ? s.m : s.k)};
  const bool by_groups = walk.cut == Cut::rows || walk.cut == Cut::cols;
  Counts counts(by_groups ? 1 : walk.batches, walk.m, walk.n);
  const int rows = matmul::up(walk.m, kTile.m), cols = matmul::up(walk.n, kTile.n);
  std::vector<std::pair<int, int>> groups;  // as the warp finds them by scans
  for (int g = 0, floor = by_groups ? walk.groups.offset(0) : 0; by_groups && g < walk.batches;
       ++g) {
    const int end = std::max(floor, walk.groups.offset(g + 1));
    groups.emplace_back(floor, end);
    floor = end;
  }
  for (const int index : taken_by(walk.clusters, static_cast<int>(layout.tiles), false, random)) {
    matmul::TileAt at{0, 0, walk.m, walk.n, 0, 0, walk.k};
    if (by_groups) {
      int within = index, g = 0;
      for (; g < walk.batches; ++g) {
        const auto [begin, end] = groups[static_cast<std::size_t>(g)];
        const int tiles = walk.tiles_of_group<kTile.m, kTile.n>(begin, end);
        if (within < tiles) break;
        within -= tiles;
      }
      if (g == walk.batches) continue;
      const auto [begin, end] = groups[static_cast<std::size_t>(g)];
      if (walk.cut == Cut::rows) {
        walk.place_in_rows<kTile.m, kTile.n>(at, within, g, begin, end);
      } else {
        walk.place_in_cols<kTile.m, kTile.n>(at, within, g, begin, end);
      }
      ASSERT_EQ(at.batch, g);
    } else {
      at.batch = index / (rows * cols);
      walk.place<kTile.m, kTile.n>(at, index % (rows * cols), rows, cols);
      if (walk.cut == Cut::depth) {
        walk.take_depth_of_group(at);
        ASSERT_EQ(at.depth_begin, walk.groups.offset(at.batch));
      }
    }
    counts.add(by_groups ? 0 : at.batch, at.row, std::min(at.row + kTile.m, at.row_end), at.col,
               std::min(at.col + kTile.n, at.col_end));
    check_depth(walk, at);
    if (::testing::Test::HasFatalFailure()) return;
  }
  if (!by_groups) {
    ASSERT_TRUE(counts.all_once());
    return;
  }
  const int covered_from = groups.front().first, covered_to = groups.back().second;
  for (int row = 0; row < walk.m; ++row)
    for (int col = 0; col < walk.n; ++col) {
      const int x = walk.cut == Cut::rows ? row : col;
      ASSERT_EQ(counts.at(0, row, col), x >= covered_from && x < covered_to)
          << "row " << row << ", column " << col;
    }
}

/// ColumnWindow::open of a warp; a loop plays its lanes.
template <int kLines>
bool open_window(matmul::ColumnWindow<kLines>& window,
                 std::array<matmul::LineCursor, kWarp> (&lines)[kLines], const matmul::Walk& walk,
                 int batch) {
  using matmul::LineCursor;
  window.first = LineCursor::kEnd;
  for (const auto& line : lines) window.first = std::min(window.first, line[0].ahead());
  if (window.first == LineCursor::kEnd) return false;
  bool sorted = true;
  for (int l = 0; l < kLines; ++l) {
    std::array<unsigned, kWarp> bit{};
    window.named[l] = 0;
    for (int lane = 0; lane < kWarp; ++lane) {
      const unsigned distance =
          static_cast<unsigned>(lines[l][lane].ahead()) - static_cast<unsigned>(window.first);
      bit[lane] = distance < 32 ? 1u << distance : 0;
      window.named[l] |= bit[lane];
    }
    for (int lane = 0; lane < kWarp; ++lane)
      sorted &= lane < count_lanes(window.named[l])
                    ? bit[lane] != 0 && count_lanes(window.named[l] & (bit[lane] - 1)) == lane
                    : bit[lane] == 0;
  }
  if (!sorted)
    for (int l = 0; l < kLines; ++l) window.named[l] = lines[l][0].ahead() == window.first ? 1 : 0;
  for (int l = 0; l < kLines; ++l) {
    window.stored[l] = lines[l][0].stored();
    for (int lane = 0; lane < kWarp; ++lane)
      lines[l][lane].advance(walk, batch, count_lanes(window.named[l]), lane);
  }
  return true;
}

template <int kRow>
void check_lists(std::uint64_t seed) {
  constexpr Tile kTile = kSm90MatmulRows[kRow].tile;
  constexpr int kLines = kTile.m / matmul::kLine;
  Random random(seed);
  const int block_rows = random.pick({64, 64, 128, 192, 256}), block_depth = 64;
  const int batches = draw(random, 1, 3);
  BlockRows lists(random, draw(random, 1, 12), draw(random, 1, 90), batches, random.chance(0.8));
  if (lists.stored > 0 && random.chance(0.2)) {  // an entry that names no column
    const std::size_t at = random.bits() % lists.indices.size();
    lists.indices[at] = lists.narrow_indices[at] =
        static_cast<std::int32_t>(random.pick({-1, lists.cols, 1 << 30}));
  }
  MatmulShape s;
  s.m = lists.rows * block_rows;
  s.k = lists.cols * block_depth;
  s.n = draw(random, 1, 600);
  s.batch = batches;
  s.a.sparse = true;
  s.a.rows = s.m, s.a.cols = s.k;
  s.a.block = {block_rows, block_depth};
  s.a.stored = lists.stored;
  const MatmulLayout layout = matmul_layout(s, kTile, device_of(draw_sms(random)));
  matmul::Walk walk = matmul_walk(s, layout);
  walk.sparse = true;
  walk.lists = lists.view;
  walk.lines_per_block = block_rows / matmul::kLine;
  walk.block_depth = block_depth;
  walk.pool_step = random.chance(0.5) ? lists.stored : 0;
  const bool one_list = block_rows % kTile.m == 0;
  const int rows = matmul::up(walk.m, kTile.m), cols = matmul::up(walk.n, kTile.n);
  Counts counts(batches, rows, cols);
  const bool dynamic = layout.tiles > walk.clusters;
  for (const int index : taken_by(walk.clusters, static_cast<int>(layout.tiles), dynamic, random)) {
    // Rows of tiles with long lists come first: see TileCursor::place_lists.
    const int batch = index / (rows * cols);
    std::vector<int> order;
    if (dynamic) {
      std::int64_t sum = 0;
      for (int row = 0; row < rows; ++row) sum += walk.listed_blocks<kTile.m>(batch, row);
      for (const bool is_long : {true, false})
        for (int row = 0; row < rows; ++row)
          if ((walk.listed_blocks<kTile.m>(batch, row) > 2 * sum / rows) == is_long)
            order.push_back(row);
    } else {
      for (int row = 0; row < rows; ++row) order.push_back(row);
    }
    matmul::TileAt at{0, 0, walk.m, walk.n, batch, 0, walk.k};
    walk.place<kTile.m, kTile.n>(at, index % (rows * cols), rows, cols);
    at.row = order[static_cast<std::size_t>(at.row / kTile.m)] * kTile.m;
    counts.add(batch, at.row / kTile.m, at.row / kTile.m + 1, at.col / kTile.n,
               at.col / kTile.n + 1);

    // The steps of each line of 64 rows of the tile.
    std::array<matmul::LineCursor, kWarp> lines[kLines];
    std::array<int, kLines> of_row{};
    for (int l = 0; l < kLines; ++l) {
      of_row[l] = (at.row / matmul::kLine + l) / walk.lines_per_block;
      for (int lane = 0; lane < kWarp; ++lane) lines[l][lane].begin(walk, batch, of_row[l], lane);
    }
    const auto pool = static_cast<int>(batch * walk.pool_step);
    std::array<std::multiset<std::pair<std::int64_t, std::int64_t>>, kLines> found;
    matmul::ColumnWindow<kLines> window;
    while (open_window(window, lines, walk, batch))
      for (int l = 0; l < kLines; ++l) {
        unsigned named = 0;
        int matrix = 0;
        window.read_line(l, one_list, pool, named, matrix);
        for (unsigned left = named; left != 0; left &= left - 1) {
          const int column = first_lane(left);
          found[l].emplace(window.first + column,
                           matrix + count_lanes(named & lanes_below(column)));
        }
      }
    for (int l = 0; l < kLines; ++l) {
      std::multiset<std::pair<std::int64_t, std::int64_t>> expected;
      for (std::int64_t entry = of_row[l] < lists.rows ? lists.begin(batch, of_row[l]) : 0;
           of_row[l] < lists.rows && entry < lists.begin(batch, of_row[l] + 1); ++entry) {
        const std::int64_t column = lists.column(batch, entry);
        if (column >= 0 && column < lists.cols) expected.emplace(column, entry + pool);
      }
      ASSERT_EQ(found[l], expected) << "line " << l << " of the tile at row " << at.row;
    }
  }
  ASSERT_TRUE(counts.all_once());
}

template <int... kRows>
constexpr auto dense_checks(std::integer_sequence<int, kRows...>) {
  return std::array{&check_dense<kRows>...};
}
template <int... kRows>
constexpr auto list_checks(std::integer_sequence<int, kRows...>) {
  return std::array{&check_lists<kRows>...};
}
using MatmulRows = std::make_integer_sequence<int, static_cast<int>(std::size(kSm90MatmulRows))>;

TEST(WalkMatmul, DenseTilesAndTheirDepthOnce) {
  constexpr auto kChecks = dense_checks(MatmulRows());
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    kChecks[seed % kChecks.size()](seed);
    if (HasFatalFailure()) return;
  }
}

TEST(WalkMatmul, ListedBlocksOnce) {
  constexpr auto kChecks = list_checks(MatmulRows());
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    kChecks[seed % kChecks.size()](seed);
    if (HasFatalFailure()) return;
  }
}

// ---- bsr

/// A window as the finder warp fills it: see Window in src/kernels/cuda/sm90/bsr/walk.cuh.
template <int kGroups>
struct Window {
  struct Words {
    std::uint32_t x = bsr::kAbsent, y = bsr::kAbsent, z = bsr::kAbsent, w = bsr::kAbsent;
  };
  Words pieces[bsr::kSlices][kGroups];
  std::uint32_t units[bsr::kSlices] = {};

  static void lower(std::uint32_t* word, std::uint32_t value) { *word = std::min(*word, value); }
  static void add_bits(std::uint32_t* word, std::uint32_t bits) { *word |= bits; }
};

/// What the window says about one unit of depth of one line: whether the line has a block there,
/// and which block, with which row and depth inside.
struct UnitOf {
  bool there = false;
  std::uint32_t from = bsr::kAbsent;  // the first 16 rows' place, or the block where boxed
  std::uint32_t row = 0, depth = 0;   // where boxed
};

template <int kRow>
void check_bsr(std::uint64_t seed) {
  constexpr Tile kTile = kSm90BsrRows[kRow].tile;
  constexpr int kGroups = kTile.m / bsr::kGroup;
  Random random(seed);
  const int block_rows = random.pick({16, 32, 48, 64, 96, 128, 256});
  const int block_depth = random.pick({16, 32, 48, 64, 96, 128, 256});
  const auto part_of = [](int n) {
    int part = 64;
    while (n % part != 0) part /= 2;
    return part;
  };
  const int height = part_of(block_rows), piece = part_of(block_depth);
  const int batches = draw(random, 1, 2);
  BlockRows lists(random, draw(random, 1, 8), draw(random, 1, 2400 / block_depth + 1), batches,
                  true);
  bsr::Walk walk;
  walk.lists = lists.view;
  walk.height_shift = height == 64 ? 6 : height == 32 ? 5 : 4;
  walk.lines = lists.rows * block_rows / height;
  walk.cols = draw(random, 1, 700);
  walk.steps = (lists.cols * block_depth + bsr::kLine - 1) / bsr::kLine;
  walk.batches = batches;
  walk.pool_step = random.chance(0.5) ? static_cast<int>(lists.stored) : 0;
  walk.lines_per_block = block_rows / height;
  walk.slice_shift = piece == 64 ? 0 : piece == 32 ? 1 : 2;
  walk.pieces_per_block = block_depth / piece;
  walk.boxed = piece >= 32 && height >= 32 && random.chance(0.5);
  walk.copy_step = 7;  // from one 16 rows to the next, and so on: any numbers that do not collide
  walk.piece_step = 1000;
  walk.line_step = 100'000;
  walk.block_step = 10'000'000;
  if (lists.stored * batches > 400) walk.block_step = 200'000;

  MatmulShape s;
  s.m = std::int64_t{walk.lines} * height;
  s.n = walk.cols;
  s.k = std::int64_t{lists.cols} * block_depth;
  s.batch = batches;
  s.a.sparse = true;
  Reasons reasons;
  const auto any =
      sm90_bsr_family().layout(s, kSm90BsrRows[kRow], device_of(draw_sms(random)), reasons);
  const auto layout = any.template get<BsrLayout>();
  Counts counts(batches, walk.lines, walk.cols);
  for (const int index :
       taken_by(static_cast<int>(layout.ctas), static_cast<int>(layout.tiles), false, random)) {
    const bsr::TileAt at = walk.tile<kTile.m, kTile.n>(index);
    const int lines = kTile.m >> walk.height_shift;
    counts.add(at.batch, at.line, at.line + lines, at.col, at.col + kTile.n);
    if (at.col > 0) continue;  // the walk of a row of tiles is the same for all columns

    // Enters each line's list, window by window.
    std::vector<std::int64_t> next(static_cast<std::size_t>(lines)), end(next.size());
    for (int l = 0; l < lines; ++l) {
      if (at.line + l >= walk.lines) continue;
      const BsrRow row = walk.lists.row(at.batch, (at.line + l) / walk.lines_per_block);
      next[static_cast<std::size_t>(l)] = row.begin;
      end[static_cast<std::size_t>(l)] = row.end;
    }
    const int window_steps = bsr::kSlices >> walk.slice_shift;
    for (int first = 0; first < walk.steps; first += window_steps) {
      Window<kGroups> window;
      const int begin = first << walk.slice_shift;
      for (int l = 0; l < lines; ++l) {
        const int line = at.line + l;
        const auto in_block = static_cast<std::uint32_t>(line % walk.lines_per_block);
        const std::uint32_t place =
            walk.boxed ? in_block << walk.height_shift
                       : static_cast<std::uint32_t>(at.batch * walk.pool_step) * walk.block_step +
                             in_block * walk.line_step;
        auto& entry = next[static_cast<std::size_t>(l)];
        for (; entry < end[static_cast<std::size_t>(l)]; ++entry) {
          const int past =
              static_cast<int>(lists.column(at.batch, entry) + 1) * walk.pieces_per_block;
          bsr::enter_block(walk, window, at.batch, l, past - begin, place,
                           static_cast<std::uint32_t>(entry));
          if (past > begin + bsr::kSlices) break;  // the next window enters it again
        }
      }
      // Compares each line and slice of the window with the lists.
      const int units = bsr::kUnits >> walk.slice_shift;
      for (int step = 0; step < window_steps && first + step < walk.steps; ++step) {
        std::uint32_t expected_units = 0;
        for (int l = 0; l < lines && at.line + l < walk.lines; ++l) {
          const int group = l << walk.height_shift >> 6, line = at.line + l;
          const int row = line / walk.lines_per_block;
          for (int slice = 0; slice < 1 << walk.slice_shift; ++slice) {
            const int depth = (first + step) * bsr::kLine + slice * piece;
            std::int64_t found = -1;
            for (std::int64_t e = lists.begin(at.batch, row); e < lists.begin(at.batch, row + 1);
                 ++e)
              if (lists.column(at.batch, e) == depth / block_depth) found = e;
            auto& words = window.pieces[step << walk.slice_shift | slice][group];
            const auto* const word = reinterpret_cast<const std::uint32_t*>(&words);
            const auto part = static_cast<std::uint32_t>(depth % block_depth / piece);
            const auto pooled = static_cast<std::uint32_t>(found + at.batch * walk.pool_step);
            const auto in_block = static_cast<std::uint32_t>(line % walk.lines_per_block);
            if (found >= 0)
              expected_units |= ((1u << units) - 1) << (group * bsr::kUnits + slice * units);
            if (walk.boxed) {
              const int in_group = l & ((bsr::kGroup >> walk.height_shift) - 1);
              ASSERT_EQ(word[in_group], found < 0 ? bsr::kAbsent : pooled);
              if (found < 0) continue;
              ASSERT_EQ(reinterpret_cast<const std::uint16_t*>(&words.z)[in_group],
                        in_block << walk.height_shift);
              ASSERT_EQ(words.w, part * static_cast<std::uint32_t>(piece));
            } else {
              const int quarter = l << (walk.height_shift - 4);
              for (int i = 0; i < height / 16; ++i)
                ASSERT_EQ(word[quarter % 4 + i],
                          found < 0 ? bsr::kAbsent
                                    : pooled * walk.block_step + in_block * walk.line_step +
                                          part * walk.piece_step +
                                          static_cast<std::uint32_t>(i) * walk.copy_step)
                    << "line " << line << ", depth " << depth;
            }
          }
        }
        ASSERT_EQ(window.units[step], expected_units) << "step " << first + step;
      }
    }
  }
  ASSERT_TRUE(counts.all_once());
}

TEST(WalkBsr, StoredPiecesOnce) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    seed % 2 == 0 ? check_bsr<0>(seed) : check_bsr<1>(seed);
    if (HasFatalFailure()) return;
  }
}

// ---- skinny

/// The arguments of a kernel, without tensor maps.
struct SkinnyArguments {
  int m = 0, n = 0, height = 0, splits = 1, together = 1;
  int each = 0, rest = 0;
  bool sparse = false;
  BsrView lists;
  int per_block = 1, parts = 1;
  std::int64_t pool_step = 0;
};

template <int kRow>
void check_skinny(std::uint64_t seed) {
  constexpr Tile kTile = kSm90SkinnyRows[kRow].tile;
  Random random(seed);
  const bool sparse = random.chance(0.5);
  const int block_rows = random.pick({64, 128, 256}), block_depth = random.pick({64, 128, 192});
  const int batches = draw(random, 1, 3);
  BlockRows lists(random, draw(random, 1, 12), draw(random, 1, 24), batches, random.chance(0.8));
  MatmulShape s;
  s.m = sparse ? lists.rows * block_rows : draw(random, 1, 4000);
  s.k = sparse ? lists.cols * block_depth : draw(random, 1, 3000);
  s.n = draw(random, 1, std::min<std::int64_t>(s.m, 300));
  s.batch = batches;
  s.a.rows = s.m, s.a.cols = s.k, s.b.rows = s.k, s.b.cols = s.n;
  if (sparse) {
    s.a.sparse = true;
    s.a.block = {block_rows, block_depth};
    s.a.stored = lists.stored;
  }
  SkinnyLayout layout = skinny_layout(s, kSm90SkinnyRows[kRow], device_of(draw_sms(random)));
  ASSERT_FALSE(layout.swapped);
  // More often than the planner, which lets tiles load columns together only where there are many
  // columns.
  if (!sparse && layout.splits == 1 && random.chance(0.3)) layout.together = kSkinnyTogether;
  SkinnyArguments args;
  args.m = static_cast<int>(layout.rows);
  args.n = static_cast<int>(layout.cols);
  args.height = layout.height;
  args.splits = layout.splits;
  args.together = layout.together;
  const auto steps = static_cast<int>((s.k + skinny::kLine - 1) / skinny::kLine);
  args.each = steps / layout.splits;
  args.rest = steps % layout.splits;
  if (sparse) {
    args.sparse = true;
    args.lists = lists.view;
    args.per_block = block_rows / args.height;
    args.parts = block_depth / skinny::kLine;
    args.pool_step = random.chance(0.5) ? lists.stored : 0;
    ASSERT_EQ(block_rows % args.height, 0);
  }
  const int cluster = layout.splits * layout.together;
  ASSERT_TRUE(layout.splits == 1 || layout.together == 1);
  Counts counts(batches, args.m, args.n);
  // By tile and batch: the steps of its ranks.
  std::map<std::pair<int, int>, std::vector<int>> walked;
  const auto clusters =
      static_cast<int>((layout.row_tiles + layout.together - 1) / layout.together);
  for (int c = 0; c < clusters; ++c)
    for (int rank = 0; rank < cluster; ++rank)
      for (unsigned y = 0; y < layout.col_tiles; ++y)
        for (unsigned z = 0; z < static_cast<unsigned>(batches); ++z) {
          const skinny::TileAt at = skinny::tile_of<kTile.n>(args, c, rank, y, z);
          if (at.rank == 0) counts.add(at.batch, at.row, at.row_end, at.col, at.col + kTile.n);
          if (at.row >= args.m || y > 0) continue;
          const skinny::Share share = random.chance(0.5) ? skinny::share_of<true>(args, at)
                                                         : skinny::share_of<false>(args, at);
          std::vector<int>& found = walked[{at.tile, at.batch}];
          int step = share.begin;
          int entry = share.entry, part = share.part;
          for (int i = 0; i < share.count; ++i) {
            if (sparse) {
              ASSERT_EQ(share.matrix + entry, lists.begin(at.batch, at.row / block_rows) + entry +
                                                  at.batch * args.pool_step);
              ASSERT_EQ(share.column(entry), lists.column(at.batch, share.list.begin + entry));
              ASSERT_EQ(share.row, at.row % block_rows);
              found.push_back(entry * args.parts + part);
              if (++part == args.parts) part = 0, ++entry;
            } else {
              found.push_back(step);
              if (++step * skinny::kLine == share.end_depth()) step = share.first;
            }
          }
        }
  ASSERT_TRUE(counts.all_once());
  for (auto& [tile, found] : walked) {
    int expected = steps;
    if (sparse) {
      const int row = tile.first / args.per_block;
      expected =
          static_cast<int>(lists.begin(tile.second, row + 1) - lists.begin(tile.second, row)) *
          args.parts;
    }
    std::sort(found.begin(), found.end());
    ASSERT_EQ(found.size(), static_cast<std::size_t>(expected));
    for (int i = 0; i < expected; ++i) ASSERT_EQ(found[static_cast<std::size_t>(i)], i);
  }
}

TEST(WalkSkinny, EachStepOfEachTileOnce) {
  static_assert(std::size(kSm90SkinnyRows) == 4);
  constexpr std::array kChecks{&check_skinny<0>, &check_skinny<1>, &check_skinny<2>,
                               &check_skinny<3>};
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    kChecks[seed % kChecks.size()](seed);
    if (HasFatalFailure()) return;
  }
}

// ---- sddmm

/// The searches of a warp; a loop plays its lanes.
struct SddmmSearch {
  const sddmm::Walk& walk;

  sddmm::Walk::Owner owner(int first, int last, int position) const {
    int next = static_cast<int>(walk.lists.stored);
    for (int b = first; b < last; ++b) {
      const std::int64_t own = walk.offsets_of(b);
      if (walk.begin(own) <= position && position < walk.end(own)) return {b, position};
      if (walk.begin(own) > position && walk.begin(own) < walk.end(own))
        next = std::min(next, walk.begin(own));
    }
    return {-1, next};
  }
  int row_of(int batch, int position) const {
    const std::int64_t own = walk.offsets_of(batch);
    sddmm::RowSearch rows{0, static_cast<int>(walk.lists.block_rows)};
    while (rows.open()) {
      int before = 0;
      for (int lane = 0; lane < kWarp; ++lane)
        before += rows.probe(lane) < rows.high && walk.begins_by(own, rows.probe(lane), position);
      rows.narrow(before);
    }
    return rows.low;
  }
};

template <int kRow>
void check_sddmm(std::uint64_t seed) {
  constexpr Tile kTile = kSm90SddmmRows[kRow].tile;
  Random random(seed);
  const int block_rows = kTile.m * draw(random, 1, 3);
  const int block_cols = random.pick({16, 32, 48, 64, 128, 192});
  const int batches = draw(random, 1, 3);
  const int max_cols = random.chance(0.2) ? 60 : 12;
  BlockRows lists(random, draw(random, 1, random.chance(0.2) ? 120 : 10), draw(random, 1, max_cols),
                  batches, random.chance(0.8));
  sddmm::Walk walk;
  walk.lists = lists.view;
  walk.block_rows = block_rows;
  walk.block_cols = block_cols;
  walk.piece_shift = block_cols % 64 == 0 ? 6 : block_cols % 32 == 0 ? 5 : 4;
  walk.batches = batches;
  // Pooled: the batches' blocks are stored one after another.
  std::vector<std::int64_t> pooled;
  walk.pooled = lists.own_lists && random.chance(0.6);
  if (walk.pooled) {
    std::int64_t base = 0;
    std::vector<std::int64_t> indices;
    for (int b = 0; b < batches; ++b) {
      for (int row = 0; row <= lists.rows; ++row) pooled.push_back(base + lists.begin(b, row));
      for (std::int64_t e = 0; e < lists.begin(b, lists.rows); ++e)
        indices.push_back(lists.column(b, e));
      base += lists.begin(b, lists.rows);
      if (random.chance(0.3)) indices.push_back(-1), ++base;  // a block of no batch
    }
    lists.indices = indices;
    walk.lists.offsets = {nullptr, pooled.data()};
    walk.lists.indices = {nullptr, lists.indices.data()};
    walk.lists.index_batch = 0;
    walk.lists.stored = base;
  }
  walk.row_tiles = block_rows / kTile.m;
  const int cluster = random.pick({1, 1, 2, 4, 8});
  const int clusters = std::max(draw_sms(random) / cluster, 1);
  const bool side_by_side = cluster == 2;
  const std::int64_t lines = std::int64_t{walk.row_tiles} * (walk.pooled ? 1 : batches);
  const sddmm::Cut cut{.columns = walk.lists.stored * block_cols,
                       .rows = walk.lists.block_rows * (walk.pooled ? batches : 1),
                       .width = kTile.n,
                       .piece = std::int64_t{1} << walk.piece_shift,
                       .clusters = clusters,
                       .cluster = cluster,
                       .side_by_side = side_by_side};
  walk.body = sddmm::body_of(cut, lines == 1);
  walk.tail = sddmm::tail_of(cut, walk.body);
  const auto jobs = static_cast<int>(walk.jobs());
  // How often each stored column is multiplied for a tile of rows, by batch.
  const std::int64_t line = walk.lists.stored * block_cols;
  Counts counts(batches, walk.row_tiles, line);
  const SddmmSearch search{walk};
  const auto blocks = static_cast<unsigned>(cluster * std::min(jobs, clusters));
  for (unsigned block = 0; block < blocks; ++block) {
    int lane = 0;
    const auto emit = [&](const sddmm::Pass& pass, int begin) {
      const std::int64_t x = std::int64_t{pass.position} * block_cols + pass.col_inside;
      ASSERT_TRUE(pass.columns > 0 && pass.columns <= kTile.n);
      const int row = pass.row / block_rows;
      const std::int64_t base =
          walk.pooled ? pooled[static_cast<std::size_t>(pass.batch * (lists.rows + 1))] : 0;
      ASSERT_LE(base + lists.begin(pass.batch, row), pass.position);
      ASSERT_LE(x + pass.columns, (base + lists.begin(pass.batch, row + 1)) * block_cols);
      ASSERT_EQ(pass.row_inside, pass.row % block_rows);
      if (lane == 0)
        counts.add(pass.batch, pass.row_inside / kTile.m, pass.row_inside / kTile.m + 1, x,
                   x + pass.columns);
      const std::int64_t mine = x + (std::int64_t{lane} << walk.piece_shift);
      if (mine >= x + pass.columns) return;
      const BsrRow list = walk.lists.row(pass.batch, row);
      ASSERT_EQ(begin, list.column(mine / block_cols) * block_cols + mine % block_cols);
    };
    for (lane = 0; lane < (seed % 8 == 0 ? kWarp : 1); ++lane) {
      sddmm::for_each_pass<kTile.m>(walk, jobs, cluster, block, blocks, lane, search, emit);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  for (int b = 0; b < batches; ++b) {
    const std::int64_t base =
        walk.pooled ? pooled[static_cast<std::size_t>(b * (lists.rows + 1))] : 0;
    for (int tile = 0; tile < walk.row_tiles; ++tile)
      for (std::int64_t x = 0; x < line; x += 16) {
        const std::int64_t position = x / block_cols - base;
        ASSERT_EQ(counts.at(b, tile, x), position >= 0 && position < lists.begin(b, lists.rows))
            << "batch " << b << ", column " << x << " of " << line;
      }
  }
}

TEST(WalkSddmm, EachStoredColumnOnce) {
  static_assert(std::size(kSm90SddmmRows) == 4);
  constexpr std::array kChecks{&check_sddmm<0>, &check_sddmm<1>, &check_sddmm<2>, &check_sddmm<3>};
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    kChecks[seed % kChecks.size()](seed);
    if (HasFatalFailure()) return;
  }
}

TEST(WalkSddmm, SectionsHaveEachColumnOnce) {
  for (const std::int64_t cluster : {1, 2, 8})
    for (const std::int64_t clusters : {142, 132, 108, 66, 58, 16, 15, 1})
      for (const std::int64_t columns : {0, 16, 500, 33792, 262144, 524304})
        for (const std::int64_t rows : {0, 1, 64, 5000})
          for (const std::int64_t piece : {16, 64})
            for (const bool rounds_only : {false, true}) {
              const std::int64_t line = columns / piece * piece;
              const sddmm::Cut cut{line, rows, 512, piece, clusters, cluster, cluster == 2};
              const sddmm::Section body = sddmm::body_of(cut, rounds_only);
              const sddmm::Section tail = sddmm::tail_of(cut, body);
              std::vector<int> times(static_cast<std::size_t>(line / 16), 0);
              for (const sddmm::Section& s : {body, tail}) {
                ASSERT_LE(s.width, 512);
                for (int job = 0; job < s.jobs; ++job)
                  for (int rank = 0; rank < cluster; ++rank) {
                    const std::int64_t tile = s.tile(job, rank, static_cast<int>(cluster));
                    const std::int64_t begin = s.begin + tile * s.width;
                    for (std::int64_t x = begin; x < std::min(begin + s.width, s.end); x += 16)
                      ++times[static_cast<std::size_t>(x / 16)];
                  }
              }
              for (const int t : times) ASSERT_EQ(t, 1) << line << " columns, " << rows << " rows";
            }
}

// ---- spgemm

template <int kRun>
void check_runs(std::uint64_t seed) {
  Random random(seed);
  BlockRows lists(random, draw(random, 1, random.chance(0.2) ? 1500 : 60), draw(random, 1, 20), 1,
                  true);
  const spgemm::ResultRuns<kRun> runs{spgemm::Lists(lists.view)};
  std::vector<int> times(static_cast<std::size_t>(lists.stored));
  for (int index = 0; index < runs.count(); ++index) {
    int low = 0, size = lists.rows;
    while (size > 1) {
      const spgemm::RunSearch rows{low, size};
      int before = 0;
      for (int lane = 0; lane < kWarp; ++lane)
        before += runs.begin(rows.probe(lane)) <= index && rows.counts(lane);
      low += rows.skip(before);
      size = rows.left(rows.skip(before));
    }
    const auto run = runs.run_of(index, low);
    ASSERT_LE(run.size, kRun);
    for (int i = 0; i < run.size; ++i) {
      ASSERT_TRUE(run.first + i >= lists.begin(0, run.row) &&
                  run.first + i < lists.begin(0, run.row + 1));
      ++times[static_cast<std::size_t>(run.first + i)];
    }
  }
  for (const int t : times) ASSERT_EQ(t, 1);
}

TEST(WalkSpgemm, EachBlockOfTheResultOnce) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    seed % 3 == 0 ? check_runs<1>(seed) : seed % 3 == 1 ? check_runs<2>(seed) : check_runs<4>(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(WalkSpgemm, ThreadBlocksTakeEachPlaceOnce) {
  for (const int sms : kSmCounts)
    for (const int tiles : {1, 15, 283, 284, 285, 1000}) {
      const auto blocks = static_cast<unsigned>(std::min(2 * sms, tiles));
      std::vector<int> times(static_cast<std::size_t>(tiles));
      for (unsigned block = 0; block < blocks; ++block)
        for (int round = 0; spgemm::place_of(round, block, blocks) < tiles; ++round)
          ++times[static_cast<std::size_t>(spgemm::place_of(round, block, blocks))];
      // A thread block ends at the first round that has no tile for it. The last round may be in
      // reverse order, so no round may follow it.
      for (const int t : times) ASSERT_EQ(t, 1) << tiles << " tiles, SMs: " << sms;
    }
}

TEST(WalkSpgemm, FindsTheBlocksThatAreStored) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    BlockRows lists(random, draw(random, 1, 20), draw(random, 1, 40), 1, true);
    const spgemm::RightBlocks blocks{spgemm::Lists(lists.view), random.chance(0.5)};
    for (int row = -1; row <= lists.rows; ++row)
      for (int col = -1; col <= lists.cols; ++col) {
        int expected = -1;
        if (row >= 0 && row < lists.rows)
          for (std::int64_t e = lists.begin(0, row); e < lists.begin(0, row + 1); ++e)
            if (lists.column(0, e) == col && col >= 0) expected = static_cast<int>(e);
        spgemm::Search search(blocks, blocks.transposed ? col : row, blocks.transposed ? row : col);
        while (search.open()) search.take(blocks.stored.indices[search.middle()]);
        ASSERT_EQ(search.found, expected) << "block " << row << ", " << col;
      }
  }
}

}  // namespace
}  // namespace tessera::planning
