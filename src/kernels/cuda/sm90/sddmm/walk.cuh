#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/sddmm/cut.hpp"
#include "src/walk/list_walk.hpp"

// Which stored blocks a thread block computes, and when. The columns of all stored blocks form one
// line, in the order of their positions: column x of the line is column x % block_cols of the block
// at position x / block_cols. A tile is a stretch of that line, the same length everywhere; its
// part inside one row of blocks is a pass. So the number of tiles follows from the number of stored
// blocks alone, and all tiles hold the same work, however uneven the rows are.
namespace tessera::cuda::sm90::sddmm {

/// A pass is gathered in pieces: columns of B that are adjacent in any pass. One per lane.
inline constexpr int kMaxPieces = 32;

/// What is multiplied at one time: rows of A by columns of B gathered from the blocks of one row.
struct Pass {
  int columns;     // of the line; 0: nothing to multiply, -1: there are no more passes
  int batch;       // of A and B
  int row;         // of A
  int position;    // of the first stored block
  int row_inside;  // first row inside the blocks
  int col_inside;  // first column inside the first block
};

struct Walk {
  planning::BsrView lists;
  int block_rows = 0, block_cols = 0;
  int piece_shift = 0;  // a piece has 1 << piece_shift columns: the maximum that divides block_cols
  int batches = 1;      // of lists
  bool pooled = false;  // all batches share one line of stored blocks
  int row_tiles = 0;    // tiles on top of each other in one row of blocks
  Section body, tail;   // whole rounds of all clusters, and what is left, in short rounds

  __host__ __device__ std::int64_t jobs() const {
    return (std::int64_t{body.jobs} + tail.jobs) * row_tiles * (pooled ? 1 : batches);
  }

  /// The batch that holds a position, or the position to go on with where none does. The whole
  /// warp.
  struct Owner {
    int batch = -1, next = 0;
  };
  __device__ Owner owner(int first, int last, int position, int lane) const {
    unsigned next = static_cast<unsigned>(lists.stored);
    for (int b = first; b < last; b += 32) {
      int begin = 0, end = 0;
      if (b + lane < last) {
        const std::int64_t own = (b + lane) * lists.offset_batch;
        begin = clamped(own);
        end = clamped(own + lists.block_rows * lists.offset_stride);
      }
      const unsigned found = __ballot_sync(0xFFFFFFFFu, begin <= position && position < end);
      if (found) return {b + __ffs(static_cast<int>(found)) - 1, position};
      if (begin > position && begin < end) next = min(next, static_cast<unsigned>(begin));
    }
    return {-1, static_cast<int>(__reduce_min_sync(0xFFFFFFFFu, next))};
  }

  /// The last row of blocks that begins at a position or before it. The whole warp searches: 32
  /// places at a time.
  __device__ int row_of(int batch, int position, int lane) const {
    const std::int64_t own = batch * lists.offset_batch;
    int low = 0, high = static_cast<int>(lists.block_rows);
    while (high - low > 1) {
      const int step = (high - low + 31) / 32, probe = low + (lane + 1) * step;
      const bool before = probe < high && clamped(own + probe * lists.offset_stride) <= position;
      low += __popc(__ballot_sync(0xFFFFFFFFu, before)) * step;
      high = min(low + step, high);
    }
    return low;
  }

 private:
  __device__ int clamped(std::int64_t element) const {
    return static_cast<int>(planning::clamp_to(lists.offsets[element], 0, lists.stored));
  }
};

/// Calls `emit(pass, begin)` for every pass of this thread block; `begin` is the column of B where
/// the lane's own piece begins. The whole warp.
template <int kRows, class Emit>
__device__ __forceinline__ void for_each_pass(const Walk& walk, int jobs, int cluster, int lane,
                                              const Emit& emit) {
  const int cols = walk.block_cols, rank = blockIdx.x % cluster;
  const int body_jobs = walk.body.jobs, line_jobs = body_jobs + walk.tail.jobs;
  for (int job = blockIdx.x / cluster; job < jobs; job += gridDim.x / cluster) {
    const int row_tile = job % walk.row_tiles, rest = job / walk.row_tiles;
    const int first = walk.pooled ? 0 : rest / line_jobs;
    const int last = walk.pooled ? walk.batches : first + 1;
    const int at = rest % line_jobs;
    const bool in_tail = at >= body_jobs;
    const Section& section = in_tail ? walk.tail : walk.body;
    const int tile = section.tile(in_tail ? at - body_jobs : at, rank, cluster);
    std::int64_t x = section.begin + std::int64_t{tile} * section.width;
    const std::int64_t end = min(x + section.width, section.end);
    while (x < end) {
      const int position = static_cast<int>(x / cols);
      const Walk::Owner owner = walk.owner(first, last, position, lane);
      if (owner.batch < 0) {
        x = std::int64_t{owner.next} * cols;
        continue;
      }
      const int row = walk.row_of(owner.batch, position, lane);
      const planning::BsrRow list = walk.lists.row(owner.batch, row);
      const std::int64_t stop = min(end, list.end * cols);
      // Offsets that do not increase name no row here: the rest of the tile stays as it is.
      if (position < list.begin || stop <= x) break;
      const std::int64_t mine = x + (lane << walk.piece_shift);
      int begin = 0;
      if (mine < stop) {
        const std::int64_t at = mine / cols;
        // A column that no block has (-1) lies out of bounds and reads as zeros.
        begin = static_cast<int>(list.column(at) * cols + (mine - at * cols));
      }
      emit(Pass{.columns = static_cast<int>(stop - x),
                .batch = owner.batch,
                .row = row * walk.block_rows + row_tile * kRows,
                .position = position,
                .row_inside = row_tile * kRows,
                .col_inside = static_cast<int>(x - std::int64_t{position} * cols)},
           begin);
      x = stop;
    }
  }
}

}  // namespace tessera::cuda::sm90::sddmm
