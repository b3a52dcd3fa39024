#include "src/kernels/cuda/bsr/plan.hpp"

#include <algorithm>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/bsr/rows.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
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
    if (in_block % together == 0 &&
        strips / together >= std::int64_t{2} * std::max(device.units, 1))
      return together;
  return 1;
}

/// Fitted to 328 times of 82 random shapes on an H100 (CUDA 13.0, 2026-11-25, graph replays; mean
/// error 14%). Rows of very different lengths take longer than this: the list of the longest is not
/// known here.
double seconds_of(const MatmulShape& s, const FewColumnsLayout& at, const Tile& tile,
                  const DeviceFacts& device) {
  const OperandShape& o = sparse_of(s);
  const OperandShape& dense = s.a.sparse ? s.b : s.a;
  const bool along_depth =
      dense.tma_readable && dense.lies_along_depth(s.a.sparse != dense.transposed);
  const double sms = std::max(device.units, 1);
  const double stored = real(o.stored) * real(o.block.rows * o.block.cols);
  const double depth = o.block.cols % 32 == 0 ? 32 : 16, units = stored / (tile.m * depth);
  const double eights = tile.n / 8.0, col_tiles = real(at.col_tiles) * real(s.batch);
  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  // Stored blocks come from memory once, for each tile of columns from L2.
  constexpr double kOfMemory = 0.84;
  const double memory = seconds(work_of(s).bytes, device.memory_tbs * 1e12 * kOfMemory);
  // Seconds that a unit occupies an SM, and its latency where nothing hides it.
  constexpr double kUnit = 21e-9, kEight = 5.8e-9, kGathered = 14.3e-9;
  constexpr double kLatency = 0.29e-6, kEightLatency = 0.031e-6, kGatheredLatency = 0.31e-6;
  const double busy =
      units * col_tiles / sms * (kUnit + eights * (along_depth ? kEight : kGathered) * depth / 32);
  const double per_warp =
      units / std::max(real(up(at.rows, tile.m)), 1.0) * at.strips / few_columns_warps(tile);
  const double chain =
      per_warp * (kLatency + eights * (along_depth ? kEightLatency : kGatheredLatency));
  constexpr double kStart = 1e-6, kCta = 2.7e-6, kCtaEight = 0.09e-6, kNotHidden = 0.26;
  const double at_once = sms * (tile.n <= 16 ? 3 : 2);
  const double rounds = std::max(real(at.ctas) * col_tiles / at_once, 1.0);
  const double longest = std::max({memory, busy, chain});
  return kStart + rounds * (kCta + kCtaEight * eights) + longest +
         kNotHidden * (memory + busy + chain - longest) - overhead_seconds(device);
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
    at.strips = strips_of(
        s, tile, product::count_tiles(product::count_tiles(strips, at.col_tiles), s.batch), device);
    at.ctas = up(strips, at.strips);
    at.overlapped = device.compute_capability >= 90;
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
