#include "src/kernels/cuda/sm90/bsr/plan.hpp"

#include <algorithm>
#include <cmath>

#include "src/kernels/cuda/product/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm90/bsr/rows.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/transposed_lists.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

/// Assumes uniformly random blocks.
double seconds_of(const MatmulShape& s, const KernelRow& row, const DeviceFacts& device) {
  const OperandShape& o = s.a.sparse ? s.a : s.b;
  if (o.block.rows == 0 || o.block.cols == 0) return 0;
  const Tile& tile = row.tile;
  const product::UnionWalk walk(s);
  const double steps = walk.steps(tile), pieces = walk.pieces(tile),
               tiles = walk.tiles(tile, s.batch);

  // The shares of a step and of a piece of it; where TMA does not load the blocks, a tile takes
  // longer to begin, and warps that copy work beside those that multiply.
  constexpr double kPiece = 0.63, kCopiedStep = 0.75, kCopiedTile = 5.5e-6;
  const bool boxed = walk.height >= (walk.as_stored ? 32 : 64) && walk.piece >= 32;
  const double step =
      row.times.step_ns * 1e-9 * product::step_factor(device) * (boxed ? 1 : kCopiedStep);
  const double one =
      (steps + kPiece * pieces) * step + row.times.tile_ns * 1e-9 + (boxed ? 0 : kCopiedTile);
  // The thread blocks of an SM fill each other's gaps: one alone takes a share of the time of all.
  const double on_sm = std::max(std::ceil(tiles / std::max(device.units, 1)), 1.0);
  constexpr double kAlone = 0.6;
  const int at_once = bsr_ctas_per_sm(tile);
  const double rounds =
      on_sm < at_once ? kAlone + (1 - kAlone) * (on_sm - 1) / (at_once - 1) : on_sm / at_once;
  const double lists = walk.as_stored ? 0 : 15e-6;  // lists are transposed first
  return product::with_memory(rounds * one, work_of(s).bytes, device) + lists;
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
    product::refuse_blocks(s, reasons);
  }
  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Tile& tile = row.tile;
    Layout at{.rows = s.b.sparse ? s.n : s.m, .cols = s.b.sparse ? s.m : s.n};
    at.tiles = product::count_tiles(
        product::count_tiles(ceil_div(at.rows, tile.m), ceil_div(at.cols, tile.n)), s.batch);
    at.ctas = std::min(at.tiles, std::int64_t{std::max(device.units, 1)} * bsr_ctas_per_sm(tile));
    product::refuse_tiles(at.tiles, reasons);
    return at;
  }
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return seconds_of(s, row, device);
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
