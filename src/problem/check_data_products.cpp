#include "src/core/check_lists.hpp"
#include "src/problem/shape.hpp"

namespace tessera::planning {

using namespace core;  // the checks

namespace {

void check_operand_data(const Where& where, const Operand& operand) {
  check_pointer(where / "scale", operand.scale);
  if (!operand.is_sparse()) return check_pointer(where, operand.dense);
  check_pointers(where / "sparse", operand.sparse);
  check_bsr_lists(where / "sparse", operand.sparse);
}

}  // namespace

void check_data(const MatmulProblem& problem, const MatmulShape& shape) {
  const Where op("matmul");
  check_operand_data(op / "a", problem.a);
  check_operand_data(op / "b", problem.b);
  check_pointer(op / "out", problem.out);
  check_pointer(op / "epilogue" / "c", problem.epilogue.c);
  check_pointer(op / "epilogue" / "bias", problem.epilogue.bias);
  if (!shape.grouped) return;
  const Where offsets = op / "group_offsets";
  check_pointer(offsets, problem.group_offsets);
  if (!on_host(problem.group_offsets)) return;
  OffsetsRule rule;
  rule.total = shape.group_axis == GroupAxis::rows ? shape.m : shape.k;
  rule.to_total = true;
  check_offsets(offsets, problem.group_offsets, 0, shape.batch, rule);
}

void check_data(const SddmmProblem& problem, const SddmmShape&) {
  const Where op("sddmm");
  check_operand_data(op / "a", problem.a);
  check_operand_data(op / "b", problem.b);
  check_pointers(op / "out", problem.out);
  check_bsr_lists(op / "out", problem.out, true);
}

void check_data(const SpgemmProblem& problem, const SpgemmShape&) {
  const Where op("spgemm");
  check_operand_data(op / "a", problem.a);
  check_operand_data(op / "b", problem.b);
}

void check_data(const MergeStatesProblem& problem, const MergeShape&) {
  const Where op("merge_states");
  for (std::size_t i = 0; i < problem.outs.size(); ++i) {
    const auto part = static_cast<std::int64_t>(i);
    check_pointer((op / "outs")[part], problem.outs[i]);
    check_pointer((op / "lses")[part], problem.lses[i]);
  }
  check_pointer(op / "out", problem.out);
  check_pointer(op / "lse", problem.lse);
  check_pointer(op / "sinks", problem.sinks);
}

}  // namespace tessera::planning
