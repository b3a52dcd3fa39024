#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/store.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"

namespace tessera::cuda::sm90::attention_backward {

/// The 64 keys of a consumer: from key `first` of a sequence on.
struct KeyRows {
  int batch, kv_head, kv_begin, first, kv_length;
  std::uint64_t kept;  // keys that some query sees; the gradients of the others are zero
};

/// Stores a consumer's dK or dV, times `scale`.
template <int kColumns>
__device__ __forceinline__ void store_gradient(const HeadRows& to, const KeyRows& keys, int thread,
                                               const float (&sum)[kColumns / 2], float scale) {
  const Fragment fragment(thread);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = fragment.row(half);
    if (keys.first + key >= keys.kv_length) continue;
    const bool kept = (keys.kept >> key & 1) != 0;
    const std::int64_t row = keys.batch * to.batch + keys.kv_head * to.head +
                             (std::int64_t{keys.kv_begin} + keys.first + key) * to.row;
#pragma unroll
    for (int group = 0; group < kColumns / 8; ++group) {
      if (group * 8 >= to.columns) break;
      const float low = sum[group * 4 + half * 2] * scale;
      const float high = sum[group * 4 + half * 2 + 1] * scale;
      store_pair(to, row, fragment.col(group), kept ? low : 0.0f, kept ? high : 0.0f);
    }
  }
}

}  // namespace tessera::cuda::sm90::attention_backward
