#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"

namespace tessera::planning {

/// The layout of a product on a row of sm80/product. The sparse side gives the rows of the product
/// as computed, the dense side its columns. With groups of rows, b gives the rows.
struct Sm80ProductLayout {
  std::int64_t rows = 0, cols = 0;
  std::int64_t tiles = 0;  // with groups: an upper bound
  std::int64_t ctas = 0;   // thread blocks launched, one per SM
};

/// Warps of a thread block: two per scheduler of an SM, so that a thread may have 255 registers.
constexpr int sm80_product_warps(const Tile& tile) { return tile.warpgroups * 4; }

/// Shared memory of a thread block: stages of 16-bit elements, the window of steps, and the tiles
/// that each warp has found.
constexpr int sm80_product_shared_bytes(const Tile& tile) {
  constexpr int kSlices = 64;
  const int slice = tile.m / 64 * 16 + 4, found = (tile.stages + 2) * 16;
  return 2 * tile.stages * (tile.m + tile.n) * tile.k + kSlices * slice +
         sm80_product_warps(tile) * found;
}

KernelFamily sm80_product_family();

}  // namespace tessera::planning
