#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::planning {

/// Rows by falling length, so that long ones begin first; equal ones keep their order.
std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths);

}  // namespace tessera::planning
