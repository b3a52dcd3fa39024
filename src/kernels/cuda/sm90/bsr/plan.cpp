#include "src/kernels/cuda/sm90/bsr/plan.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm90/bsr/rows.hpp"
#include "src/walk/transposed_lists.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

std::int64_t largest_part(std::int64_t length, std::int64_t most) {
  while (most > 16 && length % most != 0) most /= 2;
  return most;
}

/// Assumes uniformly random blocks.
double seconds_of(const MatmulShape& s, const Tile& tile, const DeviceFacts& device, double bytes) {
  const OperandShape& o = s.a.sparse ? s.a : s.b;
  if (o.block.rows == 0 || o.block.cols == 0) return 0;
  const bool walked_as_stored = s.a.sparse ? !o.transposed : o.transposed;
  const std::int64_t block_rows = walked_as_stored ? o.block.rows : o.block.cols;
  const std::int64_t block_depth = walked_as_stored ? o.block.cols : o.block.rows;
  const double rows = real(s.a.sparse ? s.m : s.n), cols = real(s.a.sparse ? s.n : s.m);
  const double depth = real(s.k);
  const double density = std::min(
      1.0, real(o.stored) * real(block_rows) * real(block_depth) / std::max(1.0, rows * depth));

  // Lines have 16, 32 or 64 rows; a group is 64 rows. A group's piece exists if any of its lines
  // has a block there, a step if any of its groups has a piece.
  constexpr std::int64_t kGroup = 64;
  const std::int64_t height = largest_part(block_rows, kGroup);
  const std::int64_t piece_depth = largest_part(block_depth, kGroup);
  const double groups = real(tile.m / kGroup), slices = real(tile.k / piece_depth);
  const double units = real(piece_depth / 16);
  const auto any_of = [&](double places) { return 1 - std::pow(1 - density, places); };
  const double distinct_lines = std::max(1.0, real(kGroup) / real(block_rows));
  const double distinct_rows = std::max(1.0, real(tile.m) / real(block_rows));
  const double steps =
      depth / tile.k * any_of(distinct_rows * std::max(1.0, real(tile.k) / real(block_depth)));
  const double pieces = groups * (depth / real(piece_depth)) * any_of(distinct_lines);
  const double tiles = std::ceil(rows / tile.m) * std::ceil(cols / tile.n) *
                       real(std::max<std::int64_t>(s.batch, 1));
  const double blocks = real(std::max(device.units, 1)) * bsr_ctas_per_sm(tile);
  const double active = std::clamp(tiles, 1.0, blocks);

  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  const double area = real(tile.m) * depth * density;  // stored elements of one tile
  const double multiply = seconds(2 * pieces * kGroup * real(piece_depth) * tile.n * active,
                                  device.tensor_tflops * 1e12 * 0.75);
  // Concurrent tiles reached more bandwidth than the bare copies of the measured ceiling.
  constexpr double kFetchRate = 1.15;
  const double fetch =
      seconds(2 * (area + steps * tile.k * tile.n) * active, device.l2_tbs * 1e12 * kFetchRate);
  // Measured seconds of a consumer per step, per possible piece, per existing piece and per 16 of
  // its depth; of TMA per row of a box; of copiers per step and unit where TMA does not load the
  // blocks.
  constexpr double kStep = 0.08e-6, kPlace = 0.008e-6, kPiece = 0.025e-6, kUnit = 0.04e-6,
                   kRow = 1.75e-9, kCopiedStep = 0.55e-6, kCopiedUnit = 0.06e-6;
  const double tile_seconds = tile.warpgroups == 1 ? 1.5e-6 : 6e-6;
  const bool boxed = height >= (walked_as_stored ? 32 : 64) && piece_depth >= 32;
  const double consume =
      steps * (kStep + kPlace * groups * slices) + pieces * (kPiece + kUnit * units);
  const double copy = boxed ? (steps * tile.n + pieces * kGroup) * kRow
                            : steps * kCopiedStep + pieces * units * kCopiedUnit;
  const double one = std::max({multiply, fetch, consume, copy}) + tile_seconds;
  // Three thread blocks of an SM fill each other's gaps; tiles of one come in whole rounds.
  const double rounds = tiles / blocks;
  const double work = (bsr_ctas_per_sm(tile) > 1 ? std::max(rounds, 1.0) : std::ceil(rounds)) * one;
  constexpr double kOfMemory = 0.75;
  const double memory = seconds(bytes, device.memory_tbs * 1e12 * kOfMemory);
  const double lists = walked_as_stored ? 0 : 15e-6;  // lists are transposed first
  // The smaller of the two is not hidden entirely.
  return std::max(work, memory) + 0.1 * std::min(work, memory) + lists;
}

/// The family: one sparse side, walked by the union of several lines' lists.
struct Bsr {
  using Shape = MatmulShape;
  using Layout = BsrLayout;

  static void refuse(const Shape& s, const KernelRow&, const DeviceFacts&, Reasons& reasons) {
    product::refuse_two_sparse(s, reasons);
    if (!s.a.sparse && !s.b.sparse) reasons.required("a sparse a or b");
    if (s.grouped) reasons.unsupported("group_offsets");
    product::refuse_unaligned(s.a.tma_readable, s.b.tma_readable, reasons);
    product::refuse_sizes(s, reasons);
    const OperandShape& sparse = s.a.sparse ? s.a : s.b;
    if (!sparse.sparse) return;
    reasons.unless_multiple("block rows", sparse.block.rows, 16);
    reasons.unless_multiple("block columns", sparse.block.cols, 16);
    if (!sparse.pool_fits) reasons.layout("values", "stored blocks that span at most 64 GiB");
  }
  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Tile& tile = row.tile;
    const auto up = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
    Layout at{.rows = s.b.sparse ? s.n : s.m, .cols = s.b.sparse ? s.m : s.n};
    at.tiles = product::count_tiles(product::count_tiles(up(at.rows, tile.m), up(at.cols, tile.n)),
                                    s.batch);
    at.ctas = std::min(at.tiles, std::int64_t{std::max(device.units, 1)} * bsr_ctas_per_sm(tile));
    product::refuse_tiles(at.tiles, reasons);
    return at;
  }
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return seconds_of(s, row.tile, device, work_of(s).bytes);
  }
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow&, int) {
    return {0, gpu_matmul_schedule_bytes(s)};
  }
  static std::string describe(const Shape&, const Layout&) { return {}; }
};

}  // namespace

KernelFamily sm90_bsr_family() {
  return make_family<Bsr>("sm90_bsr", Backend::sm90, Op::matmul, kSm90BsrRows);
}

}  // namespace tessera::planning
