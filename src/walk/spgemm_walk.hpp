#pragma once

#include <cstdint>

#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

// What kernels of sparse times sparse walk. Nothing is listed beforehand: which blocks of A and B
// meet in a block of the result is looked up while the result is computed, so the result may have
// any pattern and a captured graph follows a new one. No content of a list leads outside a tensor.
namespace tessera::planning::spgemm {

/// A list of either index dtype, read by its low words: sizes are below 2^31, so they say all that
/// a list may say. Reads have no branches and can be many at a time.
struct Words {
  const std::int32_t* data = nullptr;
  std::int64_t step = 1;  // words from one entry to the next

  Words() = default;
  Words(const Indices& list, std::int64_t stride)
      : data(list.wide ? reinterpret_cast<const std::int32_t*>(list.wide) : list.narrow),
        step(list.wide ? 2 * stride : stride) {}
  TESSERA_HD int operator[](int entry) const { return data[entry * step]; }
};

/// The lists of a matrix by row, or by column where they are transposed lists.
struct Lists {
  Words offsets, indices, positions;
  bool placed = false;  // positions say where blocks are stored; else entries do
  int rows = 0, cols = 0, stored = 0;

  Lists() = default;
  explicit Lists(const BsrView& view)
      : offsets(view.offsets, view.offset_stride),
        indices(view.indices, view.index_stride),
        positions(view.positions, 1),
        placed(static_cast<bool>(view.positions)),
        rows(static_cast<int>(view.block_rows)),
        cols(static_cast<int>(view.block_cols)),
        stored(static_cast<int>(view.stored)) {}

  /// Entries [begin, end).
  struct Range {
    int begin = 0, end = 0;
    TESSERA_HD int size() const { return end - begin; }
  };
  TESSERA_HD Range range(int row) const {
    const int begin = offsets[row], end = offsets[row + 1];
    const int first = min_of(max_of(begin, 0), stored);
    return {first, min_of(max_of(end, first), stored)};
  }
  /// Where an entry's block is stored; -1 where the list holds no such place.
  TESSERA_HD int position(int entry) const {
    const int at = placed ? positions[entry] : entry;
    return at >= 0 && at < stored ? at : -1;
  }
};

/// Where op(B) stores its blocks: looked up in the lists as they are stored, whichever way they are
/// read.
struct RightBlocks {
  Lists stored;
  bool transposed = false;
};

/// The search for block (k, j) of op(B) in its sorted list, step by step, so that several can run
/// side by side. Lists out of order lose blocks, nothing worse.
struct Search {
  int low = 0, high = 0;  // of the entries left
  int wanted = -1, found = -1;

  Search() = default;
  TESSERA_HD Search(const RightBlocks& blocks, int k, int j) {
    const int line = blocks.transposed ? j : k, last = blocks.stored.rows - 1;
    if (last < 0) return;
    const Lists::Range range = blocks.stored.range(min_of(max_of(line, 0), last));
    wanted = blocks.transposed ? k : j;
    if (line < 0 || line > last || wanted < 0) return;
    low = range.begin;
    high = range.end;
  }
  TESSERA_HD bool open() const { return low < high; }
  TESSERA_HD int middle() const { return low + (high - low) / 2; }
  /// `seen`: what entry middle() says.
  TESSERA_HD void take(int seen) {
    const int at = middle();
    if (seen == wanted) found = low = high = at;
    if (seen < wanted) low = at + 1;
    if (seen > wanted) high = at;
  }
};

/// Runs of at most kRun neighbours in one row of the result. They are numbered without looking at
/// the lists: row i has those from offsets[i] / kRun + i on, as many as it can need and one more;
/// those that its blocks do not fill are empty.
template <int kRun>
struct ResultRuns {
  Lists lists;

  TESSERA_HD std::int64_t count() const { return std::int64_t{lists.stored} / kRun + lists.rows; }

  struct Run {
    int row = 0, first = 0;  // its row of blocks; where its first block is stored
    int size = 0;
  };
  /// Run `index`, in the last row that begins at it or before.
  TESSERA_HD Run run_of(int index, int row) const {
    const Lists::Range range = lists.range(row);
    const int skip = (index - begin(row)) * kRun, left = range.size() - skip;
    if (skip < 0 || left <= 0) return {row, range.begin, 0};
    return {row, range.begin + skip, min_of(left, kRun)};
  }
  /// The number of a row's first run.
  TESSERA_HD int begin(int row) const {
    return min_of(max_of(lists.offsets[row], 0), lists.stored) / kRun + row;
  }
};

/// A step of a warp's search for the last row that begins at a run or before it, among `size` rows
/// from `low` on: 32 rows at a time, until one is left.
struct RunSearch {
  int low = 0, size = 0;

  TESSERA_HD constexpr int stride() const { return (size + kWarp - 1) / kWarp; }
  /// The row that a lane looks at, and whether that row counts.
  TESSERA_HD constexpr int probe(int lane) const { return low + min_of(lane * stride(), size - 1); }
  TESSERA_HD constexpr bool counts(int lane) const { return lane * stride() < size; }
  /// Rows to skip, and those left behind them. `before`: how many lanes' rows count, and begin at
  /// the run or before it.
  TESSERA_HD constexpr int skip(int before) const {
    return (before > 0 ? before - 1 : 0) * stride();
  }
  TESSERA_HD constexpr int left(int skipped) const { return min_of(size - skipped, stride()); }
};

/// The place in the order of a thread block's tile in a round. Every other round is reversed: the
/// block with the longest tile of one round has the shortest of the next.
TESSERA_HD constexpr int place_of(int round, unsigned block, unsigned blocks) {
  const int from = round * blocks;
  return from + static_cast<int>(round % 2 == 0 ? block : blocks - 1 - block);
}

}  // namespace tessera::planning::spgemm
