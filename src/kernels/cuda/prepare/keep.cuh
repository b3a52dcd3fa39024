#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/conversions.hpp"

// A warp and the keys of a row: which columns stay, in their order. All lanes call together.
namespace tessera::cuda {

/// Calls `use(column, key, whether they exist)` for as many keys as `load(column)` gives.
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

/// Writes the columns whose keys are above the cut, and the first ties at it, from `begin` on up to
/// `end`. Returns where they would end if there were room for all.
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
