#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/support/oracle.hpp"

namespace tessera::oracle {
namespace {

/// Unit roundoff of f32, in which every kernel accumulates.
constexpr double kUnit = 0x1p-24;

std::int64_t pick(std::int64_t batch, std::int64_t batches) { return batches == 1 ? 0 : batch; }

/// The lists of a BSR matrix with an optional batch on each of its three tensors.
struct Lists {
  DenseArray offsets, columns;
  std::int64_t block_rows = 0, block_cols = 0, rows = 0, batches = 1;
  bool values_batched = false;

  explicit Lists(const BsrMatrix& matrix)
      : offsets(read(matrix.row_offsets)),
        columns(read(matrix.col_indices)),
        block_rows(matrix.block_rows()),
        block_cols(matrix.block_cols()),
        rows(offsets.shape.back() - 1),
        values_batched(matrix.values.rank == 4) {
    if (offsets.shape.size() == 2) batches = std::max(batches, offsets.size(0));
    if (columns.shape.size() == 2) batches = std::max(batches, columns.size(0));
    if (values_batched) batches = std::max(batches, matrix.values.size(0));
    if (values_batched && matrix.values.size(0) == 0) batches = 0;
  }

  /// body(block row, block column, position in the list) for every stored block of one batch.
  template <class Body>
  void for_each_block(std::int64_t batch, Body body) const {
    const auto offset = [&](std::int64_t row) {
      if (offsets.shape.size() == 1) return static_cast<std::int64_t>(offsets({row}));
      return static_cast<std::int64_t>(offsets({pick(batch, offsets.size(0)), row}));
    };
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t p = offset(row); p < offset(row + 1); ++p) {
        const double column =
            columns.shape.size() == 1 ? columns({p}) : columns({pick(batch, columns.size(0)), p});
        body(row, static_cast<std::int64_t>(column), p);
      }
    }
  }
};

/// One side of a product as a dense matrix that marks the elements that are not stored. These are
/// in no sum, whatever the other factor is.
struct Side {
  std::int64_t batches = 1, rows = 0, cols = 0;
  bool scaled = false;
  std::vector<double> value;
  std::vector<char> stored;

  std::size_t at(std::int64_t batch, std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>((pick(batch, batches) * rows + row) * cols + col);
  }
};

/// The factors of an operand; 1 where there are none.
class Factors {
 public:
  explicit Factors(const Operand& operand) : present_(static_cast<bool>(operand.scale)) {
    if (present_) values_ = read(operand.scale);
  }

  /// Of element (i, j) of a dense tensor as it is stored.
  double dense(std::int64_t batch, std::int64_t i, std::int64_t j, std::int64_t rows,
               std::int64_t cols) const {
    if (!present_) return 1;
    const auto rank = values_.shape.size();
    if (rank == 1) return values_.values[0];
    const int last = static_cast<int>(rank) - 1;
    const std::int64_t r = box(i, rows, values_.size(last - 1)),
                       c = box(j, cols, values_.size(last));
    return rank == 2 ? values_({r, c}) : values_({pick(batch, values_.size(0)), r, c});
  }
  /// Of stored block p.
  double block(std::int64_t batch, std::int64_t p) const {
    if (!present_) return 1;
    if (values_.shape.size() == 2) return values_({pick(batch, values_.size(0)), p});
    return values_.values[values_.values.size() == 1 ? 0 : static_cast<std::size_t>(p)];
  }

 private:
  static std::int64_t box(std::int64_t i, std::int64_t length, std::int64_t count) {
    return count == 1 ? 0 : count == length ? i : i / 128;
  }
  bool present_;
  DenseArray values_;
};

Side side_of(const Operand& operand) {
  Side side;
  const bool turned = operand.transposed;
  const Factors factors(operand);
  side.scaled = static_cast<bool>(operand.scale);
  const auto resize = [&](std::int64_t rows, std::int64_t cols, std::int64_t batches) {
    side.batches = batches;
    side.rows = turned ? cols : rows;
    side.cols = turned ? rows : cols;
    side.value.assign(static_cast<std::size_t>(batches * rows * cols), 0.0);
    side.stored.assign(side.value.size(), 0);
  };
  const auto put = [&](std::int64_t batch, std::int64_t row, std::int64_t col, double value) {
    const std::size_t at = turned ? side.at(batch, col, row) : side.at(batch, row, col);
    side.value[at] = value;
    side.stored[at] = 1;
  };
  if (!operand.is_sparse()) {
    DenseArray dense = read(operand.dense);
    if (dense.shape.size() == 2) dense.shape.insert(dense.shape.begin(), 1);
    resize(dense.size(1), dense.size(2), dense.size(0));
    for (std::int64_t b = 0; b < dense.size(0); ++b) {
      for (std::int64_t i = 0; i < dense.size(1); ++i) {
        for (std::int64_t j = 0; j < dense.size(2); ++j) {
          const double factor = factors.dense(b, i, j, dense.size(1), dense.size(2));
          put(b, i, j, dense({b, i, j}) * factor);
        }
      }
    }
    return side;
  }
  const BsrMatrix& matrix = operand.sparse;
  const Lists lists(matrix);
  DenseArray values = read(matrix.values);
  if (values.shape.size() == 3) values.shape.insert(values.shape.begin(), 1);
  resize(matrix.rows, matrix.cols, lists.batches);
  for (std::int64_t b = 0; b < lists.batches; ++b) {
    lists.for_each_block(b, [&](std::int64_t row, std::int64_t col, std::int64_t p) {
      for (std::int64_t i = 0; i < lists.block_rows; ++i) {
        for (std::int64_t j = 0; j < lists.block_cols; ++j) {
          put(b, row * lists.block_rows + i, col * lists.block_cols + j,
              values({pick(b, values.size(0)), p, i, j}) * factors.block(b, p));
        }
      }
    });
  }
  return side;
}

