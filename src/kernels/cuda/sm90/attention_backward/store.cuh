#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/common/element.cuh"
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
template <class Element, int kCount>
__device__ __forceinline__ void store_lines(std::uint16_t* row, int columns, bool exists, int lane,
                                            const auto& x) {
#pragma unroll
  for (int set = 0; set < kCount / 8; ++set) {
    std::uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      word[i] = Precision<Element>::pack(x(set * 8 + i * 2), x(set * 8 + i * 2 + 1));
    transpose_in_quad(word, lane % 4);
    const int column = (set * 4 + lane % 4) * 8;
    if (exists && column < columns)
      *reinterpret_cast<uint4*>(row + column) = {word[0], word[1], word[2], word[3]};
  }
}

/// Stores columns `first`, `first` + 1, `first` + 8, ... of a row with any strides.
template <class To, int kCount>
__device__ __forceinline__ void store_elements(To* row, std::int64_t apart, int columns, int first,
                                               const auto& x) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const int column = first + i * 4;
    if (column >= columns) break;
    row[column * apart] = from_float<To>(x(i));
    row[(column + 1) * apart] = from_float<To>(x(i + 1));
  }
}

/// Stores a consumer's dK or dV, times `scale`. This code runs once per tile, so that it is not in
/// the instruction cache: it is short, and the second half of the rows finds it there.
template <int kColumns>
__device__ __forceinline__ void store_gradient(const HeadRows& to, const KeyRows& keys, int thread,
                                               const float (&sum)[kColumns / 2], float scale) {
  const Fragment fragment(thread);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int key = fragment.row(half);
    const bool exists = keys.first + key < keys.kv_length, kept = (keys.kept >> key & 1) != 0;
    const std::int64_t row = keys.batch * to.batch + keys.share * to.head +
                             (std::int64_t{keys.kv_begin} + keys.first + key) * to.row;
    constexpr int kCount = kColumns / 4;
    const auto x = [&](int i) {
      const float* const of = sum + i / 2 * 4 + i % 2;
      return kept ? (half == 0 ? of[0] : of[2]) * scale : 0.0f;
    };
    const int first = fragment.col(0);
    if (to.dtype == DType::f32) {
      float* const line = static_cast<float*>(to.data) + row;
      if (!exists) continue;
      if (!to.wide) {
        store_elements<float, kCount>(line, to.col, to.columns, first, x);
        continue;
      }
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        if (first + i * 8 < to.columns)
          *reinterpret_cast<float2*>(line + first + i * 8) = {x(i * 2), x(i * 2 + 1)};
      continue;
    }
    const auto store_as = [&]<class To>() {
      std::uint16_t* const line = static_cast<std::uint16_t*>(to.data) + row;
      if (to.wide)
        store_lines<To, kCount>(line, to.columns, exists, fragment.lane, x);
      else if (exists)
        store_elements<To, kCount>(reinterpret_cast<To*>(line), to.col, to.columns, first, x);
    };
    if (to.dtype == DType::bf16)
      store_as.template operator()<__nv_bfloat16>();
    else
      store_as.template operator()<__half>();
  }
}

}  // namespace tessera::cuda::sm90::attention_backward
