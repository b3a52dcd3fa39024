#pragma once

#include <string>
#include <vector>

#include "src/problem/shape.hpp"
#include "src/select/tile_table.hpp"

namespace tessera::planning {

/// What a Hopper row that does `op` does not take of it, added to `reasons`.
void reject_sm90(const KernelRow& row, Op op, const AnyShape& shape,
                 std::vector<std::string>& reasons);

}  // namespace tessera::planning
