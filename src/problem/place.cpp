#include "src/problem/place.hpp"

#include <initializer_list>

namespace tessera::planning {
namespace {

void place(Tensor& tensor, const Device& device) {
  if (tensor) tensor.device = device;
}
void place(std::initializer_list<Tensor*> tensors, const Device& device) {
  for (Tensor* tensor : tensors) place(*tensor, device);
}
void place(BsrMatrix& matrix, const Device& device) {
  place({&matrix.values, &matrix.row_offsets, &matrix.col_indices}, device);
}
void place(Operand& operand, const Device& device) {
  place(operand.dense, device);
  place(operand.sparse, device);
  place(operand.scale, device);
}
void place(BlockList& list, const Device& device) {
  place({&list.offsets, &list.counts, &list.indices}, device);
}
void place(BlockMask& mask, const Device& device) {
  place(mask.full, device);
  place(mask.partial, device);
  place({&mask.bit_tile, &mask.bits}, device);
}

void place(MatmulProblem& p, const Device& device) {
  place(p.a, device);
  place(p.b, device);
  place({&p.out, &p.epilogue.c, &p.epilogue.bias, &p.group_offsets}, device);
}
void place(SddmmProblem& p, const Device& device) {
  place(p.a, device);
  place(p.b, device);
  place(p.out, device);
}
void place(SpgemmProblem& p, const Device& device) {
  place(p.a, device);
  place(p.b, device);
}
void place(AttentionProblem& p, const Device& device) {
  place(
      {&p.q, &p.k, &p.v, &p.out, &p.lse, &p.sinks, &p.q_offsets, &p.kv_offsets, &p.kv_begin,
       &p.kv_end, &p.q_position, &p.kv_position, &p.page_table, &p.q_scale, &p.k_scale, &p.v_scale},
      device);
  place(p.mask, device);
}
void place(AttentionBackwardProblem& p, const Device& device) {
  place(p.forward, device);
  place({&p.dout, &p.dlse, &p.dq, &p.dk, &p.dv, &p.dsinks}, device);
}
void place(MergeStatesProblem& p, const Device& device) {
  for (auto* parts : {&p.outs, &p.lses})
    for (Tensor& part : *parts) place(part, device);
  place({&p.out, &p.lse, &p.sinks}, device);
}

}  // namespace

AnyProblem on_device(AnyProblem problem, const Device& device) {
  std::visit([&](auto& p) { place(p, device); }, problem);
  return problem;
}

}  // namespace tessera::planning
