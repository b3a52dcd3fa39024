#include "tests/support/compare.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace tessera::oracle {
namespace {

std::string position(const std::vector<std::int64_t>& shape, std::size_t at) {
  std::string text = "]";
  auto rest = static_cast<std::int64_t>(at);
  for (std::size_t d = shape.size(); d-- > 0;) {
    text = (d ? ", " : "[") + std::to_string(rest % shape[d]) + text;
    rest /= shape[d];
  }
  return shape.empty() ? "[]" : text;
}

/// Finds the worst element of one tensor.
class Judge {
 public:
  Judge(std::string name, const Tensor& actual) : name_(std::move(name)), tensor_(actual) {
    shape_.assign(actual.shape.begin(), actual.shape.begin() + actual.rank);
  }

  bool same_shape(const DenseArray& expected) {
    if (expected.shape == shape_) return true;
    result_.ok = false;
    result_.message = name_ + ": shape of the expected result differs from " + to_string(tensor_);
    return false;
  }

  /// Compares NaN and infinities. True if that decides about the element.
  bool special(std::size_t at, double actual, double truth, double slack) {
    if (std::isnan(truth) || std::isnan(actual)) {
      if (std::isnan(truth) != std::isnan(actual)) wrong(at, actual, truth, "NaN");
      return true;
    }
    if (std::isinf(truth)) {
      if (actual != truth) wrong(at, actual, truth, "infinity");
      return true;
    }
    if (!std::isinf(actual)) return false;
    // A finite truth may round to infinity, or the allowed error may reach it.
    const double towards = std::signbit(actual) ? -truth : truth;
    const bool right = towards + slack + ulp(tensor_.dtype, truth) > largest(tensor_.dtype);
    if (!right) wrong(at, actual, truth, "infinity");
    return true;
  }

  void finite(std::size_t at, double actual, double truth, double budget) {
    // For a truth beyond the dtype's range, the largest value is right too.
    const double limit = largest(tensor_.dtype);
    const double error = std::fabs(actual - std::clamp(truth, -limit, limit));
    const double ratio = error == 0 ? 0.0 : error / budget;
    if (!(error <= budget)) ++offences_;
    if (ratio <= result_.worst_ratio && result_.budget != 0) return;
    result_.worst_ratio = ratio;
    result_.max_error = error;
    result_.budget = budget;
    if (error <= budget || special_failed_) return;
    fail(at, actual, truth, "error " + number(error) + " over the budget " + number(budget));
  }

  Comparison result() {
    if (!result_.ok) {
      result_.message += " (" + std::to_string(offences_) + " of " +
                         std::to_string(tensor_.numel()) + " elements)";
    }
    return result_;
  }

 private:
  static std::string number(double x) {
    std::ostringstream text;
    text.precision(9);
    text << x;
    return text.str();
  }

  void wrong(std::size_t at, double actual, double truth, const std::string& what) {
    ++offences_;
    if (!special_failed_) fail(at, actual, truth, what + " on one side only");
    special_failed_ = true;
  }

  void fail(std::size_t at, double actual, double truth, const std::string& why) {
    result_.ok = false;
    result_.message = name_ + position(shape_, at) + ": got " + number(actual) + ", expected " +
                      number(truth) + ": " + why;
  }

  std::string name_;
  Tensor tensor_;
  std::vector<std::int64_t> shape_;
  std::int64_t offences_ = 0;
  bool special_failed_ = false;
  Comparison result_;
};

constexpr std::int64_t kTileRows = 64;

}  // namespace

Comparison worst(Comparison a, const Comparison& b) {
  if (b.worst_ratio > a.worst_ratio) {
    a.worst_ratio = b.worst_ratio;
    a.max_error = b.max_error;
    a.budget = b.budget;
  }
  a.ok = a.ok && b.ok;
  if (!b.message.empty()) a.message += (a.message.empty() ? "" : "; ") + b.message;
  return a;
}

Comparison compare_product(const Tensor& actual, const Product& expected, const std::string& name) {
  Judge judge(name, actual);
  if (!judge.same_shape(expected.value)) return judge.result();
  const DenseArray got = read(actual);
  for (std::size_t at = 0; at < got.values.size(); ++at) {
    const double truth = expected.value.values[at], slack = expected.slack.values[at];
    if (judge.special(at, got.values[at], truth, slack)) continue;
    // The slack may move the value past a power of two, where ulps double.
    const double half_ulp = 0.5 * ulp(actual.dtype, std::fabs(truth) + slack);
    judge.finite(at, got.values[at], truth, slack + half_ulp);
  }
  return judge.result();
}

