#pragma once

#include "src/kernels/family.hpp"

namespace tessera::planning {

/// Maximum number of parts per call: the parts are kernel parameters.
inline constexpr int kMaxGpuMergeParts = 64;

KernelFamily sm90_merge_family();
KernelFamily sm80_merge_family();

}  // namespace tessera::planning
