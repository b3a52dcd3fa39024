#pragma once

#include "src/kernels/cuda/prepare/convert.hpp"
#include "src/walk/cache_rows.hpp"

// Caches of keys and values on a GPU stream; cpu/cache.hpp has the same functions for host memory.
namespace tessera::cuda {

void append(const planning::AppendShape& shape, const Place& place);

}  // namespace tessera::cuda
