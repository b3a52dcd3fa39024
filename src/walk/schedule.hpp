#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::planning {

/// Row indices in descending order of length, so that long rows start first. The sort is stable.
std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths);

}  // namespace tessera::planning
