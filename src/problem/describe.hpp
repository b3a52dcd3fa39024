#pragma once

#include <string>

#include "src/problem/shape.hpp"

namespace tessera::planning {

/// Shapes and dtypes in one line: what Plan::signature holds and explain prints.
std::string describe(const AnyShape& shape);

}  // namespace tessera::planning
