#pragma once

#include <cstdint>

#include "src/cuda/tile/swizzled_tile.cuh"
#include "src/plan/list_walk.hpp"
#include "src/plan/matmul_sm90.hpp"

// What an output tile walks: pairs (piece of A, piece of B), 64 deep. Dense: all of K, or a share
// of it. Sparse A: the stored blocks of a row of blocks. Everything else in the kernel is the same.
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
  Cut cut = Cut::none;
  GroupView groups;
  // Sparse A.
  bool sparse = false;
  planning::BsrView lists;
  int block_rows = 0, block_depth = 0;  // as the product sees a block
  std::int64_t pool_step = 0;           // stored blocks of one batch; 0: one pool

  /// What a tile walks: `entries` of `parts` steps, each step kLine deep. Dense is one entry.
  struct Steps {
    int entries = 0, parts = 0;
    planning::BsrRow list;    // sparse
    int row = 0;              // of A, or of the stored block
    int depth = 0;            // dense: where the first step begins
    int skip = 0;             // of the first step, what belongs to the group before
    int valid = tile::kLine;  // of the last step, what does not belong to the group after
    __device__ int count() const { return entries * parts; }
  };
  __device__ Steps steps(const TileAt& at, int split_rank) const {
    if (sparse) {
      const planning::BsrRow list = lists.row(at.batch, at.row / block_rows);
      return {static_cast<int>(list.size()), block_depth / tile::kLine, list, at.row % block_rows};
    }
    // TMA wants the contiguous dimension at multiples of 16 bytes; groups begin anywhere.
    const int begin = at.depth_begin & ~7;
    const int length = at.depth_end > at.depth_begin ? at.depth_end - begin : 0;
    const int parts = (length + tile::kLine - 1) / tile::kLine;
    const int first = parts * split_rank / splits, last = parts * (split_rank + 1) / splits;
    Steps steps{1, last - first, {}, at.row, begin + first * tile::kLine};
    if (cut == Cut::depth) {
      steps.skip = at.depth_begin - begin;
      steps.valid = length - (parts - 1) * tile::kLine;
    }
    return steps;
  }
  /// Where an entry's B begins. A column that no block has (-1) lies out of bounds and reads as
  /// zeros.
  __device__ int b_begin(const Steps& steps, int entry) const {
    if (!sparse) return steps.depth;
    return static_cast<int>(steps.list.column(steps.list.begin + entry)) * block_depth;
  }
  /// Which of A's matrices an entry reads: its batch, or its stored block.
  __device__ int a_matrix(const TileAt& at, const Steps& steps, int entry) const {
    if (!sparse) return at.batch * a_batch_step;
    return static_cast<int>(steps.list.begin + entry + at.batch * pool_step);
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
    if (index_ >= tiles_) return false;
    if (by_groups()) {
      if (!find(at)) return false;
    } else {
      const int rows = up(walk_.m, kTileM), cols = up(walk_.n, kTileN);
      at = {0, 0, walk_.m, walk_.n, index_ / (rows * cols), 0, walk_.k};
      place(at, index_ % (rows * cols), rows, cols);
      if (walk_.cut == Cut::depth) {
        at.depth_begin = walk_.groups.offset(at.batch);
        const int end = walk_.groups.offset(at.batch + 1);
        at.depth_end = end < at.depth_begin ? at.depth_begin : end;
      }
    }
    index_ += walk_.clusters;
    return true;
  }

 private:
  static constexpr unsigned kAll = 0xFFFFFFFFu;

  static __device__ int up(int length, int piece) { return (length + piece - 1) / piece; }
  __device__ bool by_groups() const { return walk_.cut == Cut::rows || walk_.cut == Cut::cols; }

  /// Tiles go down columns of `kGroup` rows of tiles, so that what runs at one time shares
  /// operands in L2.
  __device__ void place(TileAt& at, int within, int rows, int cols) const {
    constexpr int kGroup = 16;
    const int group = within / (kGroup * cols), rest = within % (kGroup * cols);
    const int left = rows - group * kGroup;
    const int height = left < kGroup ? left : kGroup;
    at.row += (group * kGroup + rest % height) * kTileM;
    at.col += rest / height * kTileN;
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
  // Groups: of the first one that the lanes look at, and of this lane's.
  int first_ = 0, base_ = 0, floor_ = 0;
  int begin_ = 0, end_ = 0, sum_ = 0;
};

}  // namespace tessera::cuda::sm90::matmul
