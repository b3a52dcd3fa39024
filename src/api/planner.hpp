#pragma once

#include <memory>

#include "src/select/select.hpp"

namespace tessera::api {

/// What a device is: read once, and valid for the life of the process.
const DeviceFacts& facts_of(const Device& device);

/// The plan for a problem whose shape is known, on the device that its tensors are on. Each thread
/// remembers the plans of the last shapes that it met.
std::shared_ptr<const planning::Planned> plan_for(const planning::AnyShape& shape,
                                                  const Execution& execution);

}  // namespace tessera::api