Comparison compare_tiles(const Tensor& actual, const DenseArray& truth, const DenseArray& emulated,
                         const DenseArray& slack, const std::string& name) {
  Judge judge(name, actual);
  if (!judge.same_shape(truth)) return judge.result();
  const DenseArray got = read(actual);
  const std::int64_t rank = actual.rank;
  const std::int64_t dim = actual.size(static_cast<int>(rank) - 1);
  const std::int64_t heads = rank > 1 ? actual.size(static_cast<int>(rank) - 2) : 1;
  const std::int64_t length = rank > 2 ? actual.size(static_cast<int>(rank) - 3) : 1;
  const std::int64_t batch = rank > 3 ? actual.size(0) : 1;
  const auto for_tile = [&](std::int64_t b, std::int64_t h, std::int64_t first, auto body) {
    for (std::int64_t i = first; i < std::min(length, first + kTileRows); ++i) {
      for (std::int64_t d = 0; d < dim; ++d) {
        body(static_cast<std::size_t>(((b * length + i) * heads + h) * dim + d));
      }
    }
  };
  for (std::int64_t tile = 0; tile < batch * heads; ++tile) {
    for (std::int64_t first = 0; first < length; first += kTileRows) {
      double yardstick = 0, allowed = 0, magnitude = 0;
      for_tile(tile / heads, tile % heads, first, [&](std::size_t at) {
        if (!std::isfinite(truth.values[at])) return;
        magnitude = std::max(magnitude, std::fabs(truth.values[at]));
        allowed = std::max(allowed, slack.values[at]);
        const double off = std::fabs(emulated.values[at] - truth.values[at]);
        if (std::isfinite(off)) yardstick = std::max(yardstick, off);
      });
      const double budget = 2 * yardstick + ulp(actual.dtype, magnitude) + allowed;
      for_tile(tile / heads, tile % heads, first, [&](std::size_t at) {
        if (judge.special(at, got.values[at], truth.values[at], budget)) return;
        judge.finite(at, got.values[at], truth.values[at], budget);
      });
    }
  }
  return judge.result();
}

Comparison compare_attention(const AttentionProblem& problem, const Attention& truth,
                             const Attention& emulated) {
  Comparison result =
      compare_tiles(problem.out, truth.out, emulated.out, truth.out_slack, "attention: out");
  if (problem.lse) {
    result =
        worst(result, compare_product(problem.lse, {truth.lse, truth.lse_slack}, "attention: lse"));
  }
  return result;
}

Comparison compare_gradients(const AttentionBackwardProblem& problem,
                             const AttentionGradients& truth, const AttentionGradients& emulated) {
  Comparison result;
  const auto judge = [&](const Tensor& actual, const DenseArray& value, const DenseArray& model,
                         const DenseArray& slack, const char* name) {
    if (actual) result = worst(result, compare_tiles(actual, value, model, slack, name));
  };
  judge(problem.dq, truth.dq, emulated.dq, truth.dq_slack, "attention_backward: dq");
  judge(problem.dk, truth.dk, emulated.dk, truth.dk_slack, "attention_backward: dk");
  judge(problem.dv, truth.dv, emulated.dv, truth.dv_slack, "attention_backward: dv");
  judge(problem.dsinks, truth.dsinks, emulated.dsinks, truth.dsinks_slack,
        "attention_backward: dsinks");
  return result;
}

Comparison compare_merged(const MergeStatesProblem& problem, const Merged& expected) {
  Comparison result = compare_product(problem.out, expected.out, "merge_states: out");
  if (problem.lse) {
    result = worst(result, compare_product(problem.lse, expected.lse, "merge_states: lse"));
  }
  return result;
}

Comparison check(const MatmulProblem& problem, const DenseArray* former, Sums sums) {
  return compare_product(problem.out, matmul(problem, former, sums), "matmul: out");
}

Comparison check(const SddmmProblem& problem, const DenseArray* former) {
  return compare_product(problem.out.values, sddmm(problem, former), "sddmm: out.values");
}

Comparison check(const SpgemmProblem& problem, const BsrMatrix& out, const DenseArray* former) {
  return compare_product(out.values, spgemm(problem, out, former), "spgemm: out.values");
}

Comparison check(const AttentionProblem& problem) {
  return compare_attention(problem, oracle::attention(problem), attention_emulated(problem));
}

Comparison check(const AttentionBackwardProblem& problem) {
  return compare_gradients(problem, oracle::attention_backward(problem),
                           attention_backward_emulated(problem));
}

Comparison check(const MergeStatesProblem& problem) {
  return compare_merged(problem, oracle::merge_states(problem));
}

}  // namespace tessera::oracle
