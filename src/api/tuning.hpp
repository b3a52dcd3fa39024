#pragma once

#include <string>

#include "src/select/tuning.hpp"

namespace tessera::api {

/// The tuning of the device of that name, read on first use and kept for the process. What is wrong
/// with its file is in the result; nothing is thrown but for want of memory.
const planning::Tuning& tuning_of(const std::string& device);

}  // namespace tessera::api
