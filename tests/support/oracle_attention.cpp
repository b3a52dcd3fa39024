#include "tests/support/oracle_attention.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace tessera::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One element of an i32 or i64 list with any strides.
std::int64_t entry(const Tensor& list, std::initializer_list<std::int64_t> index) {
  std::int64_t at = 0;
  int d = 0;
  for (std::int64_t i : index) at += i * list.stride(d++);
  return list.dtype == DType::i64 ? static_cast<const std::int64_t*>(list.data)[at]
                                  : static_cast<const std::int32_t*>(list.data)[at];
}

std::int64_t entry_or(const Tensor& list, std::int64_t index, std::int64_t fallback) {
  return list ? entry(list, {index}) : fallback;
}

/// The index into a dimension of a list that may be 1, shared by all.
std::int64_t shared(const Tensor& list, std::int64_t batch) {
  return list.size(0) == 1 ? 0 : batch;
}

/// A head of a problem. Adjacent heads share lists evenly.
struct Head {
  std::int64_t index = 0, of = 1;
  std::int64_t in(const Tensor& list) const { return index * list.size(1) / of; }
};

/// Whether a row of a list names a block column, and where: the position in `indices`, at which
/// bit_tile can be read too.
struct Found {
  bool yes = false;
  std::int64_t batch = 0, head = 0, row = 0, position = 0;
};

Found find(const BlockList& list, std::int64_t batch, Head head, std::int64_t row,
           std::int64_t column) {
  if (!list) return {};
  const Tensor& bounds = list.counts ? list.counts : list.offsets;
  Found found{false, shared(bounds, batch), head.in(bounds), row, 0};
  if (list.counts) {
    const Tensor& indices = list.indices;
    const std::int64_t count = entry(list.counts, {found.batch, found.head, row});
    found.batch = shared(indices, batch);
    found.head = head.in(indices);
    for (std::int64_t t = 0; t < count; ++t) {
      if (entry(indices, {found.batch, found.head, row, t}) != column) continue;
      found.yes = true;
      found.position = t;
    }
    return found;
  }
  const std::int64_t begin = entry(list.offsets, {found.batch, found.head, row});
  const std::int64_t end = entry(list.offsets, {found.batch, found.head, row + 1});
  for (std::int64_t t = begin; t < end; ++t) {
    if (entry(list.indices, {t}) != column) continue;
    found.yes = true;
    found.position = t;
  }
  return found;
}

bool mask_holds(const BlockMask& mask, std::int64_t batch, Head head, std::int64_t i,
                std::int64_t j) {
  const std::int64_t row = i / mask.block_q, column = j / mask.block_kv;
  if (find(mask.full, batch, head, row, column).yes) return true;
  const Found partial = find(mask.partial, batch, head, row, column);
  if (!partial.yes) return false;
  if (!mask.bit_tile) return true;
  const std::int64_t tile =
      mask.bit_tile.rank == 1
          ? entry(mask.bit_tile, {partial.position})
          : entry(mask.bit_tile, {shared(mask.bit_tile, batch), head.in(mask.bit_tile), partial.row,
                                  partial.position});
  const std::int64_t in_row = i % mask.block_q, in_column = j % mask.block_kv;
  const std::int64_t at = tile * mask.bits.stride(0) + in_row * mask.bits.stride(1) +
                          in_column / 8 * mask.bits.stride(2);
  return (static_cast<const std::uint8_t*>(mask.bits.data)[at] >> (in_column % 8)) & 1;
}

bool sees(const AttentionProblem& problem, const Sequence& sequence, std::int64_t batch,
          std::int64_t head, std::int64_t i, std::int64_t j) {
  if (j < sequence.kv_begin || j >= sequence.kv_end) return false;
  const std::int64_t distance = (sequence.kv_position + j) - (sequence.q_position + i);
  if (problem.causal && distance > 0) return false;
  if (problem.window_left && distance < -*problem.window_left) return false;
  if (problem.window_right && distance > *problem.window_right) return false;
  const std::int64_t heads = problem.q.size(problem.q.rank - 2);
  return !problem.mask || mask_holds(problem.mask, batch, {head, heads}, i, j);
}

