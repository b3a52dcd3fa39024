#include "src/kernels/cuda/sm80/product/plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/product/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm80/product/rows.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/transposed_lists.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

/// The fractions of the limits below that a kernel row is taken to reach. An H200 reached that of
/// L2 with blocks of 32, and that of shared memory with 64 and 128 (8192^3, density .25); the MMAs
/// are no limit there, and their fraction is an estimate.
constexpr double kShareOfL2 = 0.62, kShareOfSharedMemory = 0.52, kShareOfMmas = 0.65;
/// With two stages only one step is loaded ahead: not measured.
constexpr double kShareOfTwoStages = 0.92;
/// Seconds of an SM per tile besides its steps: not measured.
constexpr double kEstimatedTileSeconds = 4e-6;

/// Bytes per second from L2 to the shared memory of one SM. Where the rate is not known, Hopper's
/// bytes per clock are taken.
double l2_rate(const DeviceFacts& device) {
  constexpr double kBytesPerClock = 33;
  if (device.l2_tbs > 0) return device.l2_tbs * 1e12 / std::max(device.units, 1);
  return kBytesPerClock * std::max(device.clock_ghz, 0.1) * 1e9;
}

/// Seconds of a tile: the longest of multiplying the stored parts, of loading each step's dense
/// side and stored parts from L2, and of moving them between shared memory and registers.
double tile_seconds(const product::UnionWalk& walk, const Tile& tile, const DeviceFacts& device) {
  const double stored = tile.m * walk.depth * walk.density;  // elements of the tile's rows
  const double dense = walk.steps(tile) * tile.k * tile.n;
  // Small pieces wait for their loads from shared memory, and do not hide those from L2 as well.
  const std::int64_t part = std::min(walk.height, walk.piece);
  const double waiting = part >= 64 ? 1 : part == 32 ? 1.1 : 1.6;
  const double multiplying =
      2 * stored * tile.n * waiting / (kShareOfMmas * std::max(mma_flops_per_sm(device), 1.0));
  const double exposed = part >= 32 ? 1 : 1.2;
  const double loading = 2 * (dense + stored) * exposed / (kShareOfL2 * l2_rate(device));
  // Each warp reads all of the stored parts, and its columns of the dense side.
  constexpr double kBytesPerClock = 128;
  const double moving =
      2 * (2 * dense + (sm80_product_warps(tile) + 1) * stored) /
      (kShareOfSharedMemory * kBytesPerClock * std::max(device.clock_ghz, 0.1) * 1e9);
  const double steps = std::max({multiplying, loading, moving});
  return steps / (tile.stages > 2 ? 1 : kShareOfTwoStages) + kEstimatedTileSeconds;
}

/// Whether b gives the rows of the product as computed.
bool swaps(const MatmulShape& s) { return s.b.sparse || s.grouped; }

/// What groups require besides.
void refuse_groups(const MatmulShape& s, Reasons& reasons) {
  if (s.group_axis != GroupAxis::rows) return reasons.unsupported("group_axis inner");
  if (!s.a.tma_readable)
    reasons.layout("a", "contiguous rows at multiples of 16 bytes, as groups begin at any row");
  if (!s.b.tma_readable) reasons.layout("b", "contiguous rows or columns at multiples of 16 bytes");
  if (s.b.sparse) return;
  reasons.unless_multiple("rows of a dense b", s.k, 16);
  reasons.unless_multiple("columns of a dense b", s.n, 16);
  if (!s.b.pool_fits) reasons.layout("b", "matrices that span at most 64 GiB");
}

/// The family: one sparse side with many columns beside it, walked by the union of several lines'
/// lists; also groups of rows, whose matrices may be dense.
struct Product {
  using Shape = MatmulShape;
  using Layout = Sm80ProductLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                     Reasons& reasons) {
    product::refuse_two_sparse(s, reasons);
    if (s.grouped) {
      refuse_groups(s, reasons);
    } else {
      if (!s.a.sparse && !s.b.sparse) reasons.required("a sparse a or b, or groups of rows");
      product::refuse_unaligned(s.a.tma_readable, s.b.tma_readable, reasons);
    }
    product::refuse_sizes(s, reasons);
    reasons.unless_at_most("bytes of shared memory", sm80_product_shared_bytes(row.tile),
                           device.shared_bytes_per_block);
    product::refuse_blocks(s, reasons);
  }
  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Tile& tile = row.tile;
    Layout at{.rows = swaps(s) ? s.n : s.m, .cols = swaps(s) ? s.m : s.n};
    const std::int64_t down = ceil_div(at.rows, tile.m), across = ceil_div(at.cols, tile.n);
    // Each group may end with a partial tile.
    at.tiles = s.grouped ? product::count_tiles(down, across + s.batch)
                         : product::count_tiles(product::count_tiles(down, across), s.batch);
    at.ctas = std::min(at.tiles, std::int64_t{std::max(device.units, 1)});
    product::refuse_tiles(at.tiles, reasons);
    return at;
  }
  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    const OperandShape& o = s.a.sparse ? s.a : s.b;
    const std::int64_t block_rows = o.sparse ? o.block.rows : s.n;
    const std::int64_t block_cols = o.sparse ? o.block.cols : s.k;
    if (block_rows == 0 || block_cols == 0) return 0;
    const product::UnionWalk walk(s);
    // Of groups, the upper bound, as sm90_matmul counts them.
    const double tiles = s.grouped ? real(at.tiles) : walk.tiles(row.tile, s.batch);
    const double rounds = std::max(std::ceil(tiles / std::max(device.units, 1)), 1.0);
    const double lists = walk.as_stored ? 0 : 15e-6;  // lists are transposed first
    return product::with_memory(rounds * tile_seconds(walk, row.tile, device), work_of(s).bytes,
                                device) +
           lists;
  }
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow&, int) {
    return {0, gpu_matmul_schedule_bytes(s)};
  }
  static std::string describe(const Shape& s, const Layout&) {
    return std::string(s.grouped ? "; each tile belongs to one group" : "") +
           "; the time is estimated, not fitted to measurements";
  }
};

}  // namespace

KernelFamily sm80_product_family() {
  return make_family<Product>("sm80_product", Backend::sm80, Op::matmul, kSm80ProductRows);
}

}  // namespace tessera::planning
