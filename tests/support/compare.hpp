#pragma once

#include <string>

#include <tessera/tessera.hpp>

#include "tests/support/oracle.hpp"

// Whether a result is as close to the truth as its dtype allows. Tolerances are budgets that follow
// from the arithmetic, not guesses: see each function.
namespace tessera::oracle {

/// The worst element: where it is, how far off and how far it may be.
struct Comparison {
  bool ok = true;
  std::string message;     ///< empty where ok
  double max_error = 0;    ///< error of the element that uses most of its budget
  double budget = 0;       ///< that element's budget
  double worst_ratio = 0;  ///< error / budget of that element; may pass 1 only where not ok
};

/// Keeps the worse of two, messages joined.
Comparison worst(Comparison a, const Comparison& b);

/// |x - truth| <= slack + half an ulp of the dtype, element by element, NaN and infinities first.
Comparison compare_product(const Tensor& actual, const Product& expected, const std::string& name);

/// Per tile of 64 rows of one head (all of dim_v): the largest error is at most twice the
/// emulation's largest error in that tile, plus one ulp of the tile's largest value, plus the
/// slack. NaN and infinities element by element, first.
Comparison compare_tiles(const Tensor& actual, const DenseArray& truth, const DenseArray& emulated,
                         const DenseArray& slack, const std::string& name);

/// out by tiles; lse (where the problem has one) by element against its slack.
Comparison compare_attention(const AttentionProblem& problem, const Attention& truth,
                             const Attention& emulated);
/// Each gradient that the problem asks for, by tiles.
Comparison compare_gradients(const AttentionBackwardProblem& problem,
                             const AttentionGradients& truth, const AttentionGradients& emulated);
Comparison compare_merged(const MergeStatesProblem& problem, const Merged& expected);

// A problem that has been run against its oracle, in one call. `former`: contents of the output
// from before the run, where beta reads them.
Comparison check(const MatmulProblem& problem, const DenseArray* former = nullptr);
Comparison check(const SddmmProblem& problem, const DenseArray* former = nullptr);
Comparison check(const SpgemmProblem& problem, const BsrMatrix& out,
                 const DenseArray* former = nullptr);
Comparison check(const AttentionProblem& problem);
Comparison check(const AttentionBackwardProblem& problem);
Comparison check(const MergeStatesProblem& problem);

}  // namespace tessera::oracle
