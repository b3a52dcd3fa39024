#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/spgemm_walk.hpp"

// Warp-level access to the lists of spgemm; see src/walk/spgemm_walk.hpp.
namespace tessera::cuda::spgemm {

using planning::spgemm::Lists;
using planning::spgemm::RightBlocks;
using planning::spgemm::Search;

/// Prefetches the lists into L2: a search is a chain of dependent reads.
__device__ inline void prefetch(const Lists& lists, int thread, int threads) {
  const auto list = [&](const planning::spgemm::Words& words, int entries) {
    constexpr int kEach = 32;  // entries in one L2 line, if contiguous
    for (std::int64_t i = std::int64_t{thread} * kEach; i < entries; i += threads * kEach)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(words.data + i * words.step));
  };
  list(lists.offsets, lists.rows + 1);
  list(lists.indices, lists.stored);
  if (lists.placed) list(lists.positions, lists.stored);
}

/// Runs of the result, found by a warp.
template <int kRun>
struct ResultRuns : planning::spgemm::ResultRuns<kRun> {
  using typename planning::spgemm::ResultRuns<kRun>::Run;

  /// The run with number `index`. All lanes of a warp call together.
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

/// A stored block of the result, with its position looked up by symbolic.
struct alignas(16) PlannedBlock {
  int row, entry, column;  // block row; stored position; block column
  int pairs;               // pairs of operand blocks
};

/// Copies the lists that symbolic found into the caller's tensors. `to_offsets` is empty if the
/// result has lists of its own.
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
