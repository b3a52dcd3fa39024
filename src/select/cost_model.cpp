#include <algorithm>
#include <cmath>

#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/bsr/plan.hpp"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/select/select.hpp"
#include "src/kernels/cuda/sm90/skinny/plan.hpp"
#include "src/walk/walk.hpp"

namespace tessera::planning {
namespace {

// Work is counted in double: the products of sizes that come from outside may pass 2^63.
double real(std::int64_t n) { return static_cast<double>(n); }

/// Elements that may be stored; a pool of blocks that several matrices share may hold more.
double elements(const OperandShape& o) {
  const double places = real(o.rows) * real(o.cols);
  if (!o.sparse) return places;
  return std::min(places, real(o.stored) * real(o.block.rows) * real(o.block.cols));
}

double bytes_of(const OperandShape& o) {
  const double lists = o.sparse ? real(o.stored) * size_of(o.index) : 0;
  return real(o.batch) * (elements(o) * size_of(o.dtype) + lists);
}

/// FLOPs of one product, from above. An element of A meets at most the columns of B that can hold
/// a stored block, an element of B the rows of A that can.
double product_flops(const OperandShape& a, const OperandShape& b, std::int64_t m, std::int64_t n) {
  const auto reach = [](const OperandShape& o, std::int64_t block, std::int64_t length) {
    return o.sparse ? std::min(real(length), real(o.stored) * real(block)) : real(length);
  };
  const double columns = reach(b, b.transposed ? b.block.rows : b.block.cols, n);
  const double rows = reach(a, a.transposed ? a.block.cols : a.block.rows, m);
  return 2 * std::min(elements(a) * columns, elements(b) * rows);
}

Work work(const MatmulShape& s, Op) {
  const bool rows = s.grouped && s.group_axis == GroupAxis::rows;
  const double results = rows ? 1 : real(s.batch);
  return {product_flops(s.a, s.b, s.m, s.n) * (s.grouped ? 1 : results),
          bytes_of(s.a) + bytes_of(s.b) + results * real(s.m) * real(s.n) * size_of(s.out)};
}

Work work(const SddmmShape& s, Op) {
  return {2 * real(s.batch) * elements(s.out) * real(s.k),
          bytes_of(s.a) + bytes_of(s.b) + bytes_of(s.out)};
}

/// Which blocks meet is not known yet: as many as if both patterns were even.
Work work(const SpgemmShape& s, Op) {
  return {2 * elements(s.a) * elements(s.b) / std::max(real(s.k), 1.0),
          bytes_of(s.a) + bytes_of(s.b)};
}

/// Pairs (i, j) of a q x k rectangle with j <= i + shift.
double pairs_below(double q, double k, double shift) {
  const double first = std::clamp(-shift, 0.0, q);           // rows before it have none
  const double whole = std::clamp(k - shift - 1, first, q);  // rows from it on have all k
  const double ramp = (whole - first) * (first + whole + 2 * shift + 1) / 2;
  return ramp + (q - whole) * k;
}

/// (query, key) pairs of one head that are seen where queries stand at their default positions.
double visible_pairs(const AttentionShape& s) {
  const double q = real(s.q_length), k = real(s.kv_length);
  double pairs = q * k;
  if (s.window_right >= 0) pairs = pairs_below(q, k, k - q + real(s.window_right));
  if (s.window_left >= 0) pairs -= pairs_below(q, k, k - q - real(s.window_left) - 1);
  // Lengths that only the data knows: no more than if each sequence were the longest, and no more
  // than the rows that exist.
  double all = real(s.batch) * std::max(pairs, 0.0);
  if (s.q_packed) all = std::min(all, real(s.q_total) * k);
  if (s.kv_layout == KvLayout::packed) all = std::min(all, real(s.kv_total) * q);
  if (s.masked) {
    all = std::min(all, real(s.q_total) * real(s.mask_capacity) * real(s.mask_block.cols));
  }
  return all;
}

/// Rows of K that have to be read, over all sequences and heads.
double visible_key_rows(const AttentionShape& s) {
  const Visibility sight{.q_position = s.kv_length - s.q_length,
                         .kv_position = 0,
                         .used = {0, s.kv_length},
                         .window_left = s.window_left,
                         .window_right = s.window_right};
  const double longest = s.q_length > 0 ? real(sight.of_any(0, s.q_length - 1).size()) : 0;
  double keys = real(s.batch) * longest;
  if (s.kv_layout == KvLayout::packed) keys = std::min(keys, real(s.kv_total));
  if (s.kv_layout == KvLayout::paged) keys = std::min(keys, real(s.pages) * real(s.page));
  const double rows = keys * real(s.kv_heads);
  if (!s.masked) return rows;
  return std::min(rows, real(s.batch) * real(s.heads) * real(s.mask_rows) * real(s.mask_capacity) *
                            real(s.mask_block.cols));
}

Work work(const AttentionShape& s, Op op) {
  const bool backward = op == Op::attention_backward;
  // Forward: QK and PV. Backward: QK again, dP and dV of the value's width, dQ and dK of the key's.
  const double width = backward ? 3 * real(s.dim) + 2 * real(s.dim_v) : real(s.dim + s.dim_v);
  const double q_rows = real(s.q_total) * real(s.heads);
  const double k_rows = visible_key_rows(s);
  const double q_bytes = q_rows * (real(s.dim) * size_of(s.dtype) + real(s.dim_v) * size_of(s.out));
  const double k_bytes = k_rows * real(s.dim + s.dim_v) * size_of(s.dtype);
  const double lse_bytes = s.has_lse || backward ? 4 * q_rows : 0;
  // Backward reads what forward touched, reads dout, and writes dq, dk and dv.
  return {2 * visible_pairs(s) * real(s.heads) * width,
          (backward ? 2 : 1) * (q_bytes + k_bytes) + lse_bytes};
}

Work work(const MergeShape& s, Op) {
  const double rows = real(s.batch) * real(s.length) * real(s.heads);
  const double read = real(s.parts) * (real(s.dim) * size_of(s.dtype) + 4);
  return {2 * rows * real(s.parts) * real(s.dim), rows * (read + real(s.dim) * size_of(s.out))};
}

/// How a row's tiles cover a problem: the number of tiles, and the share of their area that counts.
struct Cover {
  double tiles = 0;  // 0: as many as it takes
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
DType input_dtype(const MergeShape& s) { return s.dtype; }
template <class Product>
DType input_dtype(const Product& s) {
  return s.a.dtype;
}

/// FLOPs a second that the device could give this dtype.
double peak_flops(const DeviceFacts& device, DType dtype) {
  if (device.kind == DeviceKind::cuda) {
    // f32 goes through the tensor cores at half the 16-bit rate, e4m3 at twice.
    const double factor = dtype == DType::f32 ? 0.5 : dtype == DType::e4m3 ? 2.0 : 1.0;
    return device.tensor_tflops * 1e12 * factor;
  }
  const double lanes = device.simd == "avx512"                          ? 16
                       : device.simd == "avx2"                          ? 8
                       : device.simd == "sse4" || device.simd == "neon" ? 4
                                                                        : 1;
  // Two fused multiply-adds a cycle, of two FLOPs each.
  return device.units * device.clock_ghz * 1e9 * lanes * 2 * 2;
}

/// The share of the peak that good kernels of a backend reach on large problems.
double efficiency(Backend backend, Op op, const DeviceFacts& device) {
  const bool softmax = op == Op::attention || op == Op::attention_backward;
  switch (backend) {
    case Backend::cpu:
      return softmax ? 0.35 : 0.5;
    // mma.sync reaches two thirds of what Hopper's own instructions do.
    case Backend::sm80:
      return device.compute_capability >= 90 ? 0.5 : 0.7;
    case Backend::sm90:
      return softmax ? 0.67 : 0.75;
  }
  return 1;
}

/// Milliseconds before the first tile starts: a launch, or waking the threads.
double overhead_ms(const DeviceFacts& device) {
  return device.kind == DeviceKind::cuda ? 0.004 : 0.002 + 0.001 * device.units;
}

}  // namespace

Work work_of(Op op, const AnyShape& shape) {
  return std::visit([op](const auto& s) { return work(s, op); }, shape);
}

double predict_ms(const KernelRow& row, Op op, const AnyShape& shape, const DeviceFacts& device) {
  const Work total = work_of(op, shape);
  const DType dtype = std::visit([](const auto& s) { return input_dtype(s); }, shape);
  // A rate of zero is unknown: that limit is left out.
  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };

