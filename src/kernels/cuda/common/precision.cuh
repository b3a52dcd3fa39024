#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include <tessera/tensor.hpp>

namespace tessera::cuda {

/// Sizes that follow from the width of an element.
template <class Element>
struct ElementWidth {
  static constexpr int kBytes = sizeof(Element);
  static constexpr int kLine = 128 / kBytes;     // elements of a 128-byte line
  static constexpr int kMmaDepth = 32 / kBytes;  // depth of one MMA
};

/// All that kernels know about an element type of tensor-core operands.
template <class Element>
struct Precision;

template <>
struct Precision<__half> : ElementWidth<__half> {
  static constexpr DType kDtype = DType::f16;
  static constexpr std::uint32_t kTwoOnes = 0x3C003C00;
  static constexpr float kMax = 65504.0f;  // largest finite value; P must not exceed it

  /// Packs two elements into a word, `low` first in memory.
  __device__ __forceinline__ static std::uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ __forceinline__ static float2 unpack(std::uint32_t pair) {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
};

template <>
struct Precision<__nv_bfloat16> : ElementWidth<__nv_bfloat16> {
  static constexpr DType kDtype = DType::bf16;
  static constexpr std::uint32_t kTwoOnes = 0x3F803F80;
  static constexpr float kMax = 3.38953139e38f;

  __device__ __forceinline__ static std::uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ __forceinline__ static float2 unpack(std::uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  }
};

/// Multiplied by wgmma alone; elsewhere converted to f16 before it is multiplied.
template <>
struct Precision<__nv_fp8_e4m3> : ElementWidth<__nv_fp8_e4m3> {
  static constexpr DType kDtype = DType::e4m3;

  /// Packs four elements into a word, `a` first in memory. What is too large becomes 448.
  __device__ __forceinline__ static std::uint32_t pack(float a, float b, float c, float d) {
    std::uint32_t word;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return word;
  }
  /// The elements in the lower and in the upper half of a word, as pairs of f16.
  __device__ __forceinline__ static std::uint32_t low_as_f16(std::uint32_t word) {
    return as_f16(static_cast<std::uint16_t>(word));
  }
  __device__ __forceinline__ static std::uint32_t high_as_f16(std::uint32_t word) {
    return as_f16(static_cast<std::uint16_t>(word >> 16));
  }

 private:
  __device__ __forceinline__ static std::uint32_t as_f16(std::uint16_t pair) {
    std::uint32_t words;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(words) : "h"(pair));
    return words;
  }
};

}  // namespace tessera::cuda
