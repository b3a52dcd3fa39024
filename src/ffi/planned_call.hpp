#pragma once

#include <tessera/plan.hpp>

#include "src/ffi/execute.hpp"
#include "src/ffi/problems.hpp"

namespace tessera::python {

/// A plan for the problem of one call, with the schedule that `prepare` fills. It keeps the shapes
/// and strides of the call's tensors, not their memory. Several threads may run a const object.
class PlannedCall {
 public:
  PlannedCall(const Call& call, const RunTensors& tensors);
  const Plan& plan() const { return plan_; }

  /// Fills the schedule from the lists of `call`, whose dense operands and results may be absent.
  /// The first call allocates it.
  void prepare(Call call);
  /// Runs a call whose problem has the planned shapes; addresses, values and scales may differ.
  void run(const Call& call) const;
  /// The same for a problem without tensors beside its operands and results, which are given alone
  /// (RunTensors).
  void run(const tvm::ffi::PackedArgs& tensors) const;
  Explanation explain() const;

 private:
  Execution execution_for(const AnyProblem& problem, const Execution& given) const;

  void run(const AnyProblem& problem, Execution execution) const;

  RunTensors tensors_;
  AnyProblem problem_;  // its addresses are not used after construction
  Execution how_;       // the caller's backend, kernel and threads
  Plan plan_;
  Scratch memory_;
  Buffer schedule_;
  MatmulProblem prepared_;  // with a dense copy: whose values and lists it has
};

}  // namespace tessera::python
