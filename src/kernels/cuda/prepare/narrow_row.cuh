#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/walk/quantize.hpp"

// A warp converts a row of elements, also to FP8, in words of four where strides allow.
namespace tessera::cuda {

inline constexpr int kRowThreads = 256, kRowWarps = kRowThreads / kLanes;
inline constexpr int kWide = 4;  // elements of a word

/// An element of FP8.
template <DType kDtype>
struct Narrow {
  std::uint8_t code;
};

template <class T>
struct Conversion {
  static __device__ T of(float value, float) { return from_float<T>(value); }
};
template <DType kDtype>
struct Conversion<Narrow<kDtype>> {
  static __device__ Narrow<kDtype> of(float value, float scale) {
    return {planning::fp8_of(kDtype, value, scale)};
  }
};

template <class T>
struct alignas(sizeof(T) * kWide) Word {
  T elements[kWide];
};

/// A warp copies `dim` elements. `scale_of(d)`: the factor of element d; it is the same for all of
/// a word.
template <bool kIsWide, class In, class Out, class ScaleOf>
__device__ void convert_row(const In* in, std::int64_t in_step, Out* out, std::int64_t out_step,
                            std::int64_t dim, const ScaleOf& scale_of) {
  const int lane = threadIdx.x % kLanes;
  if constexpr (kIsWide) {
    for (std::int64_t d = lane * kWide; d < dim; d += kLanes * kWide) {
      const auto word = *reinterpret_cast<const Word<In>*>(in + d);
      const float scale = scale_of(d);
      Word<Out> made;
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        made.elements[i] = Conversion<Out>::of(to_float(word.elements[i]), scale);
      *reinterpret_cast<Word<Out>*>(out + d) = made;
    }
  } else {
#pragma unroll 1  // more copies of the loop spill
    for (std::int64_t d = lane; d < dim; d += kLanes)
      out[d * out_step] = Conversion<Out>::of(to_float(in[d * in_step]), scale_of(d));
  }
}

/// Whether words of four elements start at this address.
inline bool starts_word(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<unsigned>(kWide * size_of(dtype)) ==
         0;
}

/// A grid for `items`, `per_block` at a time; a loop reaches those beyond.
inline dim3 grid_for_items(std::int64_t items, int per_block) {
  constexpr std::int64_t kMaxBlocks = 132 * 32;
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return grid_of(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace tessera::cuda
