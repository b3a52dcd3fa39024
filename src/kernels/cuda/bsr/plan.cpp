#include "src/kernels/cuda/bsr/plan.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/bsr/rows.hpp"
#include "src/kernels/cuda/product/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

const OperandShape& sparse_of(const MatmulShape& s) { return s.a.sparse ? s.a : s.b; }

/// Strips of a thread block: they read the same columns, so as many as it has warps, or up to four
/// that divide a block. But fewer where thread blocks would not fill the GPU: then more warps share
/// each strip.
int strips_of(const MatmulShape& s, const Tile& tile, std::int64_t strips,
              const DeviceFacts& device) {
  const std::int64_t in_block = std::max<std::int64_t>(sparse_of(s).block.rows / tile.m, 1);
  for (const int together : {8, 4, 2})
    if ((crosses_blocks(tile) || (together <= 4 && in_block % together == 0)) &&
        strips / together >= std::int64_t{2} * std::max(device.units, 1))
      return together;
  return 1;
}

/// Whether the result lies in eights: of a row, or of a column, whose number is a multiple of 16.
bool stores_eights(const MatmulShape& s) { return s.b.sparse || s.n * size_of(s.out) % 16 == 0; }

/// How much longer a unit takes if the columns of the dense side are not contiguous along the
/// depth: by how many of the tile's eights a lane loads together. Their rows are taken to lie
/// without padding.
double gathered(std::int64_t cols, int eights) {
  if (eights > 1 && cols % eights == 0) return 0.9 + 0.05 * eights;
  return (eights > 2 && cols % 2 == 0 ? 0.7 : 1.5) + 0.15 * eights;
}

/// 90% of 576 times of linear layers (144 random shapes, H200, CUDA 13.0, 2026-11-26, graph
/// replays) are within .74 to 1.4 of this, and of 196 of sparse products within .5 to 1.4: rows of
/// very different lengths take longer, and the list of the longest is not known here.
double seconds_of(const MatmulShape& s, const FewColumnsLayout& at, const KernelRow& row,
                  const DeviceFacts& device) {
  const Tile& tile = row.tile;
  const OperandShape& o = sparse_of(s);
  const OperandShape& dense = s.a.sparse ? s.b : s.a;
  const bool along_depth =
      dense.tma_readable && dense.lies_along_depth(s.a.sparse != dense.transposed);
  const double sms = std::max(device.units, 1);
  const double stored = real(o.stored) * real(o.block.rows * o.block.cols);
  const double depth = o.block.cols % 32 == 0 ? 32 : 16, units = stored / (tile.m * depth);
  const double col_tiles = real(at.col_tiles) * real(s.batch);
  // A unit occupies an SM for a step's time, whatever its depth. Columns that are gathered take
  // longer, by their elements. Other GPUs than Hopper may take longer to multiply.
  constexpr double kOfMmaRate = 0.5;  // not measured
  const double multiplying =
      2 * tile.m * depth * tile.n / (kOfMmaRate * std::max(mma_flops_per_sm(device), 1.0));
  const double unit = std::max(
      row.times.step_ns * 1e-9 * (along_depth ? 1 : gathered(at.cols, tile.n / 8) * depth / 32),
      multiplying);
  const double busy = units * col_tiles / sms * unit;
  // A warp's chain of units, each of which waits for memory.
  constexpr double kLatency = 0.24e-6, kGatheredLatency = 0.39e-6;
  const double per_warp =
      units / std::max(real(ceil_div(at.rows, tile.m)), 1.0) * at.strips / few_columns_warps(tile);
  const double chain = per_warp * (along_depth ? kLatency : kGatheredLatency);
  const double at_once = sms * (tile.n <= 16 ? 3 : 2);
  const double rounds = std::max(std::ceil(real(at.ctas) * col_tiles / at_once), 1.0);
  constexpr double kElement = 0.1e-9;  // on one SM
  const double elements =
      stores_eights(s) ? 0 : real(s.m) * real(s.n) * real(s.batch) / sms * kElement;
  return product::with_memory((rounds - 1) * row.times.tile_ns * 1e-9 + busy + chain + elements,
                              work_of(s).bytes, device);
}

/// The family: one sparse side with few columns beside it.
struct FewColumns {
  using Shape = MatmulShape;
  using Layout = FewColumnsLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    product::refuse_two_sparse(s, reasons);
    if (!s.a.sparse && !s.b.sparse) reasons.required("a sparse a or b");
    if (s.grouped) reasons.unsupported("group_offsets");
    // The dense side may lie in any way.
    product::refuse_unaligned(!s.a.sparse || s.a.tma_readable, !s.b.sparse || s.b.tma_readable,
                              reasons);
    product::refuse_sizes(s, reasons);
    product::refuse_walk(s, row.tile.m, 16, reasons);
    const OperandShape& o = sparse_of(s);
    if (o.sparse && !o.unit_col_stride) reasons.layout("values", "contiguous rows of each block");
  }
  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Tile& tile = row.tile;
    Layout at{.rows = s.b.sparse ? s.n : s.m, .cols = s.b.sparse ? s.m : s.n};
    at.col_tiles = ceil_div(at.cols, tile.n);
    const std::int64_t strips = ceil_div(at.rows, tile.m);
    at.strips = strips_of(
        s, tile, product::count_tiles(product::count_tiles(strips, at.col_tiles), s.batch), device);
    at.ctas = ceil_div(strips, at.strips);
    at.overlapped = device.compute_capability >= 90;
    product::refuse_tiles(product::count_tiles(at.ctas, s.batch), reasons);
    reasons.unless_at_most("tiles of columns", at.col_tiles, 0xffff);
    reasons.unless_at_most("matrices", s.batch, 0xffff);
    return at;
  }
  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    return seconds_of(s, at, row, device);
  }
  static BufferSizes buffers(const Shape&, const Layout&, const KernelRow&, int) { return {}; }
  static std::string describe(const Shape&, const Layout& at) {
    if (at.col_tiles <= 1) return {};
    return "; stored blocks are read for each of " + std::to_string(at.col_tiles) +
           " tiles of columns";
  }
};

}  // namespace

KernelFamily sm80_bsr_family() {
  return make_family<FewColumns>("sm80_bsr", Backend::sm80, Op::matmul, kSm80BsrRows);
}

}  // namespace tessera::planning