/// A sum of products, and the sum of their sizes.
struct Sum {
  double value = 0, size = 0;
};

/// Element (i, j) over inner indices [begin, end).
Sum dot(const Side& a, const Side& b, std::int64_t a_batch, std::int64_t b_batch, std::int64_t i,
        std::int64_t j, std::int64_t begin, std::int64_t end) {
  Sum sum;
  for (std::int64_t t = begin; t < end; ++t) {
    const std::size_t left = a.at(a_batch, i, t), right = b.at(b_batch, t, j);
    if (!a.stored[left] || !b.stored[right]) continue;
    const double product = a.value[left] * b.value[right];
    sum.value += product;
    sum.size += std::fabs(product);
  }
  return sum;
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0.0 : x;
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::gelu_tanh: {
      const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return 0.5 * x * (1 + std::tanh(inner));
    }
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

/// The summands of one element before its activation.
struct Terms {
  Sum product;
  std::int64_t depth = 0;  // summands of the product
  bool scaled = false;     // whether factors multiply operands
  Sums sums = Sums::f32;
  double alpha = 1, beta = 0, former = 0, bias = 0;
  Activation activation = Activation::none;
};

void finish(const Terms& terms, double& value, double& slack) {
  // With beta = 0 the former contents are not read, even if they are NaN.
  const double kept = terms.beta == 0 ? 0.0 : terms.beta * terms.former;
  const double sum = terms.alpha * terms.product.value + kept + terms.bias;
  value = activate(terms.activation, sum);
  const double product_size = std::fabs(terms.alpha) * terms.product.size;
  slack = static_cast<double>(terms.depth + 2) * kUnit * product_size;
  // Factors round each operand or, in any order, the sum: two of them, their product, the sum.
  if (terms.scaled) slack += 4 * kUnit * product_size;
  if (terms.sums == Sums::fp8) slack += kFp8Unit * product_size;
  // alpha, beta and the two additions round once each.
  if (terms.alpha != 1 || kept != 0 || terms.bias != 0) {
    slack += 4 * kUnit * (product_size + std::fabs(kept) + std::fabs(terms.bias));
  }
  // The smooth activations have slopes up to 1.13. In f32 they compute 1 + erf, 1 + tanh or 1 +
  // exp, where cancellation leaves an error of a few ulps of the argument.
  if (terms.activation != Activation::none && terms.activation != Activation::relu) {
    slack = 1.13 * slack + 16 * kUnit * std::fabs(sum);
  }
}

double bias_at(const MatmulProblem& problem, const DenseArray& bias, std::int64_t batch,
               std::int64_t i, std::int64_t j) {
  if (!problem.epilogue.bias) return 0.0;
  const std::int64_t at = problem.epilogue.bias_axis == BiasAxis::row ? i : j;
  return bias.shape.size() == 2 ? bias({pick(batch, bias.size(0)), at}) : bias({at});
}

}  // namespace

