#pragma once

#include <cstdint>
#include <string>

#include "src/kernels/family.hpp"

// How a row of sm90/skinny cuts a product with few columns: pure arithmetic, read by the cost model
// and by the launch.
namespace tessera::planning {

/// "Left" is the side that streams through, "rows" its rows; the short side gives the columns.
struct SkinnyLayout {
  bool swapped = false;  // computed as its transpose: left is B transposed
  std::int64_t rows = 0, cols = 0, batches = 1;
  int height = 64;             // rows of a tile
  int splits = 1;              // blocks of threads of a cluster, which share a tile's depth
  int together = 1;            // tiles of a cluster whose blocks load the columns for each other
  int at_once = 1;             // thread blocks per SM
  int stages = 1;              // of the ring
  int shared_bytes = 0;        // for the ring
  std::int64_t row_tiles = 0;  // of one batch
  std::int64_t col_tiles = 0;
  double bytes = 0;    // of the left side
  double seconds = 0;  // without what every kernel costs
  /// Warpgroups that multiply, 64 rows each.
  int units() const { return (height + 63) / 64; }
};

/// Shared memory for the ring of a block of threads that has a unit for itself, in bytes.
inline constexpr int kSkinnyMaxRing = 220 << 10;

/// Columns of the narrowest row.
inline constexpr int kSkinnyNarrowest = 16;

/// Where tiles share what they read of 128 columns, each block of a cluster loads so many lines of
/// a step for all of them.
inline constexpr int kSkinnyTogether = 4, kSkinnySharedLines = 32;

/// Columns of a step that are loaded: where they lie contiguous, TMA brings a line of 64.
constexpr int skinny_loaded(int columns, bool contiguous) {
  return contiguous && columns < 64 ? 64 : columns;
}

/// Whether the product is computed as its transpose: the short side, or the dense one, gives the
/// columns.
bool skinny_swaps(const MatmulShape& shape);

/// The cut that ends first.
SkinnyLayout skinny_layout(const MatmulShape& shape, const Tile& tile, const DeviceFacts& device);

KernelFamily sm90_skinny_family();

}  // namespace tessera::planning
