#pragma once

#include <tessera/plan.hpp>

namespace tessera::planning {

/// The problem with all of its tensors on that device, so that its shape is one of a problem there:
/// for plans of problems without data, whose tensors may be described on any device.
AnyProblem on_device(AnyProblem problem, const Device& device);

}  // namespace tessera::planning
