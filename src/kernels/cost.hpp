#pragma once

#include "src/kernels/family.hpp"

// Time estimates for families that need only the problem's FLOPs and bytes.
namespace tessera::planning {

/// Seconds of a kernel that reaches the usual fraction of the device's ceilings, without launch
/// overhead.
double usual_seconds(const KernelRow& row, Backend backend, const AnyShape& shape,
                     const DeviceFacts& device);

/// The dtype that a problem's kernels multiply; of two, that of a.
DType operand_dtype(const AnyShape& shape);

/// Seconds before the first tile starts: the kernel launch, or waking the threads.
double overhead_seconds(const DeviceFacts& device);

}  // namespace tessera::planning
