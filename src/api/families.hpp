#pragma once

#include "src/select/select.hpp"

namespace tessera::api {

/// All kernel families; those whose backend is in this build can be launched.
planning::Families families();

}  // namespace tessera::api
