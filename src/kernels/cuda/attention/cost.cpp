#include "src/kernels/cuda/attention/cost.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cuda/attention/layout.hpp"

namespace tessera::planning {

namespace {

constexpr double kMergeSeconds = 5e-6, kMergeBytesPerSecond = 3e12;
constexpr double kPartSeconds = 1e-6;  // the CTA that counts last adds all parts

/// Seconds to write one part of a split tile and read it again.
constexpr double part_seconds(const Tile& tile) {
  return 2.0 * sizeof(float) * tile.m * tile.v / kMergeBytesPerSecond;
}

}  // namespace

double step_factor(const DeviceFacts& device) {
  constexpr double kMeasuredTflops = 970;
  return device.tensor_tflops > 0 ? kMeasuredTflops * device.units / (132 * device.tensor_tflops)
                                  : 1;
}

Work walked_work(const AttentionShape& s, const ComposedMask& composed) {
  return work_of(*WalkedShape(s, composed));
}

double share_of_union(const AttentionShape& s, int lists) {
  const double keys = static_cast<double>(std::max<std::int64_t>(s.kv_length, 1));
  const double named =
      static_cast<double>(s.mask_capacity) * static_cast<double>(s.mask_block.cols);
  return 1 - std::pow(1 - std::min(named / keys, 1.0), lists);
}

double compose_seconds(const ComposedMask& mask) {
  constexpr double kSeconds = 6e-6, kBytesPerSecond = 1e12;  // not measured
  return mask ? kSeconds + composed_bytes(mask) / kBytesPerSecond : 0;
}

double merge_seconds(const Tile& tile, std::int64_t tiles, std::int64_t split_ctas) {
  const auto parts = static_cast<double>(split_ctas + tiles);
  return kMergeSeconds + parts * tile.m * tile.v * 2 * sizeof(float) / kMergeBytesPerSecond +
         kPartSeconds * static_cast<double>(split_ctas) / static_cast<double>(tiles);
}

CtasPerTile fastest_ctas_per_tile(std::int64_t rounds, double step, std::int64_t max,
                                  std::int64_t tiles, const Tile& tile) {
  constexpr std::int64_t kFew = 8;
  if (max <= kFew) return {2, max + 1};
  // With n CTAs per tile the time is at least f(n) = walk / n + merge * n, and less than one step
  // more, apart from terms that do not depend on n. So the fastest n has f(n) <= f(m) + step +
  // merge, where m is the real number that minimises f; the last two terms account for rounding m
  // up to an integer.
  const double walk = static_cast<double>(rounds) * step;
  const double merge = static_cast<double>(tiles) * part_seconds(tile) + kPartSeconds;
  const double m = std::clamp(std::sqrt(walk / merge), 2.0, static_cast<double>(max));
  const double bound = walk / m + merge * m + step + merge;
  const double middle = bound / (2 * merge);
  const double apart = std::sqrt(std::max(middle * middle - walk / merge, 0.0));
  // One more at each end, for rounding.
  return {std::max<std::int64_t>(static_cast<std::int64_t>(middle - apart) - 1, 2),
          static_cast<std::int64_t>(std::min(middle + apart + 3, static_cast<double>(max + 1)))};
}

}  // namespace tessera::planning
