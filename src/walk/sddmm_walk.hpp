#pragma once

#include <algorithm>
#include <cstdint>

#include "src/walk/arithmetic.hpp"
#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

// Which stored blocks a thread block of sddmm computes, and in which order. The columns of all
// stored blocks are concatenated into one line, in the order of their positions: column x of the
// line is column x % block_cols of stored block x / block_cols. A tile is a range of the line of
// fixed width; its part inside one block row is a pass. So the number of tiles follows from the
// number of stored blocks alone, and all tiles have the same work, however uneven the rows are.
namespace tessera::planning::sddmm {

/// A range of the line that is divided into tiles of one width. A job is the set of tiles that a
/// cluster processes at a time: one tile per thread block, `apart` tiles from each other.
struct Section {
  std::int64_t begin = 0, end = 0;  // columns of the line
  int width = 1, apart = 1, jobs = 0;
  TESSERA_HD constexpr int tile(int job, int rank, int cluster) const {
    return (job / apart * cluster + rank) * apart + job % apart;
  }
};

/// The parameters of the division into tiles.
struct Cut {
  std::int64_t columns, rows;      // columns of the line; number of block rows
  std::int64_t width, piece;       // columns of a tile, and of a piece
  std::int64_t clusters, cluster;  // concurrent clusters; thread blocks per cluster
  bool side_by_side;               // whether a cluster takes adjacent tiles
};

/// Tiles of full width: the whole line, or with `rounds_only` whole rounds of all clusters.
inline Section body_of(const Cut& cut, bool rounds_only) {
  constexpr std::int64_t kMaxApart = 1024;
  // The thread blocks of a cluster share loaded columns: they take tiles one block row apart, which
  // gather about the same columns if rows have equal lengths.
  const std::int64_t row = cut.columns / std::max<std::int64_t>(cut.rows, 1);
  const std::int64_t row_tiles =
      std::clamp<std::int64_t>((row + cut.width / 2) / cut.width, 1, kMaxApart);
  const std::int64_t apart = cut.side_by_side ? 1 : row_tiles;
  std::int64_t jobs = ceil_div(ceil_div(cut.columns, cut.width), cut.cluster * apart) * apart;
  if (rounds_only) {
    jobs = cut.columns / (cut.width * cut.cluster * cut.clusters) * cut.clusters;
    jobs -= jobs % apart;
  }
  return {.begin = 0,
          .end = std::min(jobs * cut.cluster * cut.width, cut.columns),
          .width = static_cast<int>(cut.width),
          .apart = static_cast<int>(apart),
          .jobs = static_cast<int>(jobs)};
}

/// The rest after the body, in narrower tiles that fill whole rounds.
inline Section tail_of(const Cut& cut, const Section& body) {
  const std::int64_t rest = cut.columns - body.end, blocks = cut.clusters * cut.cluster;
  if (rest == 0) return {};
  const std::int64_t rounds = ceil_div(rest, blocks * cut.width);
  const std::int64_t width = ceil_div(ceil_div(rest, blocks * rounds), cut.piece) * cut.piece;
  const int jobs = static_cast<int>(ceil_div(ceil_div(rest, width), cut.cluster));
  return {.begin = body.end,
          .end = cut.columns,
          .width = static_cast<int>(width),
          .apart = cut.side_by_side ? 1 : jobs,
          .jobs = jobs};
}

/// One product: rows of A by the columns of B that stored blocks of one block row select.
struct Pass {
  int columns;     // of the line; 0: nothing to multiply; -1: no more passes
  int batch;       // of A and B
  int row;         // of A
  int position;    // of the first stored block
  int row_inside;  // first row inside the blocks
  int col_inside;  // first column inside the first block
};

struct Walk {
  BsrView lists;
  int block_rows = 0, block_cols = 0;
  int piece_shift = 0;  // log2 of the columns of a piece: the maximum that divides block_cols
  int batches = 1;      // of lists
  bool pooled = false;  // all batches share one line of stored blocks
  int row_tiles = 0;    // tiles along the rows of a block
  Section body, tail;   // whole rounds of all clusters; the rest, in rounds of narrower tiles

