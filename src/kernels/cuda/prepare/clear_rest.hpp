#pragma once

#include <tessera/plan.hpp>

namespace tessera::cuda {

/// Rows of a result that belong to no sequence (attention with packed queries) or to no group
/// (grouped rows of a product): those before the first offset and from the last one on. Writes
/// zeros there, and -inf into their log-sum-exps, in the stream's order. The offsets are read on
/// the device, so a replayed graph follows what they are then. Other problems launch nothing.
void clear_rest(const AnyProblem& problem, void* stream);

}  // namespace tessera::cuda
