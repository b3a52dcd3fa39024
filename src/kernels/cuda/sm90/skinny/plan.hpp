#pragma once

#include <cstdint>
#include <string>

#include "src/kernels/family.hpp"

// How a kernel row of sm90/skinny divides a product with few columns: host arithmetic, shared by
// the cost model and the launch.
namespace tessera::planning {

/// The layout of a product. "Left" is the streamed operand and "rows" its rows; the short side
/// gives the columns.
struct SkinnyLayout {
  bool swapped = false;  // computed as its transpose: left is B transposed
  std::int64_t rows = 0, cols = 0, batches = 1;
  int height = 64;             // rows per tile
  int splits = 1;              // CTAs of a cluster that split a tile's depth
  int together = 1;            // tiles of a cluster whose CTAs share the loads of the columns
  int at_once = 1;             // thread blocks per SM
  int stages = 1;              // stages of the ring
  int shared_bytes = 0;        // for the ring
  std::int64_t row_tiles = 0;  // per batch
  std::int64_t col_tiles = 0;
  double seconds = 0;  // estimate, without the fixed cost of a kernel
  /// Consumer warpgroups, 64 rows each.
  int units() const { return (height + 63) / 64; }
};

/// Bytes of the ring of a thread block that has an SM to itself.
inline constexpr int kSkinnyMaxRing = 220 << 10;

/// Columns of the narrowest kernel row.
inline constexpr int kSkinnyNarrowest = 16;

/// With 128 columns, kSkinnyTogether tiles may share the loads of B: each CTA of their cluster
/// loads kSkinnySharedLines lines of a step for all.
inline constexpr int kSkinnyTogether = 4, kSkinnySharedLines = 32;

/// Columns loaded per step: if columns are contiguous, TMA loads lines of 64.
constexpr int skinny_loaded(int columns, bool contiguous) {
  return contiguous && columns < 64 ? 64 : columns;
}

/// Whether the product is computed as its transpose, so that the short operand (or the dense one,
/// if the other is sparse) gives the columns.
bool skinny_swaps(const MatmulShape& shape);

/// The fastest layout.
SkinnyLayout skinny_layout(const MatmulShape& shape, const KernelRow& row,
                           const DeviceFacts& device);

KernelFamily sm90_skinny_family();

}  // namespace tessera::planning
