#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/spgemm_walk.hpp"

// How warps read the lists of sparse times sparse; see src/walk/spgemm_walk.hpp.
namespace tessera::cuda::spgemm {

using planning::spgemm::Lists;
using planning::spgemm::RightBlocks;
using planning::spgemm::Search;

/// Asks for the lists to be brought into L2: a search is a chain of reads that each wait for the
/// one before.
__device__ inline void prefetch(const Lists& lists, int thread, int threads) {
  const auto list = [&](const planning::spgemm::Words& words, int entries) {
    constexpr int kEach = 32;  // a line of L2, where entries are neighbours
    for (std::int64_t i = std::int64_t{thread} * kEach; i < entries; i += threads * kEach)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(words.data + i * words.step));
  };
  list(lists.offsets, lists.rows + 1);
  list(lists.indices, lists.stored);
  if (lists.placed) list(lists.positions, lists.stored);
}

/// Runs of the result as a warp finds them.
template <int kRun>
struct ResultRuns : planning::spgemm::ResultRuns<kRun> {
  using typename planning::spgemm::ResultRuns<kRun>::Run;

  /// All lanes of a warp together.
  __device__ Run run(int index, int lane) const {
    int low = 0, size = this->lists.rows;
    while (size > 1) {
      const planning::spgemm::RunSearch rows{low, size};
      const bool before = this->begin(rows.probe(lane)) <= index && rows.counts(lane);
      const int skip = rows.skip(__popc(__ballot_sync(kAllLanes, before)));
      low += skip;
      size = rows.left(skip);
    }
    return this->run_of(index, low);
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
