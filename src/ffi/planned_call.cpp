#include "src/ffi/planned_call.hpp"

#include <type_traits>
#include <variant>

namespace tessera::python {
namespace {

// Replace absent operands and results by the planned ones, with null data.

void fill(Tensor& tensor, const Tensor& planned) {
  if (tensor) return;
  tensor = planned;
  tensor.data = nullptr;
}
void fill(Operand& operand, const Operand& planned) {
  if (operand.is_sparse() || operand.dense) return;
  const Tensor scale = operand.scale;
  operand = planned;
  operand.dense.data = nullptr;
  if (scale) operand.scale = scale;
}
void fill(MatmulProblem& problem, const MatmulProblem& planned) {
  fill(problem.a, planned.a);
  fill(problem.b, planned.b);
  fill(problem.out, planned.out);
}
void fill(SddmmProblem& problem, const SddmmProblem& planned) {
  fill(problem.a, planned.a);
  fill(problem.b, planned.b);
}
void fill(SpgemmProblem&, const SpgemmProblem&) {}
void fill(AttentionProblem& problem, const AttentionProblem& planned) {
  for (Tensor AttentionProblem::*member :
       {&AttentionProblem::q, &AttentionProblem::k, &AttentionProblem::v, &AttentionProblem::out,
        &AttentionProblem::lse, &AttentionProblem::sinks})
    fill(problem.*member, planned.*member);
}
void fill(AttentionBackwardProblem&, const AttentionBackwardProblem&) {}
void fill(MergeStatesProblem&, const MergeStatesProblem&) {}

}  // namespace

PlannedCall::PlannedCall(const Call& call, const RunTensors& tensors)
    : tensors_(tensors),
      problem_(call.problem),
      how_(call.execution),
      plan_(tessera::plan(call.problem, call.execution)),
      memory_(device_of(call.problem)) {}

Execution PlannedCall::execution_for(const AnyProblem& problem, const Execution& given) const {
  Execution execution = on_current_stream(device_of(problem), given);
  execution.schedule = schedule_;
  return execution;
}

void PlannedCall::prepare(Call call) {
  if (plan_.schedule_bytes > 0 && !schedule_.data)
    schedule_ = {memory_.allocate(plan_.schedule_bytes), plan_.schedule_bytes};
  // Both variants hold the same alternative.
  std::visit(
      [&](auto& problem) {
        fill(problem, std::get<std::remove_cvref_t<decltype(problem)>>(problem_));
      },
      call.problem);
  tessera::prepare(plan_, call.problem, execution_for(call.problem, call.execution));
  if (plan_.expanded_bytes > 0) prepared_ = std::get<MatmulProblem>(call.problem);
}

Explanation PlannedCall::explain() const {
  return tessera::explain(problem_, device_facts(device_of(problem_)), how_);
}

void PlannedCall::run(const Call& call) const { run(call.problem, call.execution); }

void PlannedCall::run(const tvm::ffi::PackedArgs& tensors) const {
  run(tensors_.read(tensors, problem_, plan_.expanded_bytes > 0 ? &prepared_ : nullptr), how_);
}

void PlannedCall::run(const AnyProblem& problem, Execution execution) const {
  execution = execution_for(problem, execution);
  Scratch scratch(device_of(problem));
  execution.scratch = scratch.source();
  tessera::run(plan_, problem, execution);
}

}  // namespace tessera::python
