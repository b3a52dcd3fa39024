#pragma once

#include <cstdint>
#include <string>

#include "src/core/carver.hpp"
#include "src/kernels/family.hpp"
#include "src/walk/matmul_walk.hpp"

// How a kernel row of sm90/matmul divides a product: host arithmetic, shared by the cost model, the
// planner (workspace size) and the launch.
namespace tessera::planning {

/// The layout of a product on a kernel row. "Left" is the operand whose rows are the rows of a
/// tile.
struct MatmulLayout {
  bool swapped = false;  // computed as its transpose: left is B transposed
  Cut cut = Cut::none;
  std::int64_t rows = 0, cols = 0;      // of the product as computed; of one group if it is cut
  std::int64_t matrices = 1;            // batches, or groups
  std::int64_t tiles = 0;               // upper bound
  std::int64_t steps = 0;               // steps that one line of a tile multiplies, mean
  std::int64_t fetched = 0;             // steps that are loaded for a tile: those of any line
  std::int64_t clusters = 0;            // clusters launched; each computes several tiles
  std::int64_t group = 0;               // rows of tiles per group, walked column by column
  int step_depth = 0;                   // elements of a step along the depth
  int splits = 1;                       // CTAs that split one tile's depth
  bool together = false;                // a tile covers several rows of blocks
  bool dealt = false;                   // dynamic tiles, taken from a counter
  bool copy_a = false, copy_b = false;  // copy the operand into rows that TMA can read
};

/// Maximum number of CTAs that split a tile's depth. Each of them owns pieces of 16 columns of the
/// tile; share_slots is the room for the sums of all CTAs, in pieces.
inline constexpr int kMatmulMaxSplits = 8;
constexpr int share_slots(int columns) {
  return columns / 16 > kMatmulMaxSplits ? columns / 16 : kMatmulMaxSplits;
}
constexpr int owned_pieces(int columns, int splits) { return (columns / 16 + splits - 1) / splits; }

/// Wider tiles leave no shared memory for the sums of splits.
constexpr bool can_split(const Tile& tile) { return tile.n <= 128; }

/// Number of clusters of `blocks` CTAs that run at the same time, with one CTA per SM. Clusters do
/// not cross GPC borders. The model: GPCs of 18 SMs, of which one lacks two SMs and one lacks the
/// rest. It matches an H200 (cudaOccupancyMaxActiveClusters for 1 to 8 CTAs).
constexpr std::int64_t clusters_at_once(std::int64_t sms, std::int64_t blocks) {
  constexpr std::int64_t kGpc = 18;
  const std::int64_t gpcs = (sms + kGpc - 1) / kGpc, absent = gpcs * kGpc - sms;
  const std::int64_t few = gpcs > 1 && absent >= 2 ? 2 : 0;
  std::int64_t clusters = (kGpc - absent + few) / blocks;
  if (gpcs > 1) clusters += (kGpc - few) / blocks + (gpcs - 2) * (kGpc / blocks);
  return clusters > 0 ? clusters : 1;
}
static_assert(clusters_at_once(132, 1) == 132 && clusters_at_once(132, 2) == 66 &&
              clusters_at_once(132, 3) == 43 && clusters_at_once(132, 4) == 30 &&
              clusters_at_once(132, 5) == 22 && clusters_at_once(132, 6) == 21 &&
              clusters_at_once(132, 7) == 15 && clusters_at_once(132, 8) == 15);

MatmulLayout matmul_layout(const MatmulShape& shape, const Tile& tile, const DeviceFacts& device);

/// Pitch of an aligned copy, in elements.
constexpr std::int64_t copied_pitch(std::int64_t length) { return core::align_up(length, 64); }

/// The workspace: aligned copies, and the counter of dynamic tiles. Null where not needed.
struct MatmulScratch {
  void *a = nullptr, *b = nullptr;
  std::uint64_t* dealt = nullptr;
};
MatmulScratch carve_matmul_scratch(core::Carver& carver, const MatmulShape& shape,
                                   const MatmulLayout& layout);

KernelFamily sm90_matmul_family();

}  // namespace tessera::planning
