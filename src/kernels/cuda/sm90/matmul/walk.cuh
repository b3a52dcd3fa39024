#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch_count.cuh"
#include "src/kernels/cuda/product/groups.cuh"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/walk/matmul_walk.hpp"

// How the scheduler warp finds its tiles and reads their lists. src/walk defines what a tile walks.
// Only the scheduler uses this file; consumers read stage descriptors (descriptors.cuh).
namespace tessera::cuda::sm90::matmul {

using planning::Cut;
using planning::matmul::LineCursor;
using planning::matmul::TileAt;
using planning::matmul::Walk;
static_assert(planning::matmul::kLine == tile::kLine);

/// A window of 32 columns of blocks, read by a warp: per line, a bitmask of the columns that its
/// list names.
template <int kLines>
struct ColumnWindow : planning::matmul::ColumnWindow<kLines> {
  using Window = planning::matmul::ColumnWindow<kLines>;
  using Window::first, Window::named, Window::stored;

  /// Moves the window to the next listed column. All lanes call. False if all lists have ended.
  __device__ bool open(LineCursor (&lines)[kLines], const Walk& walk, int batch, int lane) {
    first = LineCursor::kEnd;
    int heads[kLines];
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      heads[l] = __shfl_sync(kAllLanes, lines[l].ahead(), 0);
      first = heads[l] < first ? heads[l] : first;
    }
    if (first == LineCursor::kEnd) return false;
    bool sorted = true;
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      const auto distance = static_cast<unsigned>(lines[l].ahead()) - static_cast<unsigned>(first);
      const unsigned bit = distance < 32 ? 1u << distance : 0;
      named[l] = __reduce_or_sync(kAllLanes, bit);
      // Sorted: columns increase from lane to lane.
      sorted &=
          lane < __popc(named[l]) ? bit != 0 && __popc(named[l] & (bit - 1)) == lane : bit == 0;
    }
    if (!__all_sync(kAllLanes, sorted)) {
      // Unsorted lists are walked one entry at a time.
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

/// The tiles of one cluster (or CTA), in order. All lanes of a warp call its functions together.
template <int kTileM, int kTileN>
class TileCursor {
 public:
  __device__ TileCursor(const Walk& walk, int tiles)
      : walk_(walk), tiles_(tiles), index_(static_cast<int>(blockIdx.x) / walk.splits) {
    if (by_groups()) search_.read(walk_.groups, tiles_of_group());
  }

  /// Writes the next tile to `at`; false after the last tile.
  __device__ bool next(TileAt& at) {
    if (begun_) index_ = walk_.next_tile ? take_from_counter() : index_ + walk_.clusters;
    begun_ = true;
    if (index_ >= tiles_) return false;
    if (by_groups()) {
      if (!find(at)) return false;
    } else {
      const int rows = planning::matmul::up(walk_.m, kTileM);
      const int cols = planning::matmul::up(walk_.n, kTileN);
      at = {0, 0, walk_.m, walk_.n, index_ / (rows * cols), 0, walk_.k};
      if (walk_.sparse) {
        place_lists(at, index_ % (rows * cols), rows, cols);
      } else {
        place(at, index_ % (rows * cols), rows, cols);
      }
      if (walk_.cut == Cut::depth) walk_.take_depth_of_group(at);
    }
    return true;
  }

 private:
  __device__ bool by_groups() const { return walk_.cut == Cut::rows || walk_.cut == Cut::cols; }

  /// Takes the next tile from the counter.
  __device__ int take_from_counter() {
    int tile = 0;
    // In total `tiles_` are taken: each CTA ends with one that does not exist.
    if (threadIdx.x % 32 == 0)
      tile = walk_.clusters + count_up(walk_.next_tile, walk_.tag, tiles_, counted_);
    counted_ = true;
    return __shfl_sync(kAllLanes, tile, 0);
  }

  __device__ void place(TileAt& at, int within, int rows, int cols) const {
    walk_.template place<kTileM, kTileN>(at, within, rows, cols);
  }

  /// The same for sparse products; with dynamic tiles, rows of tiles with long lists come first, so
  /// that none of them is still running when all other tiles are done.
  __device__ void place_lists(TileAt& at, int within, int rows, int cols) {
    if (walk_.next_tile && at.batch != scanned_) scan_lists(at.batch, rows);
    const int long_tiles = long_ * cols;
    const bool is_long = within < long_tiles;
    const int members = is_long ? long_ : rows - long_;
    place(at, is_long ? within : within - long_tiles, members, cols);
    if (long_ > 0) at.row = member(at.batch, is_long, at.row / kTileM, rows) * kTileM;
  }

  __device__ int listed_blocks(int batch, int row) const {
    return walk_.template listed_blocks<kTileM>(batch, row);
  }

  /// Counts the rows of tiles whose lists are more than twice as long as the mean.
  __device__ void scan_lists(int batch, int rows) {
    constexpr int kMaxRows = 2048;  // more rows are not scanned
    scanned_ = batch;
    long_ = 0;
    if (rows > kMaxRows) return;
    std::int64_t sum = 0;
    for (int row = threadIdx.x % 32; row < rows; row += 32) sum += listed_blocks(batch, row);
    longer_than_ = static_cast<int>(2 * warp_sum(sum) / rows);
    for (int first = 0; first < rows; first += 32) long_ += __popc(long_rows(batch, first, rows));
  }

  /// Bitmask of those of the 32 rows of tiles from `first` on that have long lists.
  __device__ unsigned long_rows(int batch, int first, int rows) const {
    const int row = first + static_cast<int>(threadIdx.x % 32);
    return __ballot_sync(kAllLanes, row < rows && listed_blocks(batch, row) > longer_than_);
  }

  /// The index-th row of tiles among those with long lists, or among the others.
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

  __device__ auto tiles_of_group() const {
    return [this](int begin, int end) {
      return walk_.template tiles_of_group<kTileM, kTileN>(begin, end);
    };
  }

  /// Finds the tile with number index_ among the groups; false if there is none.
  __device__ bool find(TileAt& at) {
    return search_.find(
        walk_.groups, tiles_of_group(), index_, [&](int group, int begin, int end, int within) {
          if (walk_.cut == Cut::rows) {
            walk_.template place_in_rows<kTileM, kTileN>(at, within, group, begin, end);
          } else {
            walk_.template place_in_cols<kTileM, kTileN>(at, within, group, begin, end);
          }
        });
  }

  const Walk& walk_;
  int tiles_, index_;
  bool begun_ = false, counted_ = false;
  // Lists: the batch that was scanned, its number of rows of tiles with long lists, and the
  // threshold.
  int scanned_ = -1, long_ = 0, longer_than_ = 0;
  cuda::product::GroupSearch search_;
};

}  // namespace tessera::cuda::sm90::matmul
