#include <tessera/plan.hpp>

#include "src/api/families.hpp"
#include "src/api/planner.hpp"

namespace tessera {

using planning::Request;

Explanation explain(const AnyProblem& problem, const DeviceFacts& device,
                    const Execution& execution) {
  return planning::explain(api::families(), Request::of(problem, device, execution));
}

Plan plan(const AnyProblem& problem, const DeviceFacts& device, const Execution& execution) {
  const Request request = Request::of(problem, device, execution);
  return planning::public_plan(api::families(), planning::choose(api::families(), request));
}

Plan plan(const AnyProblem& problem, const Execution& execution) {
  const planning::AnyShape shape = planning::shape_of(problem);
  const Device device = planning::device_of(shape);
  const DeviceFacts& facts = api::facts_of(device);
  const Request request = Request::with_expansions(problem, shape, facts, execution);
  return planning::public_plan(api::families(), planning::choose(api::families(), request));
}

}  // namespace tessera
