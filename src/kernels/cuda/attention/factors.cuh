#pragma once

#include <cstdint>

#include <tessera/tensor.hpp>

// The factors of queries, keys and values in FP8.
namespace tessera::cuda::attention {

/// One factor for each outer index (sequence or page) and head; strides in elements, 0 where
/// they share one.
struct RowFactors {
  const float* data = nullptr;  // null: 1
  std::int64_t outer = 0, head = 0;

  __device__ __forceinline__ float of(int at, int of_head) const {
    return data ? __ldg(data + at * outer + of_head * head) : 1.0f;
  }
};

/// `scale` has the form [1], [heads] or [outer, heads].
inline RowFactors row_factors(const Tensor& scale) {
  RowFactors factors;
  if (!scale) return factors;
  factors.data = static_cast<const float*>(scale.data);
  const auto stride = [&](int dim) { return scale.size(dim) > 1 ? scale.stride(dim) : 0; };
  factors.head = stride(scale.rank - 1);
  if (scale.rank > 1) factors.outer = stride(0);
  return factors;
}

}  // namespace tessera::cuda::attention
