#pragma once

#include <string>

#include "src/select/tuning.hpp"

namespace tessera::api {

/// The tuning of the device with that name. The file is read on first use and kept until the
/// process ends. If the file cannot be used, the result says why; the function throws only if
/// memory runs out.
const planning::Tuning& tuning_of(const std::string& device);

}  // namespace tessera::api
