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

// The same in pieces, where one fence serves both: a load before it, a store after it.
__device__ __forceinline__ std::int32_t load_relaxed(const std::int32_t* word) {
  std::int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void fence_of_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void raise_relaxed(std::int32_t* word, std::int32_t value) {
  asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void add_to_global(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

}  // namespace tessera::cuda::attention_backward
