#pragma once

#include <cstdint>

// Turn counters: the sums of dQ of a block of queries are added in the order of key tiles.
namespace tessera::cuda::attention_backward {

__device__ __forceinline__ std::int32_t load_acquired(const std::int32_t* word) {
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void raise_released(std::int32_t* word, std::int32_t value) {
  asm volatile("red.release.gpu.global.max.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

}  // namespace tessera::cuda::attention_backward
