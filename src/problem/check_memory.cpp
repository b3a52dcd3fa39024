#include "src/problem/check_memory.hpp"

namespace tessera::planning {

using core::Outputs;
using core::Where;

namespace {

void check_operand(const Where& where, const Operand& operand, const Outputs& outputs) {
  outputs.check_input(where / "scale", operand.scale);
  if (!operand.is_sparse()) return outputs.check_input(where, operand.dense);
  outputs.check_inputs(where / "sparse", operand.sparse);
}

void check_attention_inputs(const Where& op, const AttentionProblem& problem,
                            const Outputs& outputs) {
  outputs.check_inputs(op, {{"q", problem.q},
                            {"k", problem.k},
                            {"v", problem.v},
                            {"sinks", problem.sinks},
                            {"q_offsets", problem.q_offsets},
                            {"kv_offsets", problem.kv_offsets},
                            {"kv_begin", problem.kv_begin},
                            {"kv_end", problem.kv_end},
                            {"q_position", problem.q_position},
                            {"kv_position", problem.kv_position},
                            {"page_table", problem.page_table},
                            {"q_scale", problem.q_scale},
                            {"k_scale", problem.k_scale},
                            {"v_scale", problem.v_scale}});
  outputs.check_inputs(op / "mask", problem.mask);
}

}  // namespace

void check_memory(const MatmulProblem& problem, Outputs& outputs) {
  const Where op("matmul");
  const Tensor& c = problem.epilogue.c;
  outputs.add(op / "out", problem.out);
  check_operand(op / "a", problem.a, outputs);
  check_operand(op / "b", problem.b, outputs);
  // Kernels can read c from out, as they do if c is absent, so c may be exactly out.
  if (!core::same_view(c, problem.out)) outputs.check_input(op / "epilogue" / "c", c);
  outputs.check_input(op / "epilogue" / "bias", problem.epilogue.bias);
  outputs.check_input(op / "group_offsets", problem.group_offsets);
}

void check_memory(const SddmmProblem& problem, Outputs& outputs) {
  const Where op("sddmm");
  outputs.add(op / "out" / "values", problem.out.values);
  outputs.check_lists(op / "out", problem.out);
  check_operand(op / "a", problem.a, outputs);
  check_operand(op / "b", problem.b, outputs);
}

void check_memory(const SpgemmProblem& problem, Outputs& outputs) {
  const Where op("spgemm");
  check_operand(op / "a", problem.a, outputs);
  check_operand(op / "b", problem.b, outputs);
}

void check_memory(const AttentionProblem& problem, Outputs& outputs) {
  const Where op("attention");
  outputs.add(op / "out", problem.out);
  outputs.add(op / "lse", problem.lse);
  check_attention_inputs(op, problem, outputs);
}

void check_memory(const AttentionBackwardProblem& problem, Outputs& outputs) {
  const Where op("attention_backward");
  outputs.add(op / "dq", problem.dq);
  outputs.add(op / "dk", problem.dk);
  outputs.add(op / "dv", problem.dv);
  outputs.add(op / "dsinks", problem.dsinks);
  check_attention_inputs(op / "forward", problem.forward, outputs);
  outputs.check_inputs(op / "forward",
                       {{"out", problem.forward.out}, {"lse", problem.forward.lse}});
  outputs.check_inputs(op, {{"dout", problem.dout}, {"dlse", problem.dlse}});
}

void check_memory(const MergeStatesProblem& problem, Outputs& outputs) {
  const Where op("merge_states");
  outputs.add(op / "out", problem.out);
  outputs.add(op / "lse", problem.lse);
  // Kernels read an element of the parts before they write the same element of the result.
  const auto check_parts = [&](const char* name, const std::vector<Tensor>& parts,
                               const Tensor& result) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!core::same_view(parts[i], result))
        outputs.check_input((op / name)[static_cast<std::int64_t>(i)], parts[i]);
    }
  };
  check_parts("outs", problem.outs, problem.out);
  check_parts("lses", problem.lses, problem.lse);
  outputs.check_input(op / "sinks", problem.sinks);
}

}  // namespace tessera::planning
