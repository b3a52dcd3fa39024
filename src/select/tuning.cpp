#include "src/select/tuning.hpp"

#include <algorithm>

#include <tessera/error.hpp>

#include "src/select/select.hpp"
#include "src/select/workspace.hpp"

namespace tessera {

const char* to_string(ChosenBy chosen_by) {
  switch (chosen_by) {
    case ChosenBy::cost_model:
      return "cost model";
    case ChosenBy::tuning_file:
      return "tuning file";
    case ChosenBy::execution:
      return "execution.kernel";
  }
  return "?";
}

namespace planning {
namespace {

/// The row that execution.kernel names; throws where none of that name does the operation.
const KernelRow& forced_row(Op op, const std::string& name) {
  if (const KernelRow* row = row_named(name); row && row->does(op)) return *row;
  std::string known;
  for (const Backend backend : {Backend::sm90, Backend::sm80, Backend::cpu}) {
    for (const KernelRow& row : kernel_table(backend)) {
      if (!row.does(op)) continue;
      known += (known.empty() ? "" : ", ") + std::string(row.name);
    }
  }
  throw Error(ErrorCode::invalid_argument, std::string("execution: kernel: expected a row for ") +
                                               to_string(op) + " (" + known + "), got '" +
                                               name.substr(0, 100) + "'");
}

const KernelRow* preferred_row(const Tuning& tuning, const std::string& signature) {
  if (tuning.rows.empty()) return nullptr;
  const auto found = tuning.rows.find(signature);
  return found == tuning.rows.end() ? nullptr : found->second;
}

/// The problem's shape, where a plan for the device exists: tensors that say otherwise have no data
/// yet, and the device asked about is theirs.
AnyShape shape_on(const AnyProblem& problem, const DeviceFacts& device) {
  AnyShape shape = shape_of(problem);
  std::visit(
      [&](auto& s) {
        if (s.device.kind != device.kind) s.device = {device.kind, 0};
      },
      shape);
  return shape;
}

/// Why a row cannot take the place of a plan's; empty where it can.
std::vector<std::string> reasons_against(const KernelRow& row, const Plan& plan,
                                         const AnyShape& shape, const DeviceFacts& device,
                                         const Execution& execution) {
  std::vector<std::string> reasons = rejections(row, plan.op, shape, device);
  if (execution.backend && *execution.backend != row.backend) {
    reasons.push_back(std::string("execution.backend asks for ") + to_string(*execution.backend));
  }
  return reasons;
}

/// The same problem by another row. Threads follow from the problem alone.
void move_to(const KernelRow& row, Plan& plan, const AnyShape& shape, const DeviceFacts& device) {
  const BufferSizes buffers = buffer_sizes(row, plan.op, shape, plan.threads);
  plan.backend = row.backend;
  plan.kernel = static_cast<int>(&row - kernel_table(row.backend).data());
  plan.kernel_name = row.name;
  plan.workspace_bytes = buffers.workspace;
  plan.schedule_bytes = buffers.schedule;
  plan.predicted_ms = predict_ms(row, plan.op, shape, device);
}

[[noreturn]] void refuse_forced(const std::string& name, const std::string& problem,
                                const std::vector<std::string>& reasons) {
  std::string all;
  for (const std::string& reason : reasons) all += (all.empty() ? "" : "; ") + reason;
  throw Error(ErrorCode::unsupported,
              "execution: kernel: " + name + " does not take " + problem + ": " + all);
}

}  // namespace

Plan choose_tuned(const AnyProblem& problem, const DeviceFacts& device, const Execution& execution,
                  const Tuning& tuning) {
  const bool forced = !execution.kernel.empty();
  const KernelRow* row = forced ? &forced_row(op_of(problem), execution.kernel) : nullptr;
  Plan plan = choose(problem, device, execution);
  if (!forced) row = preferred_row(tuning, plan.signature);
  if (!row || plan.kernel_name == row->name) return plan;
  const AnyShape shape = shape_on(problem, device);
  const auto reasons = reasons_against(*row, plan, shape, device, execution);
  if (reasons.empty()) {
    move_to(*row, plan, shape, device);
  } else if (forced) {
    refuse_forced(execution.kernel, plan.signature, reasons);
  }
  return plan;
}

Explanation select_tuned(const AnyProblem& problem, const DeviceFacts& device,
                         const Execution& execution, const Tuning& tuning) {
  const bool forced = !execution.kernel.empty();
  const KernelRow* row = forced ? &forced_row(op_of(problem), execution.kernel) : nullptr;
  Explanation e = select(problem, device, execution);
  e.tuning = tuning.file;
  if (const KernelRow* preferred = preferred_row(tuning, e.problem)) {
    e.preferred = preferred->name;
    if (!forced) row = preferred;
  }
  if (!row) return e;
  std::vector<Candidate>& all = e.candidates;
  const auto at = std::find_if(all.begin(), all.end(),
                               [&](const Candidate& c) { return c.kernel == row->name; });
  const bool fits = at->reasons.empty();
  if (!fits && !forced) return e;  // passed over: the cost model's choice stands
  e.chosen_by = forced ? ChosenBy::execution : ChosenBy::tuning_file;
  std::rotate(all.begin(), at, at + 1);
  if (forced) all.erase(all.begin() + 1, all.end());  // no other is looked at
  e.supported = fits;
  if (fits) {
    move_to(*row, e.plan, shape_on(problem, device), device);
  } else {
    e.plan = {};
  }
  return e;
}

}  // namespace planning
}  // namespace tessera
