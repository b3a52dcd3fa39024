#include "src/plan/bsr_sm90.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::planning {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

std::int64_t largest_part(std::int64_t length, std::int64_t most) {
  while (most > 16 && length % most != 0) most /= 2;
  return most;
}

/// What a step of one tile costs at the rates of Hopper's units: the share of the tensor peak that
/// instructions of this width reach.
double rate_of(std::int64_t height) { return height >= 64 ? 0.75 : height >= 32 ? 0.6 : 0.35; }

}  // namespace

double bsr_sm90_ms(const MatmulShape& s, const Tile& tile, const DeviceFacts& device,
                   double bytes) {
  const OperandShape& o = s.a.sparse ? s.a : s.b;
  if (o.block.rows == 0 || o.block.cols == 0) return 0;
  const bool walked_as_stored = s.a.sparse ? !o.transposed : o.transposed;
  const std::int64_t block_rows = walked_as_stored ? o.block.rows : o.block.cols;
  const std::int64_t block_depth = walked_as_stored ? o.block.cols : o.block.rows;
  const double rows = real(s.a.sparse ? s.m : s.n), cols = real(s.a.sparse ? s.n : s.m);
  const double depth = real(s.k);
  const std::int64_t height = largest_part(block_rows, std::min(tile.m, 128));
  const double density = std::min(
      1.0, real(o.stored) * real(block_rows) * real(block_depth) / std::max(1.0, rows * depth));

  // A tile loads a step of the dense matrix where any of its blocks lies.
  const double places = std::max(1.0, real(tile.m / std::min<std::int64_t>(tile.m, block_rows)) *
                                          std::max(1.0, real(tile.k) / real(block_depth)));
  const double steps = depth / tile.k * (1 - std::pow(1 - density, places));
  const double tiles = std::ceil(rows / tile.m) * std::ceil(cols / tile.n) *
                       real(std::max<std::int64_t>(s.batch, 1));
  const double per_unit = tile.warpgroups == 1 ? 3 : 1;  // blocks of threads on one unit
  const double units = std::max(device.units, 1) * per_unit;

  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  const double area = real(tile.m) * depth * density;  // stored elements of one tile
  const double multiply =
      seconds(2 * area * tile.n * units, device.tensor_tflops * 1e12 * rate_of(height));
  const double fetch = seconds(2 * (area + steps * tile.k * tile.n) * units, device.l2_tbs * 1e12);
  // Finding and loading a step takes a time of its own, and so does each piece in it.
  constexpr double kTileSeconds = 1e-6, kStepSeconds = 0.65e-6, kPieceSeconds = 0.05e-6;
  const double piece = real(height * std::min<std::int64_t>(largest_part(block_depth, 64), 64));
  const double loads = steps * kStepSeconds + area / piece * kPieceSeconds;
  const double one = std::max({multiply, fetch, loads}) + kTileSeconds;
  const double work = std::max(1.0, tiles / units) * one;
  const double memory = seconds(bytes, device.memory_tbs * 1e12);
  const double lists = walked_as_stored ? 0 : 15e-6;  // transposed first
  // The shorter of the two is not hidden entirely.
  return 1e3 * (std::max(work, memory) + 0.1 * std::min(work, memory) + lists);
}

}  // namespace tessera::planning
