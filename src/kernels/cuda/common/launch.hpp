#pragma once

#include <span>

#include <tessera/execution.hpp>
#include <tessera/plan.hpp>

#include "src/problem/shape.hpp"

namespace tessera::cuda {

struct SpgemmPattern;

/// spgemm's result, which is no part of its problem.
struct SpgemmResult {
  const BsrMatrix& out;
  const SpgemmPattern* pattern;  // to be written into out's lists; null where out has its own
};

/// What a family's `launch<tile>` gets: a problem that the row accepts, on the current device.
struct Launch {
  const Plan& plan;
  const AnyProblem& problem;
  const planning::AnyShape& shape;
  const Execution& execution;
  const SpgemmResult* spgemm = nullptr;  // of that op alone
};

using Launcher = void (*)(const Launch&);

/// One launcher for each row of the backend's table, in its order; null where the build left the
/// row out. Written by the build from the table.
std::span<const Launcher> launchers(Backend backend);

}  // namespace tessera::cuda