/// Softmax of one row of scores, and its product with v.
template <class Real>
void attend(const AttentionInputs& in, std::int64_t batch, std::int64_t head, std::int64_t i,
            Sums score_sums, Attention& result) {
  const bool emulate = std::is_same_v<Real, float>;
  const ScoreRow<Real> row = score_row<Real>(in, batch, head, i);
  const std::int64_t out_row = in.q_row(batch, head, i) * in.dim_v;
  double& lse = result.lse.values[static_cast<std::size_t>(in.lse_at(batch, head, i))];
  const double sink = in.problem.sinks ? in.sinks({head}) : -kInfinity;
  if (row.rows.empty()) {
    lse = sink;
    return;
  }
  Real top = static_cast<Real>(sink);
  for (Real score : row.scores) top = score > top || std::isnan(score) ? score : top;
  // The maximum keeps a NaN: every comparison with it is false.
  Real total = in.problem.sinks ? std::exp(static_cast<Real>(sink) - top) : Real{0};
  std::vector<Real> weights;
  for (Real score : row.scores) {
    weights.push_back(std::exp(score - top));
    total += weights.back();
  }
  lse = static_cast<double>(top + std::log(total));
  if (emulate) {
    const DType dtype = in.problem.q.dtype;
    // P in FP8 is multiplied by 256 first, so that its range is used.
    const double unit = dtype == DType::e4m3 ? 256 : 1;
    for (Real& weight : weights)
      weight = static_cast<Real>(round_to(dtype, static_cast<double>(weight) * unit) / unit);
  }
  // Error of a score, relative to the sum of its summands.
  const double of_scores = score_sums == Sums::fp8 ? kFp8Unit : kUnit;
  std::vector<Real> sums(static_cast<std::size_t>(in.dim_v), Real{0});
  std::vector<double> sizes(sums.size(), 0.0), largest_terms(sums.size(), 0.0);
  for (std::size_t n = 0; n < weights.size(); ++n) {
    const double* value = in.v_at(row.rows[n]);
    for (std::size_t d = 0; d < sums.size(); ++d) {
      sums[d] += weights[n] * static_cast<Real>(value[d]);
      const double size = std::fabs(static_cast<double>(weights[n] / total) * value[d]);
      sizes[d] += size;
      largest_terms[d] = std::max(largest_terms[d], size);
    }
  }
  for (std::size_t d = 0; d < sums.size(); ++d) {
    const auto at = static_cast<std::size_t>(out_row) + d;
    result.out.values[at] = static_cast<double>(sums[d] / total);
    if (emulate) continue;
    // An exp with an error of a few ulps, scores with errors of a few ulps of their summands
    // (twice: numerator and denominator), and one P that rounds the other way.
    result.out_slack.values[at] = (8 * kUnit + 4 * of_scores * row.largest_size) * sizes[d] +
                                  unit_of(in.problem.q.dtype) * largest_terms[d];
  }
  if (!emulate) {
    const auto terms = static_cast<double>(weights.size());
    result.lse_slack.values[static_cast<std::size_t>(in.lse_at(batch, head, i))] =
        kUnit *
            (static_cast<double>(in.dim + 8) * row.largest_size + terms + 16 + 2 * std::fabs(lse)) +
        (score_sums == Sums::fp8 ? of_scores * row.largest_size : 0);
  }
}

template <class Real>
Attention forward(const AttentionProblem& problem, Sums sums) {
  const AttentionInputs in(problem);
  const std::vector<std::int64_t> shape(problem.out.shape.begin(),
                                        problem.out.shape.begin() + problem.out.rank);
  Attention result;
  result.out = DenseArray(shape);
  result.out_slack = DenseArray(shape);
  result.lse = DenseArray(in.lse_shape(), -kInfinity);
  result.lse_slack = DenseArray(in.lse_shape());
  for (std::size_t b = 0; b < in.sequences.size(); ++b) {
    for (std::int64_t h = 0; h < in.heads; ++h) {
      for (std::int64_t i = 0; i < in.sequences[b].q_length; ++i) {
        attend<Real>(in, static_cast<std::int64_t>(b), h, i, sums, result);
      }
    }
  }
  return result;
}

}  // namespace

std::int64_t batches(const AttentionProblem& problem) {
  if (problem.q_offsets) return problem.q_offsets.size(0) - 1;
  return problem.q.size(0);
}

Sequence sequence(const AttentionProblem& problem, std::int64_t batch) {
  Sequence s;
  if (problem.q_offsets) {
    s.q_begin = entry(problem.q_offsets, {batch});
    s.q_length = entry(problem.q_offsets, {batch + 1}) - s.q_begin;
  } else {
    s.q_length = problem.q.size(1);
  }
  if (problem.kv_offsets) {
    s.kv_row = entry(problem.kv_offsets, {batch});
    s.kv_length = entry(problem.kv_offsets, {batch + 1}) - s.kv_row;
  } else if (problem.page_table) {
    s.kv_length = problem.page_table.size(1) * problem.k.size(1);
  } else {
    s.kv_length = problem.k.size(1);
  }
  s.kv_begin = entry_or(problem.kv_begin, batch, 0);
  s.kv_end = entry_or(problem.kv_end, batch, s.kv_length);
  s.kv_position = entry_or(problem.kv_position, batch, 0);
  s.q_position = entry_or(problem.q_position, batch, s.kv_position + s.kv_end - s.q_length);
  return s;
}

