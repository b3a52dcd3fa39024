#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/common/check.hpp"

namespace tessera::cuda {

/// Sizes of a grid; kernels stride over what a grid cannot name.
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  constexpr std::int64_t kMaxX = 0x7fffffff, kMax = 0xffff;
  return dim3(static_cast<unsigned>(std::min(x, kMaxX)), static_cast<unsigned>(std::min(y, kMax)),
              static_cast<unsigned>(std::min(z, kMax)));
}

/// An empty grid launches nothing. `name` is the kernel's, for errors.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, int threads, void* stream,
            const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = static_cast<unsigned>(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace tessera::cuda
