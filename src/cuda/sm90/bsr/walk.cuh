#pragma once

#include <cstdint>

#include "src/cuda/tile/swizzled_tile.cuh"
#include "src/plan/list_walk.hpp"

// What an output tile walks: the union of its lines' lists, 64 of depth at a time. A line is the
// part of a row of blocks that one wgmma takes; a piece is the part of a line's block that lies in
// one step of 64 or less.
namespace tessera::cuda::sm90::bsr {

/// One output tile: its first line, its first column, its batch.
struct TileAt {
  int line, col, batch;
};

struct Walk {
  planning::BsrView lists;
  int lines = 0, cols = 0;  // of the result
  int batches = 1;
  int dense_batch_step = 0;  // 0: one dense matrix for all batches
  int pool_step = 0;         // stored blocks of one batch; 0: one pool
  int lines_per_block = 1;   // one above the other
  int piece = tile::kLine;   // depth of a piece: 64, 32 or 16
  int piece_shift = 0;       // log2 of the pieces in a step
  int pieces_per_block = 1;  // one beside the other

  /// Tiles go down columns of `kGroup` rows of tiles, so that what runs at one time shares operands
  /// in L2.
  template <int kLines, int kCols>
  __device__ TileAt tile(int index) const {
    constexpr int kGroup = 16;
    const int down = (lines + kLines - 1) / kLines, across = (cols + kCols - 1) / kCols;
    const int batch = index / (down * across), within = index % (down * across);
    const int group = within / (kGroup * across), rest = within % (kGroup * across);
    const int left = down - group * kGroup;
    const int height = left < kGroup ? left : kGroup;
    return {(group * kGroup + rest % height) * kLines, rest / height * kCols, batch};
  }
};

/// One lane's way along the list of its line. The entry after the present one is read ahead.
class LineWalk {
 public:
  static constexpr int kEnd = INT32_MAX;

  __device__ LineWalk(const Walk& walk, const TileAt& tile, int lane, int lines_of_tile)
      : walk_(walk) {
    const int line = tile.line + lane;
    if (lane < lines_of_tile && line < walk.lines)
      list_ = walk.lists.row(tile.batch, line / walk.lines_per_block);
    at_ = static_cast<int>(list_.begin);
    read_ahead(at_);
    next_entry();
  }

  /// The step that the present piece lies in; kEnd after the last.
  __device__ int step() const { return column_ == kEnd ? kEnd : piece() >> walk_.piece_shift; }
  /// Which piece of its step it is, and of its block.
  __device__ int slice() const { return piece() & ((1 << walk_.piece_shift) - 1); }
  __device__ int part() const { return part_; }
  __device__ int stored() const { return stored_; }

  __device__ void advance() {
    if (++part_ == walk_.pieces_per_block) {
      part_ = 0;
      next_entry();
    }
  }

 private:
  __device__ void read_ahead(int entry) {
    ahead_column_ = kEnd;
    if (entry < list_.end) {
      ahead_column_ = static_cast<int>(list_.column(entry));
      ahead_stored_ = static_cast<int>(list_.position(entry));
    }
  }
  /// Entries that name no block there is are stepped over.
  __device__ void next_entry() {
    do {
      column_ = ahead_column_;
      stored_ = ahead_stored_;
      read_ahead(++at_);
    } while (column_ < 0 || (column_ != kEnd && stored_ < 0));
  }

  __device__ int piece() const { return column_ * walk_.pieces_per_block + part_; }

  const Walk& walk_;
  planning::BsrRow list_{};
  int at_ = 0, part_ = 0;
  int column_ = kEnd, stored_ = 0;
  int ahead_column_ = kEnd, ahead_stored_ = 0;
};

}  // namespace tessera::cuda::sm90::bsr
