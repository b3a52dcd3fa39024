#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "src/kernels/cuda/common/check.hpp"

namespace tessera::ceilings {

/// Fills GPU memory with normally distributed random numbers, repeating the same megabyte. Zeros
/// would take less power, and a card at its power limit would then run faster than with real data.
template <class Element>
void fill_with_normals(void* memory, std::size_t bytes) {
  constexpr std::size_t kPattern = std::size_t{1} << 20;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<Element> pattern;
  for (std::size_t i = 0; i < kPattern / sizeof(Element); ++i)
    pattern.push_back(Element(normal(generator)));
  auto* to = static_cast<char*>(memory);
  std::size_t filled = std::min(bytes, kPattern);
  cuda::check(cudaMemcpy(to, pattern.data(), filled, cudaMemcpyHostToDevice), "cudaMemcpy");
  while (filled < bytes) {
    const std::size_t more = std::min(filled, bytes - filled);
    cuda::check(cudaMemcpy(to + filled, to, more, cudaMemcpyDeviceToDevice), "cudaMemcpy");
    filled += more;
  }
  // Device-to-device copies are asynchronous, and the streams of the steps do not wait for them.
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace tessera::ceilings
