#pragma once

#include <string>

#include "src/problem/shape.hpp"

namespace tessera::planning {

/// The signature of a problem: its shapes and dtypes in one line. It is Plan::signature, and what
/// `explain` prints as the problem.
std::string describe(const AnyShape& shape);

}  // namespace tessera::planning
