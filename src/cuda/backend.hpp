#pragma once

#include <tessera/device.hpp>
#include <tessera/execution.hpp>
#include <tessera/plan.hpp>

#include "src/plan/shape.hpp"

// What the GPU backends offer to the layers above: no CUDA type crosses this line.
namespace tessera::cuda {

/// GPUs that the driver shows; 0 where there is no driver.
int device_count();

/// Throws `Error` where there is no such device.
DeviceFacts device_facts(int index);

/// Whether this build holds the row's kernel: TESSERA_KERNELS may leave rows out.
bool has_kernel(Backend backend, int row);

/// Launches `plan.kernel` of `plan.backend` on the problem's device and `execution.stream`. The
/// problem has been checked against the plan. The caller's current device is unchanged afterwards.
void run(const Plan& plan, const AnyProblem& problem, const planning::AnyShape& shape,
         const Execution& execution);

}  // namespace tessera::cuda
