#pragma once

#include <tessera/plan.hpp>

#include "src/core/overlap.hpp"

// Refuse a problem whose outputs overlap another of its tensors, or an output that `outputs` holds
// already. Exceptions, for running in place: the `c` of a product may be exactly `out`; `out` and
// `lse` of merge_states may be exactly one of `outs` and `lses`.
namespace tessera::planning {

void check_memory(const MatmulProblem& problem, core::Outputs& outputs);
void check_memory(const SddmmProblem& problem, core::Outputs& outputs);
/// The problem does not contain the result: `outputs` holds it already.
void check_memory(const SpgemmProblem& problem, core::Outputs& outputs);
void check_memory(const AttentionProblem& problem, core::Outputs& outputs);
void check_memory(const AttentionBackwardProblem& problem, core::Outputs& outputs);
void check_memory(const MergeStatesProblem& problem, core::Outputs& outputs);

}  // namespace tessera::planning
