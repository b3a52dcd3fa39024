#pragma once

#include <cstdint>

#include "src/walk/launch_count.hpp"

namespace tessera::cuda {

/// Store with release, load with acquire, at GPU scope: a thread that reads the stored value also
/// sees the storing thread's earlier writes, and those of earlier grids that it had seen.
__device__ __forceinline__ void store_released(std::uint64_t* word, std::uint64_t value) {
  __threadfence();
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ std::uint64_t load_acquired(const std::uint64_t* word) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

/// Increments a counter and returns its value before, within this launch. The caller that gets
/// limit - 1 is the last; the word is 0 again then. `begun`: the caller has counted there before in
/// this launch, so the word has this launch's tag.
__device__ __forceinline__ int count_up(std::uint64_t* word, std::uint64_t tag, int limit,
                                        bool begun) {
  using planning::LaunchCount;
  auto* at = reinterpret_cast<unsigned long long*>(word);
  int count = 0;
  if (!begun) {
    const unsigned long long seen = __ldcg(at);
    // If the exchange fails, another thread of this launch was first and has written the tag.
    begun = LaunchCount::holds(seen, tag, limit) || atomicCAS(at, seen, tag + 1) != seen;
  }
  if (begun) count = static_cast<int>(LaunchCount::count_of(atomicAdd(at, 1ull), tag));
  if (count == limit - 1) *at = 0;
  return count;
}

}  // namespace tessera::cuda
