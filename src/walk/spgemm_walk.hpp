#pragma once

#include <cstdint>

#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

// The walk of the sparse-sparse product kernels. Pairs of blocks are not listed in advance: the
// kernel looks up which blocks of A and B contribute to a block of the result while it computes
// that block. So the result may have any pattern, and a captured graph follows a new one. No list
// contents cause an access outside of the tensors.
namespace tessera::planning::spgemm {

/// An i32 or i64 list that is read as 32-bit words. Sizes are below 2^31, so the low words of an
/// i64 list are enough. Reads do not branch, and several can be in flight.
struct Words {
  const std::int32_t* data = nullptr;
  std::int64_t step = 1;  // stride of the entries, in words

  Words() = default;
  Words(const Indices& list, std::int64_t stride)
      : data(list.wide ? reinterpret_cast<const std::int32_t*>(list.wide) : list.narrow),
        step(list.wide ? 2 * stride : stride) {}
  TESSERA_HD int operator[](int entry) const { return data[entry * step]; }
};

/// The lists of a matrix by block row, or by block column if they are transposed lists.
struct Lists {
  Words offsets, indices, positions;
  bool placed = false;  // whether `positions` is present; otherwise entry p is stored block p
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
  /// The position of an entry's block in the values; -1 if it is out of range.
  TESSERA_HD int position(int entry) const {
    const int at = placed ? positions[entry] : entry;
    return at >= 0 && at < stored ? at : -1;
  }
};

/// The lists of B as stored, for looking up blocks of op(B), which is B or its transpose.
struct RightBlocks {
  Lists stored;
  bool transposed = false;
};

/// A binary search for block (k, j) of op(B) in its sorted list. It advances step by step, so that
/// a thread can interleave several searches. Unsorted lists lose blocks but are safe.
struct Search {
  int low = 0, high = 0;  // remaining entries: [low, high)
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
  /// Continues with `seen`, the index in entry middle().
  TESSERA_HD void take(int seen) {
    const int at = middle();
    if (seen == wanted) found = low = high = at;
    if (seen < wanted) low = at + 1;
    if (seen > wanted) high = at;
  }
};

/// Divides the result into runs: up to kRun adjacent stored blocks of one block row. Row i owns the
/// runs from number offsets[i] / kRun + i up to the first run of row i + 1. That is one more than
/// its blocks can need; runs without blocks are empty. So a run's number follows from the offsets
/// without a scan over the rows.
template <int kRun>
struct ResultRuns {
  Lists lists;

  TESSERA_HD std::int64_t count() const { return std::int64_t{lists.stored} / kRun + lists.rows; }

  struct Run {
    int row = 0, first = 0;  // block row; position of the first block
    int size = 0;            // blocks
  };
  /// Run `index`; `row` is the last row whose first run is at or before it.
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

/// The search of a warp for the last row whose first run is at or before a given run, among `size`
/// rows from `low` on. Each step probes 32 rows, one per lane, until one row is left.
struct RunSearch {
  int low = 0, size = 0;

  TESSERA_HD constexpr int stride() const { return (size + kWarp - 1) / kWarp; }
  /// The row that a lane probes, and whether its answer counts.
  TESSERA_HD constexpr int probe(int lane) const { return low + min_of(lane * stride(), size - 1); }
  TESSERA_HD constexpr bool counts(int lane) const { return lane * stride() < size; }
  /// The number of rows to skip, and the number of rows left after them. `before`: the number of
  /// lanes whose answer counts and whose row begins at or before the run.
  TESSERA_HD constexpr int skip(int before) const {
    return (before > 0 ? before - 1 : 0) * stride();
  }
  TESSERA_HD constexpr int left(int skipped) const { return min_of(size - skipped, stride()); }
};

/// The index, in the order by length, of the tile that a thread block takes in a round. Odd rounds
/// are reversed: the block with the longest tile of a round takes the shortest of the next one.
TESSERA_HD constexpr int place_of(int round, unsigned block, unsigned blocks) {
  const int from = round * blocks;
  return from + static_cast<int>(round % 2 == 0 ? block : blocks - 1 - block);
}

}  // namespace tessera::planning::spgemm
