#pragma once

#include "src/walk/quantize.hpp"

namespace tessera::cpu {

/// `quantize` in host memory. Arguments have been checked before.
void quantize(const planning::QuantizeShape& shape, bool compute_scales, int threads);

}  // namespace tessera::cpu
