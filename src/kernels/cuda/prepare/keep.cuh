#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/conversions.hpp"

// Selecting columns of a row by their keys, per warp and in order. All lanes call together.
namespace tessera::cuda {

/// Calls `use(column, key, exists)` for all columns of a row, with keys from `load(column)`. The
/// last round calls it beyond the row too, with exists false.
template <class Load, class Use>
__device__ void for_each_key(std::int64_t cols, const Load& load, const Use& use) {
  constexpr int kAhead = 4;  // loads in flight
  for (std::int64_t first = threadIdx.x % kLanes; first - threadIdx.x % kLanes < cols;
       first += kAhead * kLanes) {
    std::uint32_t key[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t col = first + i * kLanes;
      key[i] = col < cols ? load(col) : 0;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t col = first + i * kLanes;
      use(col, key[i], col < cols);
    }
  }
}

/// Writes the columns whose keys are above the cut, and the first `cut.ties` whose keys equal it,
/// into `out` from `begin` up to `end`. Returns the end that they would have with enough room.
template <class Load>
__device__ std::int64_t write_kept(std::int64_t cols, const Load& load, planning::SelectCut cut,
                                   const planning::IndexSink& out, std::int64_t begin,
                                   std::int64_t end) {
  const unsigned lane = threadIdx.x % 32, before_lane = (1u << lane) - 1;
  std::int64_t at = begin;
  for_each_key(cols, load, [&](std::int64_t col, std::uint32_t key, bool exists) {
    const unsigned equal = __ballot_sync(kAllLanes, exists && key == cut.key);
    const bool stays_as_tie = (equal >> lane & 1) && __popc(equal & before_lane) < cut.ties;
    const bool stays = (exists && key > cut.key) || stays_as_tie;
    const unsigned all = __ballot_sync(kAllLanes, stays);
    const std::int64_t slot = at + __popc(all & before_lane);
    if (stays && slot < end) out.set(slot, col);
    at += __popc(all);
    cut.ties -= __popc(equal);
  });
  return at;
}

}  // namespace tessera::cuda
