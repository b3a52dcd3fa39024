#pragma once

// Operations across the lanes of a warp, or of a quad (four adjacent lanes). All lanes call.
namespace tessera::cuda {

inline constexpr int kLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// The thread's index in its CTA, read from the special register at each use, so that neither the
/// index nor values derived from it occupy a register.
__device__ __forceinline__ int thread_of_block() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  // Tells the compiler that the index is not negative: divisions take one instruction then.
  return static_cast<int>(thread % 1024);
}

/// Returns `value`, which must be equal in all lanes. The vote tells the compiler that it is, so
/// that values derived from it stay in uniform registers.
__device__ __forceinline__ bool agreed(bool value) { return __any_sync(kAllLanes, value); }

/// Inclusive prefix sum over the lanes of a warp.
template <class T>
__device__ __forceinline__ T sum_through(int lane, T value) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const T below = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

/// Butterfly reductions: every lane gets the same bits, and the order of additions is fixed.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

/// Transposes 4 x 4 items of kWords words within a quad: item i of lane j becomes item j of lane i.
template <int kWords = 1, class Word>
__device__ __forceinline__ void transpose_in_quad(Word (&word)[4 * kWords], int lane) {
#pragma unroll
  for (int away = 1; away <= 2; away *= 2) {
    const bool upper = (lane & away) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & away) continue;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        Word &low = word[i * kWords + w], &high = word[(i | away) * kWords + w];
        const Word other = __shfl_xor_sync(kAllLanes, upper ? low : high, away);
        (upper ? low : high) = other;
      }
    }
  }
}

}  // namespace tessera::cuda
