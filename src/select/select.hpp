#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/plan.hpp>

#include "src/kernels/family.hpp"
#include "src/problem/expand.hpp"
#include "src/problem/shape.hpp"

// Selection of the kernel row that runs a problem. The caller passes the families: all of them are
// in src/kernels/families.hpp; src/api passes them with what this build can launch.
namespace tessera::planning {

using Families = std::span<const KernelFamily>;

/// A product with dense copies of block-sparse operands, considered in place of the given one.
struct ExpandedShape {
  Expansion expansion;
  MatmulShape shape;
};

/// The input of selection. Nothing else influences it.
struct Request {
  AnyShape shape;
  DeviceFacts device;                // for a CPU, `units` is the maximum number of threads
  std::optional<Backend> backend{};  // consider this backend only
  std::string_view kernel{};         // consider the row of this name only; empty: any
  bool will_run = true;  // false: the tensors have no data, so the build need not have the kernel
  std::vector<ExpandedShape> expanded{};  // those whose copies fit into Execution::expand_bytes

  /// For the device that the tensors are on.
  static Request of(const AnyShape& shape, const DeviceFacts& device, const Execution& execution);
  /// The same, with the expansions that Execution::expand_bytes allows.
  static Request with_expansions(const AnyProblem& problem, const AnyShape& shape,
                                 const DeviceFacts& device, const Execution& execution);
  /// For any device: tensors without data count as being on that device. With expansions.
  static Request of(const AnyProblem& problem, const DeviceFacts& device,
                    const Execution& execution);
};

/// Makes the plan: with the row that the request names, else with the fastest row by the cost
/// model. An expanded product is taken where its predicted time is less. Throws Error(unsupported)
/// with all reasons if no row supports the problem.
std::shared_ptr<const Planned> choose(Families families, const Request& request);

/// Makes the same choice and describes all rows.
Explanation explain(Families families, const Request& request);

/// The public form of a plan.
Plan public_plan(Families families, const std::shared_ptr<const Planned>& planned);

}  // namespace tessera::planning
