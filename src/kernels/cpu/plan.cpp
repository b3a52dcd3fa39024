#include "src/kernels/cpu/plan.hpp"

#include <algorithm>

#include "src/kernels/cost.hpp"
#include "src/kernels/cpu/layout.hpp"
#include "src/kernels/cpu/rows.hpp"

namespace tessera::planning {
namespace {

/// Shared by the CPU families: every shape runs, and the kernel row decides everything.
template <class OwnShape>
struct CpuFamily {
  using Shape = OwnShape;
  using Layout = NoLayout;
  static void refuse(const Shape&, const KernelRow&, const DeviceFacts&, Reasons&) {}
  static Layout layout(const Shape&, const KernelRow&, const DeviceFacts&, Reasons&) { return {}; }
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return usual_seconds(row, Backend::cpu, s, device);
  }
  static std::string describe(const Shape&, const Layout&) { return {}; }

 protected:
  static BufferSizes with_mark(std::int64_t workspace, std::int64_t schedule) {
    return {workspace, schedule > 0 ? schedule + core::kScheduleMarkBytes : 0};
  }
};

std::int64_t product_bytes(const KernelRow& row, std::int64_t packed, int threads) {
  core::Carver carver;
  carver.add<float>(packed);
  for (int i = 0; i < threads; ++i) carve_product_scratch(carver, row.tile);
  return carver.used();
}

std::int64_t attention_bytes(const KernelRow& row, const AttentionShape& s, int threads,
                             bool backward) {
  core::Carver carver;
  if (backward) carver.add<float>(Size(s.heads) * s.q_total);
  for (int i = 0; i < threads; ++i) carve_attention_scratch(carver, s, row.tile, backward);
  return carver.used();
}

std::int64_t attention_schedule_bytes(const KernelRow& row, const AttentionShape& s,
                                      bool backward) {
  core::Carver carver;
  carve_attention_schedule(carver, s, row.tile, backward);
  return carver.used();
}

/// How much longer the multiplications of small blocks take than those of large ones: a constant
/// per block where blocks are walked as stored, else per line of a block. Measured with f32 and
/// AVX-512 on one thread, 2026-11-26: blocks of 1, 2, 4 and 16 at density .95 took 4.1, 1.8, 1.2
/// and 1.0 times as long as the dense product, against their storage order 6.0, 3.8, 2.3 and 1.3.
double time_of_blocks(const OperandShape& o, bool as_stored) {
  constexpr double kPerBlock = 3.3, kPerLine = 5;
  if (!o.sparse) return 1;
  const auto rows = static_cast<double>(o.block.rows), cols = static_cast<double>(o.block.cols);
  return 1 + (as_stored ? kPerBlock / (rows * cols) : kPerLine / std::min(rows, cols));
}

struct Matmul : CpuFamily<MatmulShape> {
  static double seconds(const Shape& s, const Layout&, const KernelRow& row,
                        const DeviceFacts& device) {
    return usual_seconds(row, Backend::cpu, s, device) * time_of_blocks(s.a, !s.a.transposed) *
           time_of_blocks(s.b, s.b.transposed);
  }
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow& row, int threads) {
    const ProductSides sides = product_sides(s);
    core::Carver schedule;
    carve_matmul_schedule(schedule, s);
    return with_mark(
        product_bytes(row, packed_floats(sides.right_rows, sides.right_cols, s.batch), threads),
        schedule.used());
  }
};

struct Sddmm : CpuFamily<SddmmShape> {
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow& row, int threads) {
    return {product_bytes(row, sampled_packed_floats(s), threads), 0};
  }
};

struct Spgemm : CpuFamily<SpgemmShape> {
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow& row, int threads) {
    return {product_bytes(row, pool_packed_floats(s.b), threads), 0};
  }
};

struct Attention : CpuFamily<AttentionShape> {
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow& row, int threads) {
    return with_mark(attention_bytes(row, s, threads, false),
                     attention_schedule_bytes(row, s, false));
  }
};

struct AttentionBackward : CpuFamily<AttentionBackwardShape> {
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow& row, int threads) {
    return with_mark(attention_bytes(row, s, threads, true),
                     attention_schedule_bytes(row, s, true));
  }
};

struct Merge : CpuFamily<MergeShape> {
  static BufferSizes buffers(const Shape& s, const Layout&, const KernelRow&, int threads) {
    core::Carver carver;
    for (int i = 0; i < threads; ++i) {
      carver.add<float>(s.dim);
      carver.add<float>(s.dim);
      carver.add<float>(s.parts);
    }
    return {carver.used(), 0};
  }
};

}  // namespace

KernelFamily cpu_matmul_family() {
  return make_family<Matmul>("cpu_matmul", Backend::cpu, Op::matmul, kCpuMatmulRows);
}
KernelFamily cpu_sddmm_family() {
  return make_family<Sddmm>("cpu_sddmm", Backend::cpu, Op::sddmm, kCpuSddmmRows);
}
KernelFamily cpu_spgemm_family() {
  return make_family<Spgemm>("cpu_spgemm", Backend::cpu, Op::spgemm, kCpuSpgemmRows);
}
KernelFamily cpu_attention_family() {
  return make_family<Attention>("cpu_attention", Backend::cpu, Op::attention, kCpuAttentionRows);
}
KernelFamily cpu_attention_backward_family() {
  return make_family<AttentionBackward>("cpu_attention_backward", Backend::cpu,
                                        Op::attention_backward, kCpuAttentionBackwardRows);
}
KernelFamily cpu_merge_family() {
  return make_family<Merge>("cpu_merge", Backend::cpu, Op::merge_states, kCpuMergeRows);
}

}  // namespace tessera::planning
