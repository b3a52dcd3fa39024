#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/plane.cuh"

namespace tessera::cuda::attention_backward {

/// Stores two adjacent columns.
__device__ __forceinline__ void store_pair(const HeadRows& to, std::int64_t row, int column,
                                           float low, float high) {
  if (to.wide && to.dtype == DType::f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(to.data) + row + column) = {low, high};
    return;
  }
  if (to.wide) {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(to.data) + row + column) =
        pack(to.dtype, low, high);
    return;
  }
  Plane plane;
  plane.data = to.data, plane.dtype = to.dtype;
  plane.store(row + column * to.col, low);
  plane.store(row + (column + 1) * to.col, high);
}

}  // namespace tessera::cuda::attention_backward
