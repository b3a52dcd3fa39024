#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/store.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"

namespace tessera::cuda::sm90::attention_backward {

/// The 64 keys of a consumer: from key `first` of a sequence on.
struct KeyRows {
  int batch, share, kv_begin, first, kv_length;
  std::uint64_t kept;  // keys that some query sees; the gradients of the others are zero
};

/// Stores the words of 16-bit gradients: the lanes of a quad exchange words until each has eight
/// adjacent columns.
template <class Element, int kColumns>
__device__ __forceinline__ void store_lines(std::uint16_t* row, int columns, bool exists, bool kept,
                                            int lane, int half, const float (&sum)[kColumns / 2],
                                            float scale) {
#pragma unroll
  for (int set = 0; set < kColumns / 32; ++set) {
    std::uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const pair = sum + (set * 4 + i) * 4 + half * 2;
      word[i] = kept ? Precision<Element>::pack(pair[0] * scale, pair[1] * scale) : 0;
    }
    transpose_in_quad(word, lane % 4);
    const int column = (set * 4 + lane % 4) * 8;
    if (exists && column < columns)
      *reinterpret_cast<uint4*>(row + column) = {word[0], word[1], word[2], word[3]};
  }
}

/// Stores a consumer's dK or dV, times `scale`.
template <int kColumns>
__device__ __forceinline__ void store_gradient(const HeadRows& to, const KeyRows& keys, int thread,
                                               const float (&sum)[kColumns / 2], float scale) {
  const Fragment fragment(thread);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = fragment.row(half);
    const bool exists = keys.first + key < keys.kv_length, kept = (keys.kept >> key & 1) != 0;
    const std::int64_t row = keys.batch * to.batch + keys.share * to.head +
                             (std::int64_t{keys.kv_begin} + keys.first + key) * to.row;
    if (to.wide && to.dtype != DType::f32) {
      std::uint16_t* const line = static_cast<std::uint16_t*>(to.data) + row;
      if (to.dtype == DType::bf16)
        store_lines<__nv_bfloat16, kColumns>(line, to.columns, exists, kept, fragment.lane, half,
                                             sum, scale);
      else
        store_lines<__half, kColumns>(line, to.columns, exists, kept, fragment.lane, half, sum,
                                      scale);
    } else if (exists) {
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const int column = fragment.col(i);
        if (column >= to.columns) break;
        const float* const pair = sum + i * 4 + half * 2;
        store_pair(to, row, column, kept ? pair[0] * scale : 0.0f, kept ? pair[1] * scale : 0.0f);
      }
    }
  }
}

}  // namespace tessera::cuda::sm90::attention_backward
