#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"

namespace tessera::planning {

/// Warps of a thread block.
constexpr int few_columns_warps(const Tile& tile) { return tile.warpgroups * 4; }

/// Whether a thread block computes strips of several rows of blocks. Adjacent rows often name the
/// same columns of the dense side, which are then read from L1: that pays where they are wide.
constexpr bool crosses_blocks(const Tile& tile) { return tile.n > 32; }

/// The layout of a product on a row of sm80_bsr. The sparse side gives the rows of the product as
/// computed. A thread block computes `strips` strips of 16 rows; warps beyond that share the
/// stored blocks of each strip.
struct FewColumnsLayout {
  std::int64_t rows = 0, cols = 0;
  std::int64_t ctas = 0, col_tiles = 0;
  int strips = 1;
  bool overlapped = false;  // programmatic dependent launch, which code for sm_80 does not wait for
};

KernelFamily sm80_bsr_family();

}  // namespace tessera::planning
