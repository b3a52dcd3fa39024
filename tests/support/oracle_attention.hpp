#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/oracle.hpp"

// Shared by the forward and the backward oracle: inputs as doubles, addressed by sequence, and the
// visible keys of a row with their scores.
namespace tessera::oracle {

/// Unit roundoff of f32, in which kernels compute scores, softmax and sums.
inline constexpr double kUnit = 0x1p-24;

/// Half an ulp of one: the relative error of rounding to the dtype.
inline double unit_of(DType dtype) { return 0.5 * ulp(dtype, 1.0); }

/// Inputs of a problem as dense arrays, and their rows for (batch, head, index).
struct AttentionInputs {
  const AttentionProblem& problem;
  DenseArray q, k, v, sinks;
  std::vector<Sequence> sequences;
  std::int64_t heads = 0, kv_heads = 0, dim = 0, dim_v = 0;
  double scale = 1;

  explicit AttentionInputs(const AttentionProblem& source);

  std::int64_t kv_head(std::int64_t head) const { return head / (heads / kv_heads); }
  /// Row of a [batch, length, heads, *] or [total, heads, *] tensor.
  std::int64_t q_row(std::int64_t batch, std::int64_t head, std::int64_t i) const;
  /// The same for k and v, through the page table if there is one.
  std::int64_t kv_row(std::int64_t batch, std::int64_t head, std::int64_t j) const;
  /// Element of [batch, heads, q_length] or [heads, total_q].
  std::int64_t lse_at(std::int64_t batch, std::int64_t head, std::int64_t i) const;
  std::vector<std::int64_t> lse_shape() const;

  const double* q_at(std::int64_t row) const { return q.values.data() + row * dim; }
  const double* k_at(std::int64_t row) const { return k.values.data() + row * dim; }
  const double* v_at(std::int64_t row) const { return v.values.data() + row * dim_v; }
};

/// The keys that one query sees. `Real` is double for the truth and float for the emulation.
template <class Real>
struct ScoreRow {
  std::vector<std::int64_t> rows;  // of k and v
  std::vector<Real> scores;        // after scale and softcap
  std::vector<Real> slopes;        // d score / d (scale * q k)
  double largest_size = 0;         // of scale * sum |q||k|
};

template <class Real>
ScoreRow<Real> score_row(const AttentionInputs& in, std::int64_t batch, std::int64_t head,
                         std::int64_t i) {
  ScoreRow<Real> row;
  const double* query = in.q_at(in.q_row(batch, head, i));
  const Sequence& sequence = in.sequences[static_cast<std::size_t>(batch)];
  const Real cap = static_cast<Real>(in.problem.softcap);
  for (std::int64_t j = 0; j < sequence.kv_length; ++j) {
    if (!visible(in.problem, batch, head, i, j)) continue;
    const std::int64_t kv_row = in.kv_row(batch, head, j);
    const double* key = in.k_at(kv_row);
    Real sum = 0;
    double size = 0;
    for (std::int64_t d = 0; d < in.dim; ++d) {
      sum += static_cast<Real>(query[d]) * static_cast<Real>(key[d]);
      size += std::fabs(query[d] * key[d]);
    }
    Real score = static_cast<Real>(in.scale) * sum;
    Real slope = 1;
    if (cap != 0) {
      const Real squashed = std::tanh(score / cap);
      score = cap * squashed;
      slope = 1 - squashed * squashed;
    }
    row.rows.push_back(kv_row);
    row.scores.push_back(score);
    row.slopes.push_back(slope);
    row.largest_size = std::max(row.largest_size, std::fabs(in.scale) * size);
  }
  return row;
}

}  // namespace tessera::oracle
