#include "src/kernels/cuda/bsr/plan.hpp"

#include <algorithm>

#include "src/kernels/cuda/bsr/rows.hpp"
#include "src/kernels/cuda/sm90/product/refuse.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

std::int64_t up(std::int64_t length, std::int64_t piece) { return (length + piece - 1) / piece; }

const OperandShape& sparse_of(const MatmulShape& s) { return s.a.sparse ? s.a : s.b; }

/// Strips of a thread block: they read the same columns, so as many as divide a block, up to four.
/// But fewer where thread blocks would not fill the GPU: then more warps share each strip.
int strips_of(const MatmulShape& s, const Tile& tile, std::int64_t strips,
              const DeviceFacts& device) {
  const std::int64_t in_block = std::max<std::int64_t>(sparse_of(s).block.rows / tile.m, 1);
  for (const int together : {4, 2})
    if (in_block % together == 0 && strips / together >= 2 * std::max(device.units, 1))
      return together;
  return 1;
}

double seconds_of(const MatmulShape& s, const FewColumnsLayout& at, const Tile& tile,
                  const DeviceFacts& device) {
  const OperandShape& o = sparse_of(s);
  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  const double stored = real(o.stored) * real(o.block.rows * o.block.cols);
  // Each tile of columns reads all stored blocks. The first reads them from memory.
  const double blocks = 2 * stored * real(at.col_tiles);
  // A strip reads the columns at each of its blocks; the strips of a thread block share L1.
  const double columns = 2 * stored / tile.m * tile.n * real(at.col_tiles);
  constexpr double kMemoryRate = 0.9, kColumnRate = 0.7, kShared = 0.5;
  const double memory = seconds(2 * stored + 2 * real(s.k) * real(at.cols) +
                                    size_of(s.out) * real(at.rows) * real(at.cols),
                                device.memory_tbs * 1e12 * kMemoryRate);
  const double fetch =
      seconds(blocks + columns / (1 + kShared * (at.strips - 1)), device.l2_tbs * 1e12 * kColumnRate);
  // The longest chain: list, blocks and columns, sums, result; then units of a warp that do not
  // overlap with those of other warps.
  constexpr double kChain = 3e-6, kUnit = 0.12e-6, kWarpsAtOnce = 24;
  const double splits = few_columns_warps(tile) / static_cast<double>(at.strips);
  const double units = stored / (real(tile.m) * tile.k);
  const double each = units / std::max(real(up(at.rows, tile.m)), 1.0) / splits;
  const double warps = real(at.ctas) * real(at.col_tiles) * few_columns_warps(tile);
  const double rounds =
      std::max(warps / (std::max(device.units, 1) * kWarpsAtOnce), 1.0);
  const double chain = kChain + each * rounds * kUnit * (tile.n > 16 ? tile.n / 16.0 : 1.0);
  return std::max({memory, fetch, chain}) + 0.1 * std::min(memory, fetch);
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
    at.col_tiles = up(at.cols, tile.n);
    const std::int64_t strips = up(at.rows, tile.m);
    at.strips = strips_of(s, tile, product::count_tiles(strips, at.col_tiles), device);
    at.ctas = up(strips, at.strips);
    product::refuse_tiles(product::count_tiles(at.ctas, s.batch), reasons);
    reasons.unless_at_most("tiles of columns", at.col_tiles, 0xffff);
    reasons.unless_at_most("matrices", s.batch, 0xffff);
    return at;
  }
  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    return seconds_of(s, at, row.tile, device);
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
