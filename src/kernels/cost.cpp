#include "src/kernels/cost.hpp"

#include <algorithm>
#include <cmath>

#include "src/core/check.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

/// How a kernel row's tiles cover a result: their number, and the fraction of their area inside it.
struct Cover {
  double tiles = 0;  // 0: not limited by whole rounds
  double fill = 1;
};

Cover cover(std::int64_t m, std::int64_t n, double copies, const Tile& tile) {
  const double down = std::ceil(real(m) / tile.m), across = std::ceil(real(n) / tile.n);
  return {down * across * copies,
          real(m) * real(n) / std::max(1.0, down * tile.m * across * tile.n)};
}
Cover cover(const MatmulShape& s, const Tile& tile) {
  const bool rows = s.grouped && s.group_axis == GroupAxis::rows;
  return cover(s.m, s.n, rows ? 1 : real(s.batch), tile);
}
Cover cover(const AttentionShape& s, const Tile& tile) {
  return cover(s.q_length, tile.n, real(s.batch) * real(s.heads), tile);
}
Cover cover(const SddmmShape&, const Tile&) { return {}; }
Cover cover(const SpgemmShape&, const Tile&) { return {}; }
Cover cover(const MergeShape&, const Tile&) { return {}; }

DType input_dtype(const AttentionShape& s) { return s.dtype; }
DType input_dtype(const AttentionBackwardShape& s) { return s.dtype; }
DType input_dtype(const MergeShape& s) { return s.dtype; }
template <class Product>
DType input_dtype(const Product& s) {
  return s.a.dtype;
}

/// Peak FLOP/s of the device for a dtype.
double peak_flops(const DeviceFacts& device, DType dtype) {
  if (device.kind == DeviceKind::cuda) {
    // Tensor cores process f32 at half the 16-bit rate, FP8 at twice.
    const double factor = dtype == DType::f32 ? 0.5 : core::is_fp8(dtype) ? 2.0 : 1.0;
    return device.tensor_tflops * 1e12 * factor;
  }
  const double lanes = device.simd == "avx512"                          ? 16
                       : device.simd == "avx2"                          ? 8
                       : device.simd == "sse4" || device.simd == "neon" ? 4
                                                                        : 1;
  // Two fused multiply-adds per cycle, two FLOPs each.
  return device.units * device.clock_ghz * 1e9 * lanes * 2 * 2;
}

/// The fraction of the peak that good kernels of a backend reach on large problems.
double efficiency(Backend backend, Op op, const DeviceFacts& device) {
  const bool softmax = op == Op::attention || op == Op::attention_backward;
  switch (backend) {
    case Backend::cpu:
      return softmax ? 0.35 : 0.5;
    // On Hopper, mma.sync reaches two thirds of the rate of wgmma.
    case Backend::sm80:
      return device.compute_capability >= 90 ? 0.5 : 0.7;
    case Backend::sm90:
      return softmax ? 0.67 : 0.75;
  }
  return 1;
}

}  // namespace

DType operand_dtype(const AnyShape& shape) {
  return std::visit([](const auto& s) { return input_dtype(s); }, shape);
}

double overhead_seconds(const DeviceFacts& device) {
  return device.kind == DeviceKind::cuda ? 4e-6 : 2e-6 + 1e-6 * device.units;
}

double usual_seconds(const KernelRow& row, Backend backend, const AnyShape& shape,
                     const DeviceFacts& device) {
  const Work total = work_of(shape);
  const Op op = op_of(shape);
  const DType dtype = operand_dtype(shape);
  // A rate of zero means unknown: that limit is ignored.
  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  double time = seconds(total.bytes, device.memory_tbs * 1e12);
  if (op != Op::merge_states) {
    const Cover c = std::visit([&](const auto& s) { return cover(s, row.tile); }, shape);
    // GPU kernels compute whole tiles; CPU kernels stop at the edge.
    double rate = peak_flops(device, dtype) * efficiency(backend, op, device);
    if (backend != Backend::cpu && c.fill > 0) rate *= c.fill;
    if (c.tiles > 0 && device.units > 0) {
      rate *= c.tiles / (std::ceil(c.tiles / device.units) * device.units);
    }
    time = std::max(time, seconds(total.flops, rate));
    // Each tile loads its rows and columns from L2; attention keeps its query rows.
    const bool attends = op == Op::attention || op == Op::attention_backward;
    const double fetched = 1.0 / row.tile.m + (attends ? 0 : 1.0 / row.tile.n);
    time =
        std::max(time, seconds(total.flops / 2 * fetched * size_of(dtype), device.l2_tbs * 1e12));
  }
  return time;
}

}  // namespace tessera::planning
