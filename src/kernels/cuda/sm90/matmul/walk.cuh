#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/walk/list_walk.hpp"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"

// Which output tile comes when, and what it walks: pairs (piece of A, piece of B), 64 deep. Dense:
// all of K, or a share of it. Sparse A: what the lists of the tile's lines name, a line being 64
// rows. The loader alone looks at this; it tells the consumers stage by stage (notes.cuh).
namespace tessera::cuda::sm90::matmul {

using planning::Cut;

/// One output tile: its first row and column, where the result's rows and columns end for it, its
/// batch or group, and the depth that it sums over where it is dense.
struct TileAt {
  int row, col, row_end, col_end, batch, depth_begin, depth_end;
};

/// Group offsets that nobody has checked: clamped, and never falling.
struct GroupView {
  planning::Indices offsets;
  std::int64_t stride = 1;
  int groups = 0, length = 0;  // how many, and what they cut

  __device__ int offset(int index) const {
    return static_cast<int>(planning::clamp_to(offsets[index * stride], 0, length));
  }
};

struct Walk {
  int m = 0, n = 0, k = 0, batches = 1;
  int a_batch_step = 0, b_batch_step = 0;  // 0: shared by all batches
  int splits = 1;                          // blocks of a cluster, which share their tiles' depth
  int clusters = 1;                        // in the grid
  int group = 16;                          // rows of tiles that are walked column by column
  int* dealt = nullptr;  // counts tiles that are handed out as blocks ask for them
  Cut cut = Cut::none;
  GroupView groups;
  // Sparse A.
  bool sparse = false;
  planning::BsrView lists;
  int lines_per_block = 1, block_depth = 0;  // as the product sees a block
  std::int64_t pool_step = 0;                // stored blocks of one batch; 0: one pool

  /// What a dense tile walks: `parts` steps, each tile::kLine deep.
  struct Depth {
    int begin = 0, parts = 0;
    int skip = 0;             // of the first step, what belongs to the group before
    int valid = tile::kLine;  // of the last step, what does not belong to the group after
  };
  __device__ Depth depth(const TileAt& at, int split_rank) const {
    // TMA wants the contiguous dimension at multiples of 16 bytes; groups begin anywhere.
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

/// A line's list, read by a warp: each lane looks at one of the next 32 entries.
class LineCursor {
 public:
  static constexpr int kEnd = INT32_MAX;

  /// The list of a row of blocks.
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
  /// Steps over entries and asks for those behind them.
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

/// What the lists of several lines name in the next 32 columns: a piece of B is read once for all
/// of them.
template <int kLines>
struct ColumnWindow {
  int first;               // column
  unsigned named[kLines];  // by each line, a bit a column
  int stored[kLines];      // where the block of a line's first column is stored

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
      // Lane by lane in order, each column once.
      sorted &=
          lane < __popc(named[l]) ? bit != 0 && __popc(named[l] & (bit - 1)) == lane : bit == 0;
    }
    if (!__all_sync(kAll, sorted)) {
      // Lists out of order are walked entry by entry.
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
    if (begun_) index_ = walk_.dealt ? ask() : index_ + walk_.clusters;
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

  /// The next tile that nobody has asked for.
  __device__ int ask() const {
    int tile = 0;
    if (threadIdx.x % 32 == 0) tile = walk_.clusters + atomicAdd(walk_.dealt, 1);
    return __shfl_sync(kAll, tile, 0);
  }

  /// Tiles go down columns of a group of rows of tiles, so that what runs at one time shares
  /// operands in L2.
  __device__ void place(TileAt& at, int within, int rows, int cols) const {
    const int group = within / (walk_.group * cols), rest = within % (walk_.group * cols);
    const int left = rows - group * walk_.group;
    const int height = left < walk_.group ? left : walk_.group;
    at.row += (group * walk_.group + rest % height) * kTileM;
    at.col += rest / height * kTileN;
  }

  /// The same, but first come the rows of tiles with the long lists: begun last, one of them would
  /// run on alone.
  __device__ void place_lists(TileAt& at, int within, int rows, int cols) {
    if (walk_.dealt && at.batch != surveyed_) survey(at.batch, rows);
    const int long_tiles = long_ * cols;
    const bool is_long = within < long_tiles;
    const int members = is_long ? long_ : rows - long_;
    place(at, is_long ? within : within - long_tiles, members, cols);
    if (long_ > 0) at.row = member(at.batch, is_long, at.row / kTileM, rows) * kTileM;
  }

  /// What the lists of a row of tiles name together.
  __device__ int weight(int batch, int row) const {
    int sum = 0;
    for (int line = 0; line < kTileM / tile::kLine; ++line)
      sum += static_cast<int>(
          walk_.lists.row(batch, (row * (kTileM / tile::kLine) + line) / walk_.lines_per_block)
              .size());
    return sum;
  }

  /// Counts the rows of tiles whose lists are more than twice as long as the mean.
  __device__ void survey(int batch, int rows) {
    constexpr int kMaxRows = 2048;  // that are looked through for each tile
    surveyed_ = batch;
    long_ = 0;
    if (rows > kMaxRows) return;
    std::int64_t sum = 0;
    for (int row = threadIdx.x % 32; row < rows; row += 32) sum += weight(batch, row);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
    longer_than_ = static_cast<int>(2 * sum / rows);
    for (int first = 0; first < rows; first += 32) long_ += __popc(long_rows(batch, first, rows));
  }

  /// Of 32 rows of tiles, a bit each: which have long lists.
  __device__ unsigned long_rows(int batch, int first, int rows) const {
    const int row = first + static_cast<int>(threadIdx.x % 32);
    return __ballot_sync(kAll, row < rows && weight(batch, row) > longer_than_);
  }

  /// The row of tiles that is number `index` among those with long lists, or among the others.
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

  /// Each lane takes a group, 32 groups from first_ on: where it begins and ends, and the tiles of
  /// all groups up to it.
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
      const unsigned after = __ballot_sync(kAll, base_ + sum_ > index_);
      if (after != 0) {
        const int lane = __ffs(static_cast<int>(after)) - 1;
        const int begin = __shfl_sync(kAll, begin_, lane), end = __shfl_sync(kAll, end_, lane);
        const int before = __shfl_sync(kAll, sum_, lane > 0 ? lane - 1 : 0);
        const int within = index_ - base_ - (lane > 0 ? before : 0);
        if (walk_.cut == Cut::rows) {
          at = {begin, 0, end, walk_.n, first_ + lane, 0, walk_.k};
          place(at, within, up(end - begin, kTileM), up(walk_.n, kTileN));
        } else {
          at = {0, begin, walk_.m, end, first_ + lane, 0, walk_.k};
          place(at, within, up(walk_.m, kTileM), up(end - begin, kTileN));
        }
        return true;
      }
      base_ += __shfl_sync(kAll, sum_, 31);
      floor_ = __shfl_sync(kAll, end_, 31);
      first_ += 32;
      if (first_ >= walk_.groups.groups) return false;
      read_groups();
    }
  }

  const Walk& walk_;
  int tiles_, index_;
  bool begun_ = false;
  // Lists: the batch that was looked through, how many rows of tiles are long, and what long means.
  int surveyed_ = -1, long_ = 0, longer_than_ = 0;
  // Groups: of the first one that the lanes look at, and of this lane's.
  int first_ = 0, base_ = 0, floor_ = 0;
  int begin_ = 0, end_ = 0, sum_ = 0;
};

}  // namespace tessera::cuda::sm90::matmul
