#include "src/kernels/cuda/sm90/sddmm/plan.hpp"

#include <algorithm>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm90/sddmm/rows.hpp"

namespace tessera::planning {
namespace {

struct Sddmm {
  using Shape = SddmmShape;
  using Layout = NoLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    const Tile& tile = row.tile;
    product::refuse_unaligned(s.a.tma_readable, s.b.tma_readable, reasons);
    reasons.unless_at_most("the largest size", std::max({s.m, s.n, s.k, s.batch, s.out.stored}),
                           product::kMaxCoordinate - 1);
    reasons.unless_multiple("block rows", s.out.block.rows, tile.m);
    reasons.unless_multiple("block columns", s.out.block.cols, 16);
    constexpr std::int64_t kMaxTiles = INT32_MAX / 64;  // sums of tile numbers do not overflow
    const std::int64_t lines =
        std::max<std::int64_t>(s.out.block.rows / tile.m * (s.pooled ? 1 : s.batch), 1);
    reasons.unless_at_most("tiles along the stored blocks",
                           s.out.stored * s.out.block.cols / tile.n, kMaxTiles / lines);
  }
  static Layout layout(const Shape&, const KernelRow&, const DeviceFacts&, Reasons&) { return {}; }
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return usual_seconds(row, Backend::sm90, s, device);
  }
  static BufferSizes buffers(const Shape&, const Layout&, const KernelRow&, int) { return {}; }
  static std::string describe(const Shape&, const Layout&) { return {}; }
};

}  // namespace

KernelFamily sm90_sddmm_family() {
  return make_family<Sddmm>("sm90_sddmm", Backend::sm90, Op::sddmm, kSm90SddmmRows);
}

}  // namespace tessera::planning
