#pragma once

#include <cstdint>

#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

namespace tessera::planning {

/// Where the group offsets cut, as the kernel sees the product.
enum class Cut : std::uint8_t { none, rows, cols, depth };

}  // namespace tessera::planning

// The output tiles of sm90/matmul, and what each walks: pairs (piece of A, piece of B), 64 deep.
// Dense: all of K, or a share of it. Sparse A: what the lists of the tile's lines name, a line
// being 64 rows.
namespace tessera::planning::matmul {

inline constexpr int kLine = 64;  // rows of a line, depth of a step

TESSERA_HD constexpr int up(int length, int piece) { return (length + piece - 1) / piece; }

/// One output tile: its first row and column, where the result's rows and columns end for it, its
/// batch or group, and the depth that it sums over if it is dense.
struct TileAt {
  int row, col, row_end, col_end, batch, depth_begin, depth_end;
};

/// Unchecked group offsets: clamped, and never decreasing.
struct GroupView {
  Indices offsets;
  std::int64_t stride = 1;
  int groups = 0, length = 0;  // number of groups, and the length that they divide

  TESSERA_HD constexpr int offset(int index) const {
    return static_cast<int>(clamp_to(offsets[index * stride], 0, length));
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
  BsrView lists;
  int lines_per_block = 1, block_depth = 0;  // as the product sees a block
  std::int64_t pool_step = 0;                // stored blocks per batch; 0: one pool

  /// What a dense tile walks: `parts` steps, each kLine deep.
  struct Depth {
    int begin = 0, parts = 0;
    int skip = 0;       // of the first step, what belongs to the group before
    int valid = kLine;  // of the last step, what belongs to this group
  };
  TESSERA_HD constexpr Depth depth(const TileAt& at, int split_rank) const {
    // TMA requires the contiguous dimension at multiples of 16 bytes; groups begin anywhere.
    const int begin = at.depth_begin & ~7;
    const int length = at.depth_end > at.depth_begin ? at.depth_end - begin : 0;
    const int parts = (length + kLine - 1) / kLine;
    const int first = parts * split_rank / splits, last = parts * (split_rank + 1) / splits;
    Depth depth{begin + first * kLine, last - first};
    if (cut == Cut::depth) {
      depth.skip = at.depth_begin - begin;
      depth.valid = length - (parts - 1) * kLine;
    }
    return depth;
  }

  /// Moves a tile to place `within` of `rows` x `cols` tiles. Tiles go down the columns of a group
  /// of rows of tiles, so that concurrent tiles share operands in L2.
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr void place(TileAt& at, int within, int rows, int cols) const {
    const int first = within / (group * cols), rest = within % (group * cols);
    const int left = rows - first * group;
    const int height = left < group ? left : group;
    at.row += (first * group + rest % height) * kTileM;
    at.col += rest / height * kTileN;
  }
  /// Where groups cut the depth: the depth of a tile's group.
  TESSERA_HD constexpr void take_depth_of_group(TileAt& at) const {
    at.depth_begin = groups.offset(at.batch);
    const int end = groups.offset(at.batch + 1);
    at.depth_end = end < at.depth_begin ? at.depth_begin : end;
  }
  /// Where groups cut rows or columns: tiles of the group that has [begin, end) of them.
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr int tiles_of_group(int begin, int end) const {
    const bool rows = cut == Cut::rows;
    return up(end - begin, rows ? kTileM : kTileN) * up(rows ? n : m, rows ? kTileN : kTileM);
  }
  /// Tile `within` of group `index`, which has these rows.
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr void place_in_rows(TileAt& at, int within, int index, int begin,
                                          int end) const {
    at = {begin, 0, end, n, index, 0, k};
    place<kTileM, kTileN>(at, within, up(end - begin, kTileM), up(n, kTileN));
  }
  /// Tile `within` of group `index`, which has these columns.
  template <int kTileM, int kTileN>
  TESSERA_HD constexpr void place_in_cols(TileAt& at, int within, int index, int begin,
                                          int end) const {
    at = {0, begin, m, end, index, 0, k};
    place<kTileM, kTileN>(at, within, up(m, kTileM), up(end - begin, kTileN));
  }

  /// The block column of a stored block; -1 where the list names none that exists.
  TESSERA_HD constexpr int column(int batch, int stored) const {
    const std::int64_t c = lists.indices[batch * lists.index_batch + stored * lists.index_stride];
    return c >= 0 && c < lists.block_cols ? static_cast<int>(c) : -1;
  }
  /// The number of blocks that the lists of a row of tiles name.
  template <int kTileM>
  TESSERA_HD constexpr int listed_blocks(int batch, int row) const {
    int sum = 0;
    for (int line = 0; line < kTileM / kLine; ++line)
      sum += static_cast<int>(
          lists.row(batch, (row * (kTileM / kLine) + line) / lines_per_block).size());
    return sum;
  }
};

/// A line's list, read by a warp: each lane holds one of the next 32 entries.
class LineCursor {
 public:
  static constexpr int kEnd = INT32_MAX;

  /// Starts the list of a row of blocks.
  TESSERA_HD constexpr void begin(const Walk& walk, int batch, int row, int lane) {
    const BsrRow list = walk.lists.row(batch, row);
    next_ = static_cast<int>(list.begin);
    end_ = static_cast<int>(list.end);
    read(walk, batch, lane);
  }
  /// This lane's block column, -1 where the list names none that exists; kEnd behind the last.
  TESSERA_HD constexpr int ahead() const { return ahead_; }
  /// Where the block of the next entry is stored.
  TESSERA_HD constexpr int stored() const { return next_; }
  /// Skips entries and reads those behind them.
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

/// What the lists of several lines name in the next 32 columns: a piece of B is read once for all
/// of them.
template <int kLines>
struct ColumnWindow {
  int first;               // column
  unsigned named[kLines];  // bitmask of columns per line
  int stored[kLines];      // position of the block of each line's first column

  /// Column bits of a line, and the position of its first column's block. `one_list`: lines of one
  /// block have one list, so they name the same columns whatever it holds.
  TESSERA_HD constexpr void read_line(int line, bool one_list, int pool, unsigned& columns,
                                      int& matrix) const {
    columns = one_list ? named[0] : named[line];
    matrix = (one_list ? stored[0] : stored[line]) + pool;
    if (first < 0) {  // skips an entry that names no column
      matrix += static_cast<int>(columns & 1);
      columns &= ~1u;
    }
  }
};

}  // namespace tessera::planning::matmul
