#include <algorithm>
#include <limits>
#include <type_traits>

#include "tests/support/oracle_attention.hpp"

namespace tessera::oracle {
namespace {

std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

/// The sums of a gradient, in the precision of the evaluation, and the slack of each.
template <class Real>
struct Gradient {
  std::vector<Real> value;
  std::vector<double> size;     // sum of the summands' f32 errors
  std::vector<double> largest;  // largest rounding of a summand to the inputs' dtype

  explicit Gradient(std::size_t count) : value(count), size(count), largest(count) {}

  void add(std::size_t at, Real term, double error, double rounding) {
    value[at] += term;
    size[at] += error;
    largest[at] = std::max(largest[at], rounding);
  }
};

template <class Real>
struct Backward {
  const AttentionBackwardProblem& problem;
  AttentionInputs in;
  DenseArray out, lse, dout, dlse;
  Gradient<Real> dq, dk, dv, dsinks;

  explicit Backward(const AttentionBackwardProblem& source)
      : problem(source),
        in(source.forward),
        dout(read(source.dout)),
        dlse(source.dlse ? read(source.dlse) : DenseArray{}),
        dq(in.q.values.size()),
        dk(in.k.values.size()),
        dv(in.v.values.size()),
        dsinks(static_cast<std::size_t>(in.heads)) {
    const Attention forward = oracle::attention(source.forward);
    out = forward.out;
    lse = forward.lse;
    if (!kEmulate) return;
    for (double& x : out.values) x = round_to(source.forward.out.dtype, x);
    for (double& x : lse.values) x = round_to(DType::f32, x);
  }

  static constexpr bool kEmulate = std::is_same_v<Real, float>;

  /// Rounds to the inputs' dtype, as kernels do before the next product.
  Real narrowed(Real x) const {
    return kEmulate ? static_cast<Real>(round_to(problem.forward.q.dtype, x)) : x;
  }

  void query(std::int64_t batch, std::int64_t head, std::int64_t i) {
    const ScoreRow<Real> row = score_row<Real>(in, batch, head, i);
    const auto width = static_cast<std::size_t>(in.dim);
    const auto width_v = static_cast<std::size_t>(in.dim_v);
    const auto q_row = static_cast<std::size_t>(in.q_row(batch, head, i));
    const auto at_lse = static_cast<std::size_t>(in.lse_at(batch, head, i));
    const double* upstream = dout.values.data() + q_row * width_v;
    const double* result = out.values.data() + q_row * width_v;
    const Real log_sum = static_cast<Real>(lse.values[at_lse]);
    const Real upstream_lse = dlse.empty() ? Real{0} : static_cast<Real>(dlse.values[at_lse]);

    Real delta = 0;
    double delta_size = std::fabs(static_cast<double>(upstream_lse));
    double delta_squares = 0;
    for (std::size_t d = 0; d < width_v; ++d) {
      delta += static_cast<Real>(upstream[d]) * static_cast<Real>(result[d]);
      delta_size += std::fabs(upstream[d] * result[d]);
      delta_squares += upstream[d] * result[d] * upstream[d] * result[d];
    }
    // The error of delta from rounding `out`, for independent roundings.
    const double delta_rounding = unit_of(problem.forward.out.dtype) * std::sqrt(delta_squares);
    // As in the forward pass: an exp and scores with errors of a few ulps.
    const double error =
        kUnit * (16 + 4 * row.largest_size + 2 * std::fabs(static_cast<double>(log_sum)));
    // Sums of n summands, whose errors may all have one sign: equal ones are an example. Tensor
    // cores add 16 products of a narrow type at once, and cut the sum off instead of rounding it.
    const Sequence& sequence = in.sequences[static_cast<std::size_t>(batch)];
    const bool wide = problem.forward.q.dtype == DType::f32;
    const auto summed = [&](std::int64_t n) {
      return error + kUnit / (wide ? 2 : 4) * static_cast<double>(n);
    };
    const double of_query = summed(sequence.kv_length);
    const double of_key = summed(sequence.q_length * in.heads / in.kv_heads);
    const double unit = unit_of(problem.forward.q.dtype);

    if (problem.forward.sinks) {
      const double sink = in.sinks({head});
      const Real p = std::exp(static_cast<Real>(sink) - log_sum);
      const auto h = static_cast<std::size_t>(head);
      // A sink of -inf has no gradient.
      if (!std::isinf(sink)) {
        dsinks.add(h, p * (upstream_lse - delta), error * static_cast<double>(p) * delta_size, 0);
      }
    }
    for (std::size_t n = 0; n < row.rows.size(); ++n) {
      const auto kv = static_cast<std::size_t>(row.rows[n]);
      const double* key = in.k_at(row.rows[n]);
      const double* value = in.v_at(row.rows[n]);
      const double* q = in.q_at(static_cast<std::int64_t>(q_row));
      const Real p = std::exp(row.scores[n] - log_sum);
      Real dp = 0;
      double ds_size = delta_size;
      for (std::size_t d = 0; d < width_v; ++d) {
        dp += static_cast<Real>(upstream[d]) * static_cast<Real>(value[d]);
        ds_size += std::fabs(upstream[d] * value[d]);
      }
      const Real p_narrow = narrowed(p);
      for (std::size_t d = 0; d < width_v; ++d) {
        const double size = std::fabs(static_cast<double>(p) * upstream[d]);
        dv.add(kv * width_v + d, p_narrow * static_cast<Real>(upstream[d]), of_key * size,
               unit * size);
      }
      const Real ds = narrowed(p * (dp - delta + upstream_lse) * row.slopes[n]);
      const Real scale = static_cast<Real>(in.scale);
      ds_size *= static_cast<double>(p) * std::fabs(in.scale);
      const double rounding = unit * std::fabs(static_cast<double>(ds) * in.scale);
      // All keys of a query have the same delta. Its error adds up in dq, but not in dk, where each
      // query has its own.
      const double delta_part =
          delta_rounding * std::fabs(static_cast<double>(p * row.slopes[n]) * in.scale);
      for (std::size_t d = 0; d < width; ++d) {
        dq.add(q_row * width + d, scale * ds * static_cast<Real>(key[d]),
               (of_query * ds_size + delta_part) * std::fabs(key[d]), rounding * std::fabs(key[d]));
        dk.add(kv * width + d, scale * ds * static_cast<Real>(q[d]),
               of_key * ds_size * std::fabs(q[d]), (rounding + delta_part) * std::fabs(q[d]));
      }
    }
  }

