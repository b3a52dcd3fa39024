#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/kernels/family.hpp"
#include "src/problem/shape.hpp"
#include "src/select/tuning.hpp"

// Which kernel row runs a problem. Families are handed in: src/kernels/families.hpp has all of
// them, src/api those that this build can launch.
namespace tessera::planning {

using Families = std::span<const KernelFamily>;

/// What selection is asked: nothing else decides, apart from the tuning.
struct Request {
  AnyShape shape;
  DeviceFacts device;  // of a CPU, `units` are the threads to use at most
  std::optional<Backend> backend{};
  std::string_view kernel{};  // the one row to consider, by its name; empty: any
  bool will_run = true;       // false: only shapes were given, so the build need not hold a kernel

  /// For the device that the tensors are on.
  static Request of(const AnyShape& shape, const DeviceFacts& device, const Execution& execution);
  /// For any device: tensors without data live nowhere yet, so that it counts as theirs.
  static Request of(const AnyProblem& problem, const DeviceFacts& device,
                    const Execution& execution);
};

/// The plan with the row that the request or the tuning names, else with the fastest one by the
/// cost model. Throws Error(unsupported) with all reasons where no row supports the problem.
std::shared_ptr<const Planned> choose(Families families, const Request& request,
                                      const Tuning& tuning);

/// The same with words about all rows.
Explanation explain(Families families, const Request& request, const Tuning& tuning);

/// The public form of a plan; its signature is the text that a tuning file has for the problem.
Plan public_plan(Families families, const std::shared_ptr<const Planned>& planned);

}  // namespace tessera::planning
