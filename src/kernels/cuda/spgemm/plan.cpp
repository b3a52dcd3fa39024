#include "src/kernels/cuda/spgemm/plan.hpp"

#include <algorithm>

#include "src/core/carver.hpp"
#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/spgemm/rows.hpp"
#include "src/walk/transposed_lists.hpp"

namespace tessera::planning {

void refuse_gpu_spgemm(const SpgemmShape& s, Reasons& reasons) {
  // Kernels count blocks in 32 bits.
  reasons.unless_at_most("the largest size", std::max({s.m, s.n, s.k, s.a.stored, s.b.stored}),
                         INT32_MAX);
}

BufferSizes gpu_spgemm_buffers(const SpgemmShape& s) {
  core::Carver carver;
  if (s.a.transposed) carve_gpu_lists(carver, s.a);
  return {carver.used(), 0};
}

namespace {

struct Spgemm {
  using Shape = SpgemmShape;
  using Layout = NoLayout;
  static void refuse(const Shape& s, const KernelRow&, const DeviceFacts&, Reasons& reasons) {
    refuse_gpu_spgemm(s, reasons);
  }
  static Layout layout(const Shape&, const KernelRow&, const DeviceFacts&, Reasons&) { return {}; }
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return usual_seconds(row, Backend::sm80, s, device);
  }
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow&, int) {
    return gpu_spgemm_buffers(s);
  }
  static std::string describe(const Shape&, const Layout&) { return {}; }
};

}  // namespace

KernelFamily sm80_spgemm_family() {
  return make_family<Spgemm>("sm80_spgemm", Backend::sm80, Op::spgemm, kSm80SpgemmRows);
}

}  // namespace tessera::planning
