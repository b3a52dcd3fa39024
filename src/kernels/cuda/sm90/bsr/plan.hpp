#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"

namespace tessera::planning {

/// The layout of a product on a row of sm90/bsr. The sparse side gives the rows of the product as
/// computed, the dense side its columns.
struct BsrLayout {
  std::int64_t rows = 0, cols = 0;
  std::int64_t tiles = 0;
  std::int64_t ctas = 0;  // thread blocks launched
};

/// Thread blocks per SM.
constexpr int bsr_ctas_per_sm(const Tile& tile) { return tile.warpgroups == 1 ? 3 : 1; }

KernelFamily sm90_bsr_family();

}  // namespace tessera::planning
