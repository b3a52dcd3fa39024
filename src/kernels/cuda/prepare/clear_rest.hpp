#pragma once

#include <tessera/plan.hpp>

namespace tessera::cuda {

/// Clears the rows of a result that belong to no sequence (attention with packed queries, its
/// gradients) or to no group (products with grouped rows): those before the first offset and from
/// the last offset on. They become zeros, their log-sum-exps -inf, in stream order. The offsets are
/// read on the device, so a replayed graph uses their current values. Other problems launch
/// nothing.
void clear_rest(const AnyProblem& problem, void* stream);

}  // namespace tessera::cuda
