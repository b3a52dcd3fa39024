#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"
#include "src/walk/compose_mask.hpp"
#include "src/walk/work.hpp"

// What attention families have in common when they estimate their time.
namespace tessera::planning {

inline double step_seconds(const KernelRow& row) { return row.times.step_ns * 1e-9; }
inline double tile_seconds(const KernelRow& row) { return row.times.tile_ns * 1e-9; }

/// How much longer steps take on a device than on the card on which they were measured, by the
/// dense rate of the tensor cores of one SM.
double step_factor(const DeviceFacts& device);

/// Work of the problem as it is walked: with the composed blocks, if there are any.
Work walked_work(const AttentionShape& s, const ComposedMask& composed);

/// The expected fraction of all keys that any of several unrelated lists names: what a tile with
/// these lists loads.
double share_of_union(const AttentionShape& s, int lists);

/// Seconds to compose the lists of a mask; 0 without composed lists.
double compose_seconds(const ComposedMask& mask);
/// How much longer a step with the element masks of composed blocks takes: not measured.
inline constexpr double kMaskedStep = 1.3;

/// Seconds to merge the parts of `tiles` split tiles: partial results are written and read again.
double merge_seconds(const Tile& tile, std::int64_t tiles, std::int64_t split_ctas);

/// The range [first, end) of CTAs per split tile that contains the fastest number from 2 to `max`.
/// `rounds`: rounds of steps in a tile's walk, `step` seconds each.
struct CtasPerTile {
  std::int64_t first = 2, end = 2;
};
CtasPerTile fastest_ctas_per_tile(std::int64_t rounds, double step, std::int64_t max,
                                  std::int64_t tiles, const Tile& tile);

}  // namespace tessera::planning
