#pragma once

#include <cstdint>

#include <tessera/plan.hpp>

namespace tessera::cuda {

/// Packed outputs have a row for each query (of a grouped product: each row of A) up to their size,
/// but the offsets, which only the device knows, may end sooner. Rows from there on become zeros,
/// and their lse -inf. Launches nothing where the problem has no such rows.
void clear_unused_rows(const AnyProblem& problem, void* stream);

}  // namespace tessera::cuda
