#pragma once

#include <string>

#include <tessera/device.hpp>
#include <tessera/execution.hpp>

#include "src/kernels/reasons.hpp"

namespace tessera::planning {

/// The text of a reason: what the row expects and what the problem has.
std::string to_text(const Reason& reason, const DeviceFacts& device);

}  // namespace tessera::planning