  TESSERA_HD constexpr std::int64_t jobs() const {
    return (std::int64_t{body.jobs} + tail.jobs) * row_tiles * (pooled ? 1 : batches);
  }

  /// The batch that a position belongs to. If there is none, `batch` is -1 and the walk continues
  /// at position `next`.
  struct Owner {
    int batch = -1, next = 0;
  };
  /// The element offset of a batch's offsets; begin(..) and end(..) are the positions of its
  /// blocks.
  TESSERA_HD constexpr std::int64_t offsets_of(int batch) const {
    return batch * lists.offset_batch;
  }
  TESSERA_HD constexpr int begin(std::int64_t offsets) const { return clamped(offsets); }
  TESSERA_HD constexpr int end(std::int64_t offsets) const {
    return clamped(offsets + lists.block_rows * lists.offset_stride);
  }
  /// Whether a block row of that batch begins at or before a position.
  TESSERA_HD constexpr bool begins_by(std::int64_t offsets, int row, int position) const {
    return clamped(offsets + row * lists.offset_stride) <= position;
  }

 private:
  TESSERA_HD constexpr int clamped(std::int64_t element) const {
    return static_cast<int>(clamp_to(lists.offsets[element], 0, lists.stored));
  }
};

/// The search of a warp for the last block row that begins at or before a position. Each step
/// probes 32 rows, one per lane. When `open` is false, the row is `low`.
struct RowSearch {
  int low, high;

  TESSERA_HD constexpr bool open() const { return high - low > 1; }
  TESSERA_HD constexpr int step() const { return (high - low + kWarp - 1) / kWarp; }
  /// The row that a lane probes, if it is below `high`.
  TESSERA_HD constexpr int probe(int lane) const { return low + (lane + 1) * step(); }
  /// `before`: the number of lanes whose row begins at or before the position.
  TESSERA_HD constexpr void narrow(int before) {
    const int width = step();
    low += before * width;
    high = min_of(low + width, high);
  }
};

/// Calls `emit(pass, begin)` for every pass of a thread block; `begin` is the first column of B of
/// the lane's piece. `search` locates positions:
///   owner(first, last, position)  the batch, among batches [first, last)
///   row_of(batch, position)       the block row
TESSERA_EITHER_SIDE
template <int kRows, class Search, class Emit>
TESSERA_HD constexpr void for_each_pass(const Walk& walk, int jobs, int cluster, unsigned block,
                                        unsigned blocks, int lane, const Search& search,
                                        const Emit& emit) {
  const int cols = walk.block_cols, rank = block % cluster;
  const int body_jobs = walk.body.jobs, line_jobs = body_jobs + walk.tail.jobs;
  for (int job = block / cluster; job < jobs; job += blocks / cluster) {
    const int row_tile = job % walk.row_tiles, rest = job / walk.row_tiles;
    const int first = walk.pooled ? 0 : rest / line_jobs;
    const int last = walk.pooled ? walk.batches : first + 1;
    const int at = rest % line_jobs;
    const bool in_tail = at >= body_jobs;
    const Section& section = in_tail ? walk.tail : walk.body;
    const int tile = section.tile(in_tail ? at - body_jobs : at, rank, cluster);
    std::int64_t x = section.begin + std::int64_t{tile} * section.width;
    const std::int64_t end = min_of(x + section.width, section.end);
    while (x < end) {
      const int position = static_cast<int>(x / cols);
      const Walk::Owner owner = search.owner(first, last, position);
      if (owner.batch < 0) {
        x = std::int64_t{owner.next} * cols;
        continue;
      }
      const int row = search.row_of(owner.batch, position);
      const BsrRow list = walk.lists.row(owner.batch, row);
      const std::int64_t stop = min_of(end, list.end * cols);
      // Decreasing offsets (invalid lists): no row is found, and the rest of the tile is skipped.
      if (position < list.begin || stop <= x) break;
      const std::int64_t mine = x + (lane << walk.piece_shift);
      int begin = 0;
      if (mine < stop) {
        const std::int64_t entry = mine / cols;
        // An invalid block column (-1) gives a position out of bounds, which reads as zeros.
        begin = static_cast<int>(list.column(entry) * cols + (mine - entry * cols));
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

}  // namespace tessera::planning::sddmm
