#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/walk/list_walk.hpp"

// The order of the output tiles, and what each walks: pairs (piece of A, piece of B), 64 deep.
// Dense: all of K, or a share of it. Sparse A: what the lists of the tile's lines name, a line
// being 64 rows. Only the scheduler uses this; consumers read stage descriptors (descriptors.cuh).
namespace tessera::cuda::sm90::matmul {

using planning::Cut;

/// One output tile: its first row and column, where the result's rows and columns end for it, its
/// batch or group, and the depth that it sums over if it is dense.
struct TileAt {
  int row, col, row_end, col_end, batch, depth_begin, depth_end;
};

/// Unchecked group offsets: clamped, and never decreasing.
struct GroupView {
  planning::Indices offsets;
  std::int64_t stride = 1;
  int groups = 0, length = 0;  // number of groups, and the length that they divide

  __device__ int offset(int index) const {
    return static_cast<int>(planning::clamp_to(offsets[index * stride], 0, length));
  }
};

struct Walk {
  int m = 0, n = 0, k = 0, batches = 1;
  int a_batch_step = 0, b_batch_step = 0;  // 0: shared by all batches
  int splits = 1;                          // blocks per cluster, which split their tiles' depth
  int clusters = 1;                        // in the grid
  int group = 16;                          // rows of tiles that are walked column by column
  int* next_tile = nullptr;                // counter of dynamic tiles; null: static
  Cut cut = Cut::none;
  GroupView groups;
  // Sparse A.
  bool sparse = false;
  planning::BsrView lists;
  int lines_per_block = 1, block_depth = 0;  // as the product sees a block
  std::int64_t pool_step = 0;                // stored blocks per batch; 0: one pool

  /// What a dense tile walks: `parts` steps, each tile::kLine deep.
  struct Depth {
    int begin = 0, parts = 0;
    int skip = 0;             // of the first step, what belongs to the group before
    int valid = tile::kLine;  // of the last step, what belongs to this group
  };
  __device__ Depth depth(const TileAt& at, int split_rank) const {
    // TMA requires the contiguous dimension at multiples of 16 bytes; groups begin anywhere.
    const int begin = at.depth_begin & ~7;
    const int length = at.depth_end > at.depth_begin ? at.depth_end - begin : 0;
    const int parts = (length + tile::kLine - 1) / tile::kLine;
    const int first = parts * split_rank / splits, last = parts * (split_rank + 1) / splits;
    Depth depth{begin + first * tile::kLine, last - first};
    if (cut == Cut::depth) {
      depth.skip = at.depth_begin - begin;
      depth.valid = length - (parts - 1) * tile::kLine;
    }
    return depth;
  }

  /// The block column of a stored block; -1 where the list names none that exists.
  __device__ int column(int batch, int stored) const {
    const std::int64_t c = lists.indices[batch * lists.index_batch + stored * lists.index_stride];
    return c >= 0 && c < lists.block_cols ? static_cast<int>(c) : -1;
  }
};

/// A line's list, read by a warp: each lane holds one of the next 32 entries.
class LineCursor {
 public:
  static constexpr int kEnd = INT32_MAX;

  /// Starts the list of a row of blocks.
  __device__ void begin(const Walk& walk, int batch, int row, int lane) {
    const planning::BsrRow list = walk.lists.row(batch, row);
    next_ = static_cast<int>(list.begin);
    end_ = static_cast<int>(list.end);
    read(walk, batch, lane);
  }
  /// This lane's block column, -1 where the list names none that exists; kEnd behind the last.
  __device__ int ahead() const { return ahead_; }
  /// Where the block of the next entry is stored.
  __device__ int stored() const { return next_; }
  /// Skips entries and reads those behind them.
  __device__ void advance(const Walk& walk, int batch, int entries, int lane) {
    next_ += entries;
    read(walk, batch, lane);
  }

 private:
  __device__ void read(const Walk& walk, int batch, int lane) {
    ahead_ = next_ + lane < end_ ? walk.column(batch, next_ + lane) : kEnd;
  }

  int next_ = 0, end_ = 0, ahead_ = kEnd;
};

/// What the lists of several lines name in the next 32 columns: a piece of B is read once for
/// all of them.
template <int kLines>
struct ColumnWindow {
  int first;               // column
  unsigned named[kLines];  // bitmask of columns per line
  int stored[kLines];      // position of the block of each line's first column

