#pragma once

#include <cstdint>
#include <string>

#include "src/core/carver.hpp"
#include "src/kernels/family.hpp"
#include "src/walk/matmul_walk.hpp"

// How a row of sm90/matmul takes a product: pure arithmetic, read by the cost model, by the planner
// (how much workspace) and by the launch.
namespace tessera::planning {

/// What the row's blocks of threads do. "Left" is the side whose rows are the rows of a tile.
struct MatmulLayout {
  bool swapped = false;  // computed as its transpose: left is B transposed
  Cut cut = Cut::none;
  std::int64_t rows = 0, cols = 0;      // of the product as computed; of one group where it is cut
  std::int64_t matrices = 1;            // results, or groups
  std::int64_t tiles = 0;               // at most
  std::int64_t steps = 0;               // of depth that a line of a tile multiplies, on average
  std::int64_t fetched = 0;             // that are fetched for a tile: those that any line names
  std::int64_t clusters = 0;            // that are launched: each walks over several tiles
  std::int64_t group = 0;               // rows of tiles that are walked column by column
  int splits = 1;                       // blocks of threads that share one tile's depth
  bool together = false;                // a tile walks several rows of blocks
  bool dealt = false;                   // tiles are handed out as blocks of threads ask for them
  bool copy_a = false, copy_b = false;  // into rows that TMA can read
};

/// Blocks of a cluster that share a tile's depth: at most. Each of them owns pieces of 16 columns
/// of the tile and has room for everybody's sums of so many pieces.
inline constexpr int kMatmulMaxSplits = 8;
constexpr int share_slots(int columns) {
  return columns / 16 > kMatmulMaxSplits ? columns / 16 : kMatmulMaxSplits;
}
constexpr int owned_pieces(int columns, int splits) { return (columns / 16 + splits - 1) / splits; }

/// Wider tiles have no room for shares of sums in shared memory.
constexpr bool can_split(const Tile& tile) { return tile.n <= 128; }

/// How many clusters of so many blocks run at a time, with one block per SM. Clusters do not cross
/// the borders of a GPC: GPCs of 18 SMs, but for one that lacks two and one that lacks the others.
/// So it is on an H200 (cudaOccupancyMaxActiveClusters for 1 to 8 blocks).
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

/// Elements from one line of an aligned copy to the next.
constexpr std::int64_t copied_pitch(std::int64_t length) { return core::align_up(length, 64); }

/// What lies in the workspace: copies, the count of tiles handed out. Null where there is none.
struct MatmulScratch {
  void *a = nullptr, *b = nullptr;
  int* dealt = nullptr;
};
MatmulScratch carve_matmul_scratch(core::Carver& carver, const MatmulShape& shape,
                                   const MatmulLayout& layout);

KernelFamily sm90_matmul_family();

}  // namespace tessera::planning
