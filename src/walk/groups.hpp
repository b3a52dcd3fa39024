#pragma once

#include <cstdint>

#include "src/walk/list_walk.hpp"

namespace tessera::planning {

/// Group offsets, which are not checked: kernels clamp them and treat decreasing ones as equal.
struct GroupView {
  Indices offsets;
  std::int64_t stride = 1;
  int groups = 0, length = 0;  // number of groups; length of the grouped dimension

  TESSERA_HD constexpr int offset(int index) const {
    return static_cast<int>(clamp_to(offsets[index * stride], 0, length));
  }
};

}  // namespace tessera::planning
