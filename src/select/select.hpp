#pragma once

#include <string>
#include <vector>

#include "src/problem/describe.hpp"
#include "src/problem/shape.hpp"
#include "src/select/tile_table.hpp"

namespace tessera::planning {

/// Why a row cannot run a problem on a device; empty where it can.
std::vector<std::string> rejections(const KernelRow& row, Op op, const AnyShape& shape,
                                    const DeviceFacts& device);

/// The work of a problem: FLOPs that count and bytes that must move (a lower bound).
struct Work {
  double flops = 0;
  double bytes = 0;
};
Work work_of(Op op, const AnyShape& shape);

/// The cost model: milliseconds for a row that was not rejected.
double predict_ms(const KernelRow& row, Op op, const AnyShape& shape, const DeviceFacts& device);

/// Enumerates every row of every backend, rejects with reasons, ranks the rest.
Explanation select(const AnyProblem& problem, const DeviceFacts& device,
                   const Execution& execution);

/// The plan of what select chooses, without the words about it: for every call. Throws
/// Error(unsupported) with all of them where nothing takes the problem.
Plan choose(const AnyProblem& problem, const DeviceFacts& device, const Execution& execution);

}  // namespace tessera::planning
