#pragma once

#include "src/kernels/family.hpp"

// What families share that estimate time from the problem's work alone.
namespace tessera::planning {

/// Seconds of a kernel that reaches the usual share of its device's ceilings, without a launch.
double usual_seconds(const KernelRow& row, Backend backend, const AnyShape& shape,
                     const DeviceFacts& device);

/// Before the first tile starts: a launch, or waking the threads.
double overhead_seconds(const DeviceFacts& device);

}  // namespace tessera::planning
