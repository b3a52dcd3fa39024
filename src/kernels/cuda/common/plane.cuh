#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/element.cuh"

namespace tessera::cuda {

/// A matrix, or a batch of them, of any float dtype and strides (in elements); `data` is null if
/// absent.
struct Plane {
  void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t row = 0, col = 0, batch = 0;

  __device__ std::int64_t at(int r, int c, int b) const { return r * row + c * col + b * batch; }
  __device__ float load_at(const char* at) const {
    if (dtype == DType::f32) return *reinterpret_cast<const float*>(at);
    if (dtype == DType::bf16) return to_float(*reinterpret_cast<const __nv_bfloat16*>(at));
    return to_float(*reinterpret_cast<const __half*>(at));
  }
  __device__ void store_at(char* at, float value) const {
    if (dtype == DType::f32) {
      *reinterpret_cast<float*>(at) = value;
    } else if (dtype == DType::bf16) {
      *reinterpret_cast<__nv_bfloat16*>(at) = from_float<__nv_bfloat16>(value);
    } else {
      *reinterpret_cast<__half*>(at) = from_float<__half>(value);
    }
  }
  __device__ int element_bytes() const { return dtype == DType::f32 ? 4 : 2; }
  __device__ float load(std::int64_t element) const {
    return load_at(static_cast<const char*>(data) + element * element_bytes());
  }
  __device__ void store(std::int64_t element, float value) const {
    store_at(static_cast<char*>(data) + element * element_bytes(), value);
  }
};

}  // namespace tessera::cuda