  /// All lanes. False where all lists have ended.
  __device__ bool open(LineCursor (&lines)[kLines], const Walk& walk, int batch, int lane) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    first = LineCursor::kEnd;
    int heads[kLines];
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      heads[l] = __shfl_sync(kAll, lines[l].ahead(), 0);
      first = heads[l] < first ? heads[l] : first;
    }
    if (first == LineCursor::kEnd) return false;
    bool sorted = true;
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      const auto distance = static_cast<unsigned>(lines[l].ahead()) - static_cast<unsigned>(first);
      const unsigned bit = distance < 32 ? 1u << distance : 0;
      named[l] = __reduce_or_sync(kAll, bit);
      // In order from lane to lane, each column once.
      sorted &=
          lane < __popc(named[l]) ? bit != 0 && __popc(named[l] & (bit - 1)) == lane : bit == 0;
    }
    if (!__all_sync(kAll, sorted)) {
      // Unsorted lists are walked entry by entry.
#pragma unroll
      for (int l = 0; l < kLines; ++l) named[l] = heads[l] == first ? 1 : 0;
    }
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      stored[l] = lines[l].stored();
      lines[l].advance(walk, batch, __popc(named[l]), lane);
    }
    return true;
  }
};

/// The tiles of one cluster of blocks, in order. All lanes of a warp call it together.
template <int kTileM, int kTileN>
class TileCursor {
 public:
  __device__ TileCursor(const Walk& walk, int tiles)
      : walk_(walk), tiles_(tiles), index_(static_cast<int>(blockIdx.x) / walk.splits) {
    if (by_groups()) read_groups();
  }

  /// Puts the next tile into `at`; false after the last.
  __device__ bool next(TileAt& at) {
    if (begun_) index_ = walk_.next_tile ? take_from_counter() : index_ + walk_.clusters;
    begun_ = true;
    if (index_ >= tiles_) return false;
    if (by_groups()) {
      if (!find(at)) return false;
    } else {
      const int rows = up(walk_.m, kTileM), cols = up(walk_.n, kTileN);
      at = {0, 0, walk_.m, walk_.n, index_ / (rows * cols), 0, walk_.k};
      if (walk_.sparse) {
        place_lists(at, index_ % (rows * cols), rows, cols);
      } else {
        place(at, index_ % (rows * cols), rows, cols);
      }
      if (walk_.cut == Cut::depth) {
        at.depth_begin = walk_.groups.offset(at.batch);
        const int end = walk_.groups.offset(at.batch + 1);
        at.depth_end = end < at.depth_begin ? at.depth_begin : end;
      }
    }
    return true;
  }

 private:
  static constexpr unsigned kAll = 0xFFFFFFFFu;

  static __device__ int up(int length, int piece) { return (length + piece - 1) / piece; }
  __device__ bool by_groups() const { return walk_.cut == Cut::rows || walk_.cut == Cut::cols; }

  /// Takes the next tile from the counter.
  __device__ int take_from_counter() const {
    int tile = 0;
    if (threadIdx.x % 32 == 0) tile = walk_.clusters + atomicAdd(walk_.next_tile, 1);
    return __shfl_sync(kAll, tile, 0);
  }

  /// Tiles go down the columns of a group of rows of tiles, so that concurrent tiles share operands
  /// in L2.
  __device__ void place(TileAt& at, int within, int rows, int cols) const {
    const int group = within / (walk_.group * cols), rest = within % (walk_.group * cols);
    const int left = rows - group * walk_.group;
    const int height = left < walk_.group ? left : walk_.group;
    at.row += (group * walk_.group + rest % height) * kTileM;
    at.col += rest / height * kTileN;
  }

  /// The same, but the rows of tiles with long lists come first: begun last, one of them would run
  /// on alone.
  __device__ void place_lists(TileAt& at, int within, int rows, int cols) {
    if (walk_.next_tile && at.batch != scanned_) scan_lists(at.batch, rows);
    const int long_tiles = long_ * cols;
    const bool is_long = within < long_tiles;
    const int members = is_long ? long_ : rows - long_;
    place(at, is_long ? within : within - long_tiles, members, cols);
    if (long_ > 0) at.row = member(at.batch, is_long, at.row / kTileM, rows) * kTileM;
  }