  void store(const Tensor& wanted, const Gradient<Real>& gradient, DenseArray& value,
             DenseArray& slack) const {
    if (!wanted) return;
    value = DenseArray(shape_of(wanted));
    slack = DenseArray(shape_of(wanted));
    for (std::size_t n = 0; n < value.values.size(); ++n) {
      const double sum = static_cast<double>(gradient.value[n]);
      value.values[n] = kEmulate ? round_to(wanted.dtype, sum) : sum;
      slack.values[n] = gradient.size[n] + gradient.largest[n];
    }
  }

  AttentionGradients run() {
    for (std::size_t b = 0; b < in.sequences.size(); ++b) {
      for (std::int64_t h = 0; h < in.heads; ++h) {
        for (std::int64_t i = 0; i < in.sequences[b].q_length; ++i) {
          query(static_cast<std::int64_t>(b), h, i);
        }
      }
    }
    AttentionGradients result;
    store(problem.dq, dq, result.dq, result.dq_slack);
    store(problem.dk, dk, result.dk, result.dk_slack);
    store(problem.dv, dv, result.dv, result.dv_slack);
    store(problem.dsinks, dsinks, result.dsinks, result.dsinks_slack);
    return result;
  }
};

}  // namespace

AttentionGradients attention_backward(const AttentionBackwardProblem& problem) {
  return Backward<double>(problem).run();
}

AttentionGradients attention_backward_emulated(const AttentionBackwardProblem& problem) {
  return Backward<float>(problem).run();
}

Merged merge_states(const MergeStatesProblem& problem) {
  std::vector<DenseArray> outs, lses;
  for (const Tensor& out : problem.outs) outs.push_back(read(out));
  for (const Tensor& lse : problem.lses) lses.push_back(read(lse));
  const DenseArray sinks = problem.sinks ? read(problem.sinks) : DenseArray{};
  const std::vector<std::int64_t> shape = shape_of(problem.out);
  const bool packed = shape.size() == 3;
  const std::int64_t batch = packed ? 1 : shape[0], length = shape[packed ? 0 : 1];
  const std::int64_t heads = shape[packed ? 1 : 2], dim = shape[packed ? 2 : 3];
  const auto lse_shape = packed ? std::vector<std::int64_t>{heads, length}
                                : std::vector<std::int64_t>{batch, heads, length};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Merged merged{{DenseArray(shape), DenseArray(shape)},
                {DenseArray(lse_shape, -kInfinity), DenseArray(lse_shape)}};
  for (std::int64_t row = 0; row < batch * heads * length; ++row) {
    const std::int64_t b = row / (heads * length), h = row / length % heads, i = row % length;
    const auto at = static_cast<std::size_t>(row);
    double top = problem.sinks ? sinks({h}) : -kInfinity;
    for (const DenseArray& lse : lses) {
      top = lse.values[at] > top || std::isnan(lse.values[at]) ? lse.values[at] : top;
    }
    if (top == -kInfinity) continue;
    double total = problem.sinks ? std::exp(sinks({h}) - top) : 0.0;
    double lowest = 0;
    for (const DenseArray& lse : lses) {
      total += std::exp(lse.values[at] - top);
      if (std::isfinite(lse.values[at])) lowest = std::min(lowest, lse.values[at] - top);
    }
    merged.lse.value.values[at] = top + std::log(total);
    const double terms = static_cast<double>(lses.size());
    // Rounding of the differences of logarithms to f32, then an exp and a log with errors of a few
    // ulps.
    const double error = kUnit * (8 + terms + 2 * (std::fabs(top) - lowest));
    merged.lse.slack.values[at] = error;
    for (std::int64_t d = 0; d < dim; ++d) {
      const auto out_at = static_cast<std::size_t>(((b * length + i) * heads + h) * dim + d);
      double sum = 0, size = 0;
      for (std::size_t part = 0; part < outs.size(); ++part) {
        if (lses[part].values[at] == -kInfinity) continue;
        const double term =
            std::exp(lses[part].values[at] - top) / total * outs[part].values[out_at];
        sum += term;
        size += std::fabs(term);
      }
      merged.out.value.values[out_at] = sum;
      merged.out.slack.values[out_at] = error * size;
    }
  }
  return merged;
}

}  // namespace tessera::oracle
