#pragma once

#include <tessera/plan.hpp>

#include "src/ffi/execute.hpp"
#include "src/ffi/problems.hpp"

namespace tessera::python {

/// A plan for the problem of one call, with the schedule that `prepare` fills. It keeps shapes and
/// strides of the call's tensors, not their memory. A const object may run on several threads.
class PlannedCall {
 public:
  explicit PlannedCall(const Call& call);
  const Plan& plan() const { return plan_; }

  /// Reads the lists of `call`; its dense operands and results may be absent.
  void prepare(Call call) const;
  /// The problem has to be the planned one but for addresses, values and scales.
  void run(const Call& call) const;
  Explanation explain() const;

 private:
  Execution execution_for(const Call& call) const;

  AnyProblem problem_;  // its addresses are not used after construction
  Execution how_;       // what the caller forced
  Plan plan_;
  Scratch memory_;
  Buffer schedule_;
};

}  // namespace tessera::python