  /// The number of blocks that the lists of a row of tiles name.
  __device__ int listed_blocks(int batch, int row) const {
    int sum = 0;
    for (int line = 0; line < kTileM / tile::kLine; ++line)
      sum += static_cast<int>(
          walk_.lists.row(batch, (row * (kTileM / tile::kLine) + line) / walk_.lines_per_block)
              .size());
    return sum;
  }

  /// Counts the rows of tiles whose lists are more than twice as long as the mean.
  __device__ void scan_lists(int batch, int rows) {
    constexpr int kMaxRows = 2048;  // the maximum that is scanned per tile
    scanned_ = batch;
    long_ = 0;
    if (rows > kMaxRows) return;
    std::int64_t sum = 0;
    for (int row = threadIdx.x % 32; row < rows; row += 32) sum += listed_blocks(batch, row);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
    longer_than_ = static_cast<int>(2 * sum / rows);
    for (int first = 0; first < rows; first += 32) long_ += __popc(long_rows(batch, first, rows));
  }

  /// Bitmask of 32 rows of tiles: those with long lists.
  __device__ unsigned long_rows(int batch, int first, int rows) const {
    const int row = first + static_cast<int>(threadIdx.x % 32);
    return __ballot_sync(kAll, row < rows && listed_blocks(batch, row) > longer_than_);
  }

  /// The row of tiles with index `index` among those with long lists, or among the others.
  __device__ int member(int batch, bool is_long, int index, int rows) const {
    for (int first = 0; first < rows; first += 32) {
      unsigned in = long_rows(batch, first, rows);
      if (!is_long) in = ~in;
      const int count = __popc(in);
      if (index < count) return first + static_cast<int>(__fns(in, 0, index + 1));
      index -= count;
    }
    return rows;
  }

  /// Each lane takes one of 32 groups from first_ on: where it begins and ends, and the number of
  /// tiles of all groups up to it.
  __device__ void read_groups() {
    const GroupView& groups = walk_.groups;
    const int lane = threadIdx.x % 32, group = first_ + lane;
    if (first_ == 0) floor_ = groups.offset(0);
    end_ = group < groups.groups ? groups.offset(group + 1) : floor_;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {  // the greatest offset so far
      const int other = __shfl_up_sync(kAll, end_, d);
      if (lane >= d && other > end_) end_ = other;
    }
    if (end_ < floor_) end_ = floor_;
    begin_ = __shfl_up_sync(kAll, end_, 1);
    if (lane == 0) begin_ = floor_;
    const bool rows = walk_.cut == Cut::rows;
    sum_ = up(end_ - begin_, rows ? kTileM : kTileN) *
           up(rows ? walk_.n : walk_.m, rows ? kTileN : kTileM);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(kAll, sum_, d);
      if (lane >= d) sum_ += other;
    }
  }

  __device__ bool find(TileAt& at) {
    while (true) {
      const unsigned after = __ballot_sync(kAll, tiles_before_ + sum_ > index_);
      if (after != 0) {
        const int lane = __ffs(static_cast<int>(after)) - 1;
        const int begin = __shfl_sync(kAll, begin_, lane), end = __shfl_sync(kAll, end_, lane);
        const int before = __shfl_sync(kAll, sum_, lane > 0 ? lane - 1 : 0);
        const int within = index_ - tiles_before_ - (lane > 0 ? before : 0);
        if (walk_.cut == Cut::rows) {
          at = {begin, 0, end, walk_.n, first_ + lane, 0, walk_.k};
          place(at, within, up(end - begin, kTileM), up(walk_.n, kTileN));
        } else {
          at = {0, begin, walk_.m, end, first_ + lane, 0, walk_.k};
          place(at, within, up(walk_.m, kTileM), up(end - begin, kTileN));
        }
        return true;
      }
      tiles_before_ += __shfl_sync(kAll, sum_, 31);
      floor_ = __shfl_sync(kAll, end_, 31);
      first_ += 32;
      if (first_ >= walk_.groups.groups) return false;
      read_groups();
    }
  }

  const Walk& walk_;
  int tiles_, index_;
  bool begun_ = false;
  // Lists: the batch that was scanned, how many rows of tiles are long, and the threshold.
  int scanned_ = -1, long_ = 0, longer_than_ = 0;
  // Groups: state of the first group of the lanes, and of this lane's group.
  int first_ = 0, tiles_before_ = 0, floor_ = 0;
  int begin_ = 0, end_ = 0, sum_ = 0;
};

}  // namespace tessera::cuda::sm90::matmul
