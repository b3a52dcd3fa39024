#pragma once

#include "src/select/select.hpp"

namespace tessera::api {

/// All kernel families, with launch functions for the backends that this build contains.
planning::Families families();

}  // namespace tessera::api
