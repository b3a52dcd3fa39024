#pragma once

#include "src/problem/shape.hpp"
#include "src/select/tile_table.hpp"

namespace tessera::planning {

/// Milliseconds of a product of one sparse and one dense side that a row of sm90/bsr takes, before
/// what every kernel costs. Blocks are taken to lie anywhere with equal chance.
double bsr_sm90_ms(const MatmulShape& shape, const Tile& tile, const DeviceFacts& device,
                   double bytes);

}  // namespace tessera::planning