Product matmul(const MatmulProblem& problem, const DenseArray* former, Sums sums) {
  const Side a = side_of(problem.a), b = side_of(problem.b);
  const Epilogue& epilogue = problem.epilogue;
  DenseArray out(std::vector<std::int64_t>(problem.out.shape.begin(),
                                           problem.out.shape.begin() + problem.out.rank));
  Product result{out, out};
  const DenseArray bias = epilogue.bias ? read(epilogue.bias) : DenseArray{};
  DenseArray kept;
  if (epilogue.beta != 0) {
    kept = epilogue.c ? read(epilogue.c) : former ? *former : read(problem.out);
  }
  const bool grouped = static_cast<bool>(problem.group_offsets);
  const bool by_rows = grouped && problem.group_axis == GroupAxis::rows;
  const DenseArray cuts = grouped ? read(problem.group_offsets) : DenseArray{};
  const auto cut = [&](std::int64_t g) { return static_cast<std::int64_t>(cuts({g})); };

  const std::int64_t batches = problem.out.rank == 3 ? problem.out.size(0) : 1;
  const std::int64_t m = problem.out.size(problem.out.rank - 2);
  const std::int64_t n = problem.out.size(problem.out.rank - 1);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    std::int64_t group = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      // A row of no group is zero.
      if (by_rows && (i < cut(0) || i >= cut(cuts.size(0) - 1))) continue;
      while (by_rows && group + 1 < cuts.size(0) - 1 && i >= cut(group + 1)) ++group;
      const std::int64_t begin = grouped && !by_rows ? cut(batch) : 0;
      const std::int64_t end = grouped && !by_rows ? cut(batch + 1) : a.cols;
      for (std::int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<std::size_t>((batch * m + i) * n + j);
        Terms terms;
        // If groups divide the inner dimension, a and b are single matrices.
        terms.product = dot(a, b, by_rows ? 0 : batch, by_rows ? group : batch, i, j, begin, end);
        terms.depth = end - begin;
        terms.scaled = a.scaled || b.scaled;
        terms.sums = sums;
        terms.alpha = epilogue.alpha;
        terms.beta = epilogue.beta;
        if (epilogue.beta != 0) {
          terms.former = kept.values[kept.values.size() == out.values.size()
                                         ? at
                                         : static_cast<std::size_t>(i * n + j)];
        }
        terms.bias = bias_at(problem, bias, by_rows ? group : batch, i, j);
        terms.activation = epilogue.activation;
        finish(terms, result.value.values[at], result.slack.values[at]);
      }
    }
  }
  return result;
}

namespace {

/// The product of two sides at the blocks of `out`.
Product sampled(const Side& a, const Side& b, const BsrMatrix& out, float alpha, float beta,
                const DenseArray* former) {
  const Lists lists(out);
  Product result;
  result.value = former ? *former : read(out.values);
  result.slack = DenseArray(result.value.shape);
  const DenseArray before = result.value;
  const std::int64_t batches =
      lists.values_batched ? out.values.size(0) : std::max({lists.batches, a.batches, b.batches});
  const std::int64_t block = lists.block_rows * lists.block_cols;
  const std::int64_t capacity = out.stored_blocks();
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::int64_t pool = lists.values_batched ? batch : 0;
    lists.for_each_block(batch, [&](std::int64_t row, std::int64_t col, std::int64_t p) {
      for (std::int64_t e = 0; e < block; ++e) {
        const auto at = static_cast<std::size_t>((pool * capacity + p) * block + e);
        const std::int64_t i = row * lists.block_rows + e / lists.block_cols;
        const std::int64_t j = col * lists.block_cols + e % lists.block_cols;
        Terms terms;
        terms.product = dot(a, b, batch, batch, i, j, 0, a.cols);
        terms.depth = a.cols;
        terms.alpha = alpha;
        terms.beta = beta;
        terms.former = before.values[at];
        finish(terms, result.value.values[at], result.slack.values[at]);
      }
    });
  }
  return result;
}

}  // namespace

Product sddmm(const SddmmProblem& problem, const DenseArray* former) {
  return sampled(side_of(problem.a), side_of(problem.b), problem.out, problem.alpha, problem.beta,
                 former);
}

Product spgemm(const SpgemmProblem& problem, const BsrMatrix& out, const DenseArray* former) {
  return sampled(side_of(problem.a), side_of(problem.b), out, problem.alpha, problem.beta, former);
}

Pattern spgemm_pattern(const SpgemmProblem& problem) {
  const Side a = side_of(problem.a), b = side_of(problem.b);
  const BsrMatrix &left = problem.a.sparse, &right = problem.b.sparse;
  const std::int64_t r = problem.a.transposed ? left.block_cols() : left.block_rows();
  const std::int64_t c = problem.b.transposed ? right.block_rows() : right.block_cols();
  Pattern pattern;
  pattern.rows = a.rows / r;
  pattern.cols = b.cols / c;
  pattern.offsets.assign(1, 0);
  for (std::int64_t row = 0; row < pattern.rows; ++row) {
    for (std::int64_t col = 0; col < pattern.cols; ++col) {
      // Blocks are stored whole, so one element of a block is enough.
      bool stored = false;
      for (std::int64_t t = 0; t < a.cols && !stored; ++t) {
        stored = a.stored[a.at(0, row * r, t)] && b.stored[b.at(0, t, col * c)];
      }
      if (stored) pattern.indices.push_back(col);
    }
    pattern.offsets.push_back(static_cast<std::int64_t>(pattern.indices.size()));
  }
  return pattern;
}

}  // namespace tessera::oracle
