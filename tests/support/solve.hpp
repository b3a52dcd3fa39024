#pragma once

#include "tests/support/compare.hpp"
#include "tests/support/generate.hpp"

// Runs a generated case with the library, and compares its result with the oracle.
namespace tessera::generate {

inline void solve(const MatmulProblem& problem, const Execution& execution = {}) {
  matmul(problem, execution);
}
inline void solve(const SddmmProblem& problem, const Execution& execution = {}) {
  sddmm(problem, execution);
}
inline void solve(const AttentionProblem& problem, const Execution& execution = {}) {
  attention(problem, execution);
}
inline void solve(const AttentionBackwardProblem& problem, const Execution& execution = {}) {
  attention_backward(problem, execution);
}
inline void solve(const MergeStatesProblem& problem, const Execution& execution = {}) {
  merge_states(problem, execution);
}

/// Compares the result of a case that has just been run with the oracle.
template <class Problem>
oracle::Comparison check(const Case<Problem>& c) {
  if constexpr (requires { oracle::check(c.problem, c.former_values()); }) {
    return oracle::check(c.problem, c.former_values());
  } else {
    return oracle::check(c.problem);
  }
}
inline oracle::Comparison check(const MergeCase& c) {
  return oracle::compare_merged(c.problem, c.expected);
}

}  // namespace tessera::generate
