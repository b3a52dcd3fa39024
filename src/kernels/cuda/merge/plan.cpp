#include "src/kernels/cuda/merge/plan.hpp"

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/merge/rows.hpp"

namespace tessera::planning {
namespace {

template <Backend kBackend>
struct Merge {
  using Shape = MergeShape;
  using Layout = NoLayout;
  static void refuse(const Shape& s, const KernelRow&, const DeviceFacts&, Reasons& reasons) {
    reasons.unless_at_most("outs", s.parts, kMaxGpuMergeParts);
  }
  static Layout layout(const Shape&, const KernelRow&, const DeviceFacts&, Reasons&) { return {}; }
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return usual_seconds(row, kBackend, s, device);
  }
  static BufferSizes buffers(const Shape&, const Layout&, const KernelRow&, int) { return {}; }
  static std::string describe(const Shape&, const Layout&) { return {}; }
};

}  // namespace

KernelFamily sm90_merge_family() {
  return make_family<Merge<Backend::sm90>>("sm90_merge", Backend::sm90, Op::merge_states,
                                           kSm90MergeRows);
}
KernelFamily sm80_merge_family() {
  return make_family<Merge<Backend::sm80>>("sm80_merge", Backend::sm80, Op::merge_states,
                                           kSm80MergeRows);
}

}  // namespace tessera::planning
