#pragma once

#include <cstdint>

#include "src/plan/launch_count.hpp"

namespace tessera::cuda::sm90::attention {

/// How many have counted before in this launch. Who gets limit - 1 is the last, and has cleared the
/// word. `begun`: the caller has counted there before, so the tag is there.
__device__ __forceinline__ int count_up(std::uint64_t* word, std::uint64_t tag, int limit,
                                        bool begun) {
  using planning::LaunchCount;
  auto* at = reinterpret_cast<unsigned long long*>(word);
  int count = 0;
  if (!begun) {
    const unsigned long long seen = __ldcg(at);
    // Where the exchange fails, another one of this launch was quicker, and the tag is there.
    begun = LaunchCount::holds(seen, tag, limit) || atomicCAS(at, seen, tag + 1) != seen;
  }
  if (begun) count = static_cast<int>(LaunchCount::count_of(atomicAdd(at, 1ull), tag));
  if (count == limit - 1) *at = 0;
  return count;
}

}  // namespace tessera::cuda::sm90::attention
