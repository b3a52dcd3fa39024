#pragma once

#include <memory>

#include "src/select/select.hpp"

namespace tessera::api {

/// The properties of a device. They are read once; the reference is valid until the process ends.
const DeviceFacts& facts_of(const Device& device);

/// The plan for a problem with this shape, on the device of its tensors. Each thread caches the
/// plans of recent shapes.
std::shared_ptr<const planning::Planned> plan_for(const planning::AnyShape& shape,
                                                  const Execution& execution);

}  // namespace tessera::api
