#pragma once

#include <cstdint>

#include "src/walk/groups.hpp"
#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

namespace tessera::planning {

/// The dimension that the group offsets divide, in the product as the kernel computes it.
enum class Cut : std::uint8_t { none, rows, cols, depth };

}  // namespace tessera::planning

// The output tiles of sm90/matmul and their walks: steps with a depth of 64 or 128, each a piece of
// A and a piece of B. A dense tile walks all of K, or a share of it. With a sparse A, a tile walks
// the union of the lists of its lines; a line is 64 rows.
namespace tessera::planning::matmul {

inline constexpr int kLine = 64;  // rows of a line, usual depth of a step

TESSERA_HD constexpr int up(int length, int piece) { return (length + piece - 1) / piece; }

/// An output tile: its first row and column, the end of the rows and columns that it may write, its
/// batch or group, and for dense operands the range of depth.
struct TileAt {
  int row, col, row_end, col_end, batch, depth_begin, depth_end;
};

struct Walk {
  int m = 0, n = 0, k = 0, batches = 1;
  int a_batch_step = 0, b_batch_step = 0;  // 0: shared by all batches
  int splits = 1;                          // split-K: thread blocks per cluster
  int clusters = 1;                        // in the grid
  int group = 16;                          // rasterization: rows of tiles per group
  std::uint64_t* next_tile = nullptr;      // counter of dynamically scheduled tiles; null: static
  std::uint64_t tag = 0;                   // of the launch (LaunchCount)
  Cut cut = Cut::none;
  GroupView groups;
  // Sparse A.
  bool sparse = false;
  BsrView lists;
  int lines_per_block = 1, block_depth = 0;  // of a block of op(A)
  std::int64_t pool_step = 0;                // stored blocks per batch; 0: one pool

  /// The depth that a dense tile walks, in `parts` steps.
  struct Depth {
    int begin = 0, parts = 0;
    int skip = 0;       // elements of the first step that belong to the previous group
    int valid = kLine;  // elements of the last step that belong to this group
  };
  template <int kStep = kLine>
  TESSERA_HD constexpr Depth depth(const TileAt& at, int split_rank) const {
    // TMA boxes begin at multiples of 16 bytes of the contiguous dimension; groups may begin at any
    // element.
    const int begin = at.depth_begin & ~7;
    const int length = at.depth_end > at.depth_begin ? at.depth_end - begin : 0;
    const int parts = (length + kStep - 1) / kStep;
    const int first = parts * split_rank / splits, last = parts * (split_rank + 1) / splits;
    Depth depth{begin + first * kStep, last - first, 0, kStep};
    if (cut == Cut::depth) {
      depth.skip = at.depth_begin - begin;
      depth.valid = length - (parts - 1) * kStep;
    }
    return depth;
  }

  /// Moves a tile to index `within` of `rows` x `cols` tiles. Tiles are ordered column by column
  /// within a group of `group` rows of tiles, so that concurrent tiles share operands in L2.
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr void place(TileAt& at, int within, int rows, int cols) const {
    const int first = within / (group * cols), rest = within % (group * cols);
    const int left = rows - first * group;
    const int height = left < group ? left : group;
    at.row += (first * group + rest % height) * kTileM;
    at.col += rest / height * kTileN;
  }
  /// With groups along the depth: sets the depth of a tile's group.
  TESSERA_HD constexpr void take_depth_of_group(TileAt& at) const {
    at.depth_begin = groups.offset(at.batch);
    const int end = groups.offset(at.batch + 1);
    at.depth_end = end < at.depth_begin ? at.depth_begin : end;
  }
  /// With groups of rows or columns: the number of tiles of the group [begin, end).
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr int tiles_of_group(int begin, int end) const {
    const bool rows = cut == Cut::rows;
    return up(end - begin, rows ? kTileM : kTileN) * up(rows ? n : m, rows ? kTileN : kTileM);
  }
  /// Tile `within` of group `index`, which has rows [begin, end).
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr void place_in_rows(TileAt& at, int within, int index, int begin,
                                          int end) const {
    at = {begin, 0, end, n, index, 0, k};
    place<kTileM, kTileN>(at, within, up(end - begin, kTileM), up(n, kTileN));
  }
  /// Tile `within` of group `index`, which has columns [begin, end).
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr void place_in_cols(TileAt& at, int within, int index, int begin,
                                          int end) const {
    at = {0, begin, m, end, index, 0, k};
    place<kTileM, kTileN>(at, within, up(m, kTileM), up(end - begin, kTileN));
  }

  /// The block column of a stored block; -1 if it is out of range.
  TESSERA_HD constexpr int column(int batch, int stored) const {
    const std::int64_t c = lists.indices[batch * lists.index_batch + stored * lists.index_stride];
    return c >= 0 && c < lists.block_cols ? static_cast<int>(c) : -1;
  }
  /// The total length of the lists of a row of tiles.
  template <int kTileM>
  TESSERA_HD constexpr int listed_blocks(int batch, int row) const {
    int sum = 0;
    for (int line = 0; line < kTileM / kLine; ++line)
      sum += static_cast<int>(
          lists.row(batch, (row * (kTileM / kLine) + line) / lines_per_block).size());
    return sum;
  }
};

/// A warp's cursor into the list of a line. Each lane holds one of the next 32 entries.
class LineCursor {
 public:
  static constexpr int kEnd = INT32_MAX;

  /// Starts at the list of a block row.
  TESSERA_HD constexpr void begin(const Walk& walk, int batch, int row, int lane) {
    const BsrRow list = walk.lists.row(batch, row);
    next_ = static_cast<int>(list.begin);
    end_ = static_cast<int>(list.end);
    read(walk, batch, lane);
  }
  /// This lane's block column: -1 if it is out of range, kEnd after the last entry.
  TESSERA_HD constexpr int ahead() const { return ahead_; }
  /// The position of the next entry's block.
  TESSERA_HD constexpr int stored() const { return next_; }
  /// Skips entries and reads the following ones.
  TESSERA_HD constexpr void advance(const Walk& walk, int batch, int entries, int lane) {
    next_ += entries;
    read(walk, batch, lane);
  }

 private:
  TESSERA_HD constexpr void read(const Walk& walk, int batch, int lane) {
    ahead_ = next_ + lane < end_ ? walk.column(batch, next_ + lane) : kEnd;
  }

  int next_ = 0, end_ = 0, ahead_ = kEnd;
};

/// A window of 32 block columns, with the columns that the lists of several lines contain. A piece
/// of B is read once for all lines.
template <int kLines>
struct ColumnWindow {
  int first;               // first block column of the window
  unsigned named[kLines];  // per line: bitmask of the columns in its list
  int stored[kLines];      // per line: position of the block of its first column

  /// The columns of a line, and the position of the block of the first one. `one_list`: all lines
  /// are in one block and share its list.
  TESSERA_HD constexpr void read_line(int line, bool one_list, int pool, unsigned& columns,
                                      int& matrix) const {
    columns = one_list ? named[0] : named[line];
    matrix = (one_list ? stored[0] : stored[line]) + pool;
    if (first < 0) {  // skips an entry that is out of range
      matrix += static_cast<int>(columns & 1);
      columns &= ~1u;
    }
  }
};

}  // namespace tessera::planning::matmul
