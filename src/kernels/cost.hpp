#pragma once

#include <algorithm>

#include <tessera/device.hpp>

#include "src/kernels/family.hpp"

// Time estimates for families that need only the problem's FLOPs and bytes; rates that several
// share.
namespace tessera::planning {

/// Seconds of a kernel that reaches the usual fraction of the device's ceilings, without launch
/// overhead.
double usual_seconds(const KernelRow& row, Backend backend, const AnyShape& shape,
                     const DeviceFacts& device);

/// The dtype that a problem's kernels multiply; of two, that of a.
DType operand_dtype(const AnyShape& shape);

/// Seconds before the first tile starts: the kernel launch, or waking the threads.
double overhead_seconds(const DeviceFacts& device);

/// FLOP/s of mma.sync on one SM. Before Hopper it reaches the tensor cores' rate, on Hopper two
/// thirds (measured). From Blackwell on its rate per SM and clock is taken to be Hopper's.
inline double mma_flops_per_sm(const DeviceFacts& device) {
  const double rate = device.tensor_tflops * 1e12 / std::max(device.units, 1);
  const int capability = device.compute_capability;
  if (capability / 10 == 9) return rate * 640 / 970;
  if (capability / 10 == 10) return rate / 3;
  return rate;
}

}  // namespace tessera::planning