bool visible(const AttentionProblem& problem, std::int64_t batch, std::int64_t head, std::int64_t i,
             std::int64_t j) {
  return sees(problem, sequence(problem, batch), batch, head, i, j);
}

std::int64_t visible_pairs(const AttentionProblem& problem) {
  const std::int64_t heads = problem.q.size(problem.q.rank - 2);
  std::int64_t pairs = 0;
  for (std::int64_t b = 0; b < batches(problem); ++b) {
    const Sequence s = sequence(problem, b);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < s.q_length; ++i) {
        for (std::int64_t j = s.kv_begin; j < s.kv_end; ++j) pairs += sees(problem, s, b, h, i, j);
      }
    }
  }
  return pairs;
}

/// Multiplies rows [.., heads, dim] by their factors: for all, per head, per outer index and head,
/// or these for each 64 or 128 rows.
static void scale_rows(DenseArray& rows, const Tensor& scale) {
  if (!scale) return;
  const DenseArray factors = read(scale);
  const std::size_t rank = rows.shape.size();
  const std::int64_t heads = rows.shape[rank - 2], dim = rows.shape[rank - 1];
  const std::int64_t inner = rows.shape[rank - 3];
  const bool by_rows = scale.rank + 1 == static_cast<int>(rank);
  const std::int64_t blocks = by_rows ? scale.size(scale.rank - 1) : 1;
  const std::int64_t each = blocks == (inner + 127) / 128 ? 128 : 64;
  for (std::size_t at = 0; at < rows.values.size(); ++at) {
    const std::int64_t row = static_cast<std::int64_t>(at) / dim;
    const std::int64_t head = row % heads, outer = row / heads / inner;
    std::int64_t factor = 0;
    if (by_rows)
      factor = (outer * heads + head) * blocks + row / heads % inner / each;
    else if (scale.rank == 2)
      factor = outer * heads + head;
    else if (scale.size(0) > 1)
      factor = head;
    rows.values[at] *= factors.values[static_cast<std::size_t>(factor)];
  }
}

AttentionInputs::AttentionInputs(const AttentionProblem& source)
    : problem(source),
      q(read(source.q)),
      k(read(source.k)),
      v(read(source.v)),
      sinks(source.sinks ? read(source.sinks) : DenseArray{}),
      heads(source.q.size(source.q.rank - 2)),
      kv_heads(source.k.size(source.k.rank - 2)),
      dim(source.q.size(source.q.rank - 1)),
      dim_v(source.v.size(source.v.rank - 1)),
      scale(source.scale ? *source.scale
            : dim == 0   ? 1
                         : 1 / std::sqrt(static_cast<double>(dim))) {
  for (std::int64_t b = 0; b < batches(source); ++b) sequences.push_back(sequence(source, b));
  scale_rows(q, source.q_scale);
  scale_rows(k, source.k_scale);
  scale_rows(v, source.v_scale);
}

std::int64_t AttentionInputs::q_row(std::int64_t batch, std::int64_t head, std::int64_t i) const {
  const std::int64_t row = problem.q_offsets
                               ? sequences[static_cast<std::size_t>(batch)].q_begin + i
                               : batch * problem.q.size(1) + i;
  return row * heads + head;
}

std::int64_t AttentionInputs::kv_row(std::int64_t batch, std::int64_t head, std::int64_t j) const {
  std::int64_t row = 0;
  if (problem.kv_offsets) {
    row = sequences[static_cast<std::size_t>(batch)].kv_row + j;
  } else if (problem.page_table) {
    const std::int64_t page = problem.k.size(1);
    row = entry(problem.page_table, {batch, j / page}) * page + j % page;
  } else {
    row = batch * problem.k.size(1) + j;
  }
  return row * kv_heads + kv_head(head);
}

std::int64_t AttentionInputs::lse_at(std::int64_t batch, std::int64_t head, std::int64_t i) const {
  if (problem.q_offsets) {
    return head * problem.q.size(0) + sequences[static_cast<std::size_t>(batch)].q_begin + i;
  }
  return (batch * heads + head) * problem.q.size(1) + i;
}

std::vector<std::int64_t> AttentionInputs::lse_shape() const {
  if (problem.q_offsets) return {heads, problem.q.size(0)};
  return {problem.q.size(0), heads, problem.q.size(1)};
}

Attention attention(const AttentionProblem& problem, Sums sums) {
  return forward<double>(problem, sums);
}

Attention attention_emulated(const AttentionProblem& problem) {
  Attention result = forward<float>(problem, Sums::f32);
  for (double& x : result.out.values) x = round_to(problem.out.dtype, x);
  return result;
}

}  // namespace tessera::oracle
