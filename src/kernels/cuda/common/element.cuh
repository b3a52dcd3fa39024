#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>

#include <tessera/error.hpp>
#include <tessera/tensor.hpp>

#include "src/core/check.hpp"
#include "src/kernels/cuda/common/precision.cuh"

namespace tessera::cuda {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

/// Rounds to nearest even.
template <class T>
__device__ inline T from_float(float x) {
  return static_cast<T>(x);
}

/// Packs two elements of a 16-bit dtype into a word, `low` first in memory.
__device__ __forceinline__ std::uint32_t pack(DType dtype, float low, float high) {
  if (dtype == DType::bf16) return Precision<__nv_bfloat16>::pack(low, high);
  return Precision<__half>::pack(low, high);
}

__device__ __forceinline__ float2 unpack(DType dtype, std::uint32_t pair) {
  if (dtype == DType::bf16) return Precision<__nv_bfloat16>::unpack(pair);
  return Precision<__half>::unpack(pair);
}

/// Calls `use` with a value of the C++ type of a float dtype.
template <class Use>
void with_element(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::f32:
      return use(float{});
    case DType::f16:
      return use(__half{});
    case DType::bf16:
      return use(__nv_bfloat16{});
    default:
      throw Error(ErrorCode::unsupported,
                  std::string("expected dtype f32, f16 or bf16, got ") + to_string(dtype));
  }
}

/// Calls visit.template operator()<Element>() with the type of a dtype that a kernel row supports.
/// `kDtypes`: the row's dtypes.
template <unsigned kDtypes, class Visit>
void with_multiplied(DType dtype, const Visit& visit) {
  static_assert(
      kDtypes != 0 && (kDtypes & ~core::dtypes({DType::f16, DType::bf16, DType::e4m3})) == 0,
      "a kernel row states a dtype that has no Precision");
  if constexpr ((kDtypes & core::dtypes({DType::bf16})) != 0) {
    if (dtype == DType::bf16) return visit.template operator()<__nv_bfloat16>();
  }
  if constexpr ((kDtypes & core::dtypes({DType::f16})) != 0) {
    if (dtype == DType::f16) return visit.template operator()<__half>();
  }
  if constexpr ((kDtypes & core::dtypes({DType::e4m3})) != 0) {
    if (dtype == DType::e4m3) return visit.template operator()<__nv_fp8_e4m3>();
  }
}

}  // namespace tessera::cuda
