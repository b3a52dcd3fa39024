#include "src/kernels/cuda/sm90/spgemm/plan.hpp"

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/product/refuse.hpp"
#include "src/kernels/cuda/sm90/spgemm/rows.hpp"
#include "src/kernels/cuda/spgemm/plan.hpp"

namespace tessera::planning {
namespace {

struct Spgemm {
  using Shape = SpgemmShape;
  using Layout = NoLayout;

  /// Tiles are blocks of the result.
  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    refuse_gpu_spgemm(s, reasons);
    product::refuse_unaligned(s.a.tma_readable, s.b.tma_readable, reasons);
    const BlockShape a = s.a.transposed ? BlockShape{s.a.block.cols, s.a.block.rows} : s.a.block;
    const BlockShape b = s.b.transposed ? BlockShape{s.b.block.cols, s.b.block.rows} : s.b.block;
    reasons.unless_exactly("block rows of the result", a.rows, row.tile.m);
    reasons.unless_exactly("block columns of the result", b.cols, row.tile.n);
    reasons.unless_multiple("depth of the blocks that meet", a.cols, row.tile.k);
  }
  static Layout layout(const Shape&, const KernelRow&, const DeviceFacts&, Reasons&) { return {}; }
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return usual_seconds(row, Backend::sm90, s, device);
  }
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow&, int) {
    return gpu_spgemm_buffers(s);
  }
  static std::string describe(const Shape&, const Layout&) { return {}; }
};

}  // namespace

KernelFamily sm90_spgemm_family() {
  return make_family<Spgemm>("sm90_spgemm", Backend::sm90, Op::spgemm, kSm90SpgemmRows);
}

}  // namespace tessera::planning
