#pragma once

#include <string>

#include <tessera/device.hpp>
#include <tessera/execution.hpp>

#include "src/kernels/reasons.hpp"

namespace tessera::planning {

/// A reason in words: what was expected and what came.
std::string to_text(const Reason& reason, const DeviceFacts& device);

}  // namespace tessera::planning
