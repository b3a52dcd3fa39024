#pragma once

#include <tessera/plan.hpp>

#include "src/core/overlap.hpp"

// Refuses a problem with an output that shares memory with another of its tensors, or with what
// `outputs` holds already. In place are allowed: `c` of a product that is exactly `out`; `out` and
// `lse` of merge_states that are exactly one of `outs` and `lses`.
namespace tessera::planning {

void check_memory(const MatmulProblem& problem, core::Outputs& outputs);
void check_memory(const SddmmProblem& problem, core::Outputs& outputs);
/// The result is no part of this problem: `outputs` holds it.
void check_memory(const SpgemmProblem& problem, core::Outputs& outputs);
void check_memory(const AttentionProblem& problem, core::Outputs& outputs);
void check_memory(const AttentionBackwardProblem& problem, core::Outputs& outputs);
void check_memory(const MergeStatesProblem& problem, core::Outputs& outputs);

}  // namespace tessera::planning
