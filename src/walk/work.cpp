#include "src/walk/work.hpp"

#include <algorithm>

#include "src/walk/arithmetic.hpp"
#include "src/walk/walk.hpp"

namespace tessera::planning {
namespace {

// Work is counted in double: products of the caller's sizes may exceed 2^63.

/// An upper bound of the stored elements of one matrix. A pool that several matrices share may hold
/// more.
double elements(const OperandShape& o) {
  const double places = real(o.rows) * real(o.cols);
  if (!o.sparse) return places;
  return std::min(places, real(o.stored) * real(o.block.rows) * real(o.block.cols));
}

double bytes_of(const OperandShape& o) {
  const double lists = o.sparse ? real(o.stored) * size_of(o.index) : 0;
  return real(o.batch) * (elements(o) * size_of(o.dtype) + lists);
}

/// An upper bound of the FLOPs of one product. An element of A meets at most the columns of B that
/// can store a block; an element of B meets at most the rows of A that can.
double product_flops(const OperandShape& a, const OperandShape& b, std::int64_t m, std::int64_t n) {
  const auto reach = [](const OperandShape& o, std::int64_t block, std::int64_t length) {
    return o.sparse ? std::min(real(length), real(o.stored) * real(block)) : real(length);
  };
  const double columns = reach(b, b.transposed ? b.block.rows : b.block.cols, n);
  const double rows = reach(a, a.transposed ? a.block.cols : a.block.rows, m);
  return 2 * std::min(elements(a) * columns, elements(b) * rows);
}

Work work(const MatmulShape& s) {
  const bool rows = s.grouped && s.group_axis == GroupAxis::rows;
  const double results = rows ? 1 : real(s.batch);
  return {product_flops(s.a, s.b, s.m, s.n) * (s.grouped ? 1 : results),
          bytes_of(s.a) + bytes_of(s.b) + results * real(s.m) * real(s.n) * size_of(s.out)};
}

Work work(const SddmmShape& s) {
  return {2 * real(s.batch) * elements(s.out) * real(s.k),
          bytes_of(s.a) + bytes_of(s.b) + bytes_of(s.out)};
}

/// An estimate, because it is not known which blocks meet: as for uniform patterns.
Work work(const SpgemmShape& s) {
  return {2 * elements(s.a) * elements(s.b) / std::max(real(s.k), 1.0),
          bytes_of(s.a) + bytes_of(s.b)};
}

/// The number of pairs (i, j) with j <= i + shift in a q x k rectangle.
double pairs_below(double q, double k, double shift) {
  const double first = std::clamp(-shift, 0.0, q);           // rows before it have no pair
  const double whole = std::clamp(k - shift - 1, first, q);  // rows from it on have k pairs
  const double ramp = (whole - first) * (first + whole + 2 * shift + 1) / 2;
  return ramp + (q - whole) * k;
}

/// The visible (query, key) pairs of one head, over all sequences, with queries at their default
/// positions.
double visible_pairs(const AttentionShape& s) {
  const double q = real(s.q_length), k = real(s.kv_length);
  double pairs = q * k;
  if (s.window_right >= 0) pairs = pairs_below(q, k, k - q + real(s.window_right));
  if (s.window_left >= 0) pairs -= pairs_below(q, k, k - q - real(s.window_left) - 1);
  // If only the data determines the lengths: at most as if each sequence were the longest, and at
  // most for the rows that exist.
  double all = real(s.batch) * std::max(pairs, 0.0);
  if (s.q_packed) all = std::min(all, real(s.q_total) * k);
  if (s.kv_layout == KvLayout::packed) all = std::min(all, real(s.kv_total) * q);
  if (s.masked) {
    all = std::min(all, real(s.q_total) * real(s.mask_capacity) * real(s.mask_block.cols));
  }
  return all;
}

/// The rows of K to read, over all sequences and heads.
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

Work attention_work(const AttentionShape& s, bool backward) {
  // Forward: QK (dim) and PV (dim_v). Backward: QK, dQ and dK (dim), dP and dV (dim_v).
  const double width = backward ? 3 * real(s.dim) + 2 * real(s.dim_v) : real(s.dim + s.dim_v);
  const double q_rows = real(s.q_total) * real(s.heads);
  const double k_rows = visible_key_rows(s);
  const double q_bytes = q_rows * (real(s.dim) * size_of(s.dtype) + real(s.dim_v) * size_of(s.out));
  const double k_bytes = k_rows * real(s.dim + s.dim_v) * size_of(s.kv_dtype());
  const double lse_bytes = s.has_lse || backward ? 4 * q_rows : 0;
  // Backward reads q, k, v and out, reads dout, and writes dq, dk and dv.
  return {2 * visible_pairs(s) * real(s.heads) * width,
          (backward ? 2 : 1) * (q_bytes + k_bytes) + lse_bytes};
}

Work work(const MergeShape& s) {
  const double rows = real(s.batch) * real(s.length) * real(s.heads);
  const double read = real(s.parts) * (real(s.dim) * size_of(s.dtype) + 4);
  return {2 * rows * real(s.parts) * real(s.dim), rows * (read + real(s.dim) * size_of(s.out))};
}

Work work(const AttentionShape& s) { return attention_work(s, false); }
Work work(const AttentionBackwardShape& s) { return attention_work(s, true); }

}  // namespace

Work work_of(const AnyShape& shape) {
  return std::visit([](const auto& s) { return work(s); }, shape);
}
Work work_of(const MatmulShape& shape) { return work(shape); }
Work work_of(const AttentionShape& shape) { return work(shape); }

}  // namespace tessera::planning
