#pragma once

#include "src/kernels/cuda/prepare/convert.hpp"
#include "src/walk/quantize.hpp"

namespace tessera::cuda {

/// `quantize` on a GPU stream; cpu/quantize.hpp has the same function for host memory.
void quantize(const planning::QuantizeShape& shape, bool compute_scales, const Place& place);

}  // namespace tessera::cuda