  if (row.backend == Backend::sm90 && row.family() == "matmul") {
    const auto& s = std::get<static_cast<std::size_t>(Op::matmul)>(shape);
    return matmul_sm90_ms(s, row.tile, device, total.bytes) + overhead_ms(device);
  }
  if (row.backend == Backend::sm90 && row.family() == "skinny") {
    const auto& s = std::get<static_cast<std::size_t>(Op::matmul)>(shape);
    return skinny_sm90_ms(s, row.tile, device) + overhead_ms(device);
  }
  if (row.backend == Backend::sm90 && row.family() == "bsr") {
    const auto& s = std::get<static_cast<std::size_t>(Op::matmul)>(shape);
    return bsr_sm90_ms(s, row.tile, device, total.bytes) + overhead_ms(device);
  }
  if (row.backend == Backend::sm90 && row.family() == "attention") {
    const auto& s = std::get<static_cast<std::size_t>(Op::attention)>(shape);
    return attention_sm90_ms(s, row.tile, device, work(as_walked(s, row.tile), op)) +
           overhead_ms(device);
  }
  double time = seconds(total.bytes, device.memory_tbs * 1e12);
  if (op != Op::merge_states) {
    const Cover c = std::visit([&](const auto& s) { return cover(s, row.tile); }, shape);
    // Tensor cores compute whole tiles; a CPU kernel stops at the edge.
    double rate = peak_flops(device, dtype) * efficiency(row.backend, op, device);
    if (row.backend != Backend::cpu && c.fill > 0) rate *= c.fill;
    if (c.tiles > 0 && device.units > 0) {
      rate *= c.tiles / (std::ceil(c.tiles / device.units) * device.units);
    }
    time = std::max(time, seconds(total.flops, rate));
    // Each tile fetches its own rows and columns from L2; attention keeps its query rows.
    const bool attends = op == Op::attention || op == Op::attention_backward;
    const double fetched = 1.0 / row.tile.m + (attends ? 0 : 1.0 / row.tile.n);
    time =
        std::max(time, seconds(total.flops / 2 * fetched * size_of(dtype), device.l2_tbs * 1e12));
  }
  return time * 1e3 + overhead_ms(device);
}

}  // namespace tessera::planning
