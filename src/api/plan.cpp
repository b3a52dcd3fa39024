#include <tessera/plan.hpp>

#include <variant>

#include "src/api/tuning.hpp"
#include "src/problem/shape.hpp"

namespace tessera {

Explanation explain(const AnyProblem& problem, const DeviceFacts& device,
                    const Execution& execution) {
  return planning::select_tuned(problem, device, execution, api::tuning_of(device.name));
}

Plan plan(const AnyProblem& problem, const DeviceFacts& device, const Execution& execution) {
  return planning::choose_tuned(problem, device, execution, api::tuning_of(device.name));
}

Plan plan(const AnyProblem& problem, const Execution& execution) {
  const planning::AnyShape shape = planning::shape_of(problem);
  const Device device = std::visit([](const auto& s) { return s.device; }, shape);
  return plan(problem, device_facts(device), execution);
}

}  // namespace tessera
