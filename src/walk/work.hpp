#pragma once

#include "src/problem/shape.hpp"

namespace tessera::planning {

/// The work of a problem: useful FLOPs, and a lower bound of the bytes to move.
struct Work {
  double flops = 0;
  double bytes = 0;
};
Work work_of(const AnyShape& shape);
Work work_of(const MatmulShape& shape);
Work work_of(const AttentionShape& shape);

}  // namespace tessera::planning
