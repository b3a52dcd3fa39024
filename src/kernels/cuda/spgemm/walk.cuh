#pragma once

#include <cstdint>

#include "src/walk/list_walk.hpp"

// What kernels of sparse times sparse walk. Nothing is listed beforehand: which blocks of A and B
// meet in a block of the result is looked up while the result is computed, so the result may have
// any pattern and a captured graph follows a new one. No content of a list leads outside a tensor.
namespace tessera::cuda::spgemm {

/// A list of either index dtype, read by its low words: sizes are below 2^31, so they say all that
/// a list may say. Reads have no branches and can be many at a time.
struct Words {
  const std::int32_t* data = nullptr;
  std::int64_t step = 1;  // words from one entry to the next

  Words() = default;
  Words(const planning::Indices& list, std::int64_t stride)
      : data(list.wide ? reinterpret_cast<const std::int32_t*>(list.wide) : list.narrow),
        step(list.wide ? 2 * stride : stride) {}
  __device__ int operator[](int entry) const { return data[entry * step]; }
};

/// The lists of a matrix by row, or by column where they are transposed lists.
struct Lists {
  Words offsets, indices, positions;
  bool placed = false;  // positions say where blocks are stored; else entries do
  int rows = 0, cols = 0, stored = 0;

  Lists() = default;
  explicit Lists(const planning::BsrView& view)
      : offsets(view.offsets, view.offset_stride),
        indices(view.indices, view.index_stride),
        positions(view.positions, 1),
        placed(static_cast<bool>(view.positions)),
        rows(static_cast<int>(view.block_rows)),
        cols(static_cast<int>(view.block_cols)),
        stored(static_cast<int>(view.stored)) {}

  /// Asks for the lists to be brought into L2: a search is a chain of reads that each wait for the
  /// one before.
  __device__ void prefetch(int thread, int threads) const {
    const auto list = [&](const Words& words, int entries) {
      constexpr int kEach = 32;  // a line of L2, where entries are neighbours
      for (std::int64_t i = std::int64_t{thread} * kEach; i < entries; i += threads * kEach)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(words.data + i * words.step));
    };
    list(offsets, rows + 1);
    list(indices, stored);
    if (placed) list(positions, stored);
  }

  /// Entries [begin, end).
  struct Range {
    int begin = 0, end = 0;
    __device__ int size() const { return end - begin; }
  };
  __device__ Range range(int row) const {
    const int begin = offsets[row], end = offsets[row + 1];
    const int first = min(max(begin, 0), stored);
    return {first, min(max(end, first), stored)};
  }
  /// Where an entry's block is stored; -1 where the list holds no such place.
  __device__ int position(int entry) const {
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

  __device__ Search() = default;
  __device__ Search(const RightBlocks& blocks, int k, int j) {
    const int line = blocks.transposed ? j : k, last = blocks.stored.rows - 1;
    if (last < 0) return;
    const Lists::Range range = blocks.stored.range(min(max(line, 0), last));
    wanted = blocks.transposed ? k : j;
    if (line < 0 || line > last || wanted < 0) return;
    low = range.begin;
    high = range.end;
  }
  __device__ bool open() const { return low < high; }
  __device__ int middle() const { return low + (high - low) / 2; }
  /// `seen`: what entry middle() says.
  __device__ void take(int seen) {
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

  __host__ __device__ std::int64_t count() const {
    return std::int64_t{lists.stored} / kRun + lists.rows;
  }

  struct Run {
    int row = 0, first = 0;  // its row of blocks; where its first block is stored
    int size = 0;
  };
  /// All lanes of a warp together.
  __device__ Run run(int index, int lane) const {
    // The last row that begins at or before it, among `size` from `low` on.
    int low = 0, size = lists.rows;
    while (size > 1) {
      const int stride = (size + 31) / 32, probe = min(lane * stride, size - 1);
      const bool before = begin(low + probe) <= index && lane * stride < size;
      const int count = __popc(__ballot_sync(0xFFFFFFFFu, before));
      const int skip = (count > 0 ? count - 1 : 0) * stride;
      low += skip;
      size = min(size - skip, stride);
    }
    const Lists::Range range = lists.range(low);
    const int skip = (index - begin(low)) * kRun, left = range.size() - skip;
    if (skip < 0 || left <= 0) return {low, range.begin, 0};
    return {low, range.begin + skip, min(left, kRun)};
  }

 private:
  __device__ int begin(int row) const {
    return min(max(lists.offsets[row], 0), lists.stored) / kRun + row;
  }
};

/// A stored block of the result that symbolic has looked up for the kernels.
struct alignas(16) PlannedBlock {
  int row, entry, column;  // of blocks; where it is stored
  int pairs;               // that meet in it
};

/// The result's lists as symbolic found them, written where the caller wants them. `to` is empty
/// where the result has lists of its own.
struct ListCopy {
  Lists from;
  planning::IndexSink to_offsets, to_columns;
  std::int64_t offset_stride = 1, column_stride = 1;

  __device__ void run(int thread, int threads) const {
    if (!to_offsets) return;
    for (std::int64_t i = thread; i <= from.rows; i += threads)
      to_offsets.set(i * offset_stride, from.offsets[static_cast<int>(i)]);
    for (std::int64_t i = thread; i < from.stored; i += threads)
      to_columns.set(i * column_stride, from.indices[static_cast<int>(i)]);
  }
};

}  // namespace tessera::cuda::spgemm
