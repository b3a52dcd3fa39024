#pragma once

#include <string>

#include <tessera/tessera.hpp>

#include "tests/support/oracle.hpp"

// Whether a result is as close to the truth as its dtype allows. Error budgets are derived from the
// arithmetic: see each function.
namespace tessera::oracle {

/// The worst element, its error and its budget.
struct Comparison {
  bool ok = true;
  std::string message;     ///< empty where ok
  double max_error = 0;    ///< error of the element that uses most of its budget
  double budget = 0;       ///< that element's budget
  double worst_ratio = 0;  ///< error / budget of that element; above 1 only if not ok
};

/// The worse of two comparisons, with both messages.
Comparison worst(Comparison a, const Comparison& b);

/// Per element: |x - truth| <= slack + half an ulp of the dtype. NaN and infinities must match.
Comparison compare_product(const Tensor& actual, const Product& expected, const std::string& name);

/// Per tile of 64 rows of one head (all of dim_v): the largest error is at most twice the
/// emulation's largest error in that tile, plus one ulp of the tile's largest value, plus the
/// slack. NaN and infinities must match per element.
Comparison compare_tiles(const Tensor& actual, const DenseArray& truth, const DenseArray& emulated,
                         const DenseArray& slack, const std::string& name);

/// Compares out by tiles, and lse (if present) by elements against its slack.
Comparison compare_attention(const AttentionProblem& problem, const Attention& truth,
                             const Attention& emulated);
/// Compares each requested gradient by tiles.
Comparison compare_gradients(const AttentionBackwardProblem& problem,
                             const AttentionGradients& truth, const AttentionGradients& emulated);
Comparison compare_merged(const MergeStatesProblem& problem, const Merged& expected);

// Compares a problem that has been run with its oracle. `former`: contents of the output before the
// run, where beta reads them.
Comparison check(const MatmulProblem& problem, const DenseArray* former = nullptr,
                 Sums sums = Sums::f32);
Comparison check(const SddmmProblem& problem, const DenseArray* former = nullptr);
Comparison check(const SpgemmProblem& problem, const BsrMatrix& out,
                 const DenseArray* former = nullptr);
Comparison check(const AttentionProblem& problem);
Comparison check(const AttentionBackwardProblem& problem);
Comparison check(const MergeStatesProblem& problem);

}  // namespace tessera::oracle
