#include "src/kernels/cuda/attention_backward/around.hpp"

#include <cstdint>

#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/cuda/prepare/block_edges.hpp"
#include "src/kernels/cuda/prepare/compose_mask.hpp"

namespace tessera::cuda::attention_backward {

HeadRows HeadRows::of(const Tensor& t) {
  HeadRows rows;
  if (!t) return rows;
  const int row = t.rank - 3;
  rows = {t.data,
          t.dtype,
          row > 0 && t.size(0) > 1 ? t.stride(0) : 0,
          t.stride(row),
          t.stride(row + 1),
          t.stride(row + 2),
          static_cast<int>(t.size(row + 2))};
  const int per_word = 16 / size_of(t.dtype);
  rows.wide = (rows.col == 1 || rows.columns == 1) && rows.columns % 8 == 0 &&
              reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
  for (int i = 0; i + 1 < t.rank; ++i) rows.wide &= t.size(i) <= 1 || t.stride(i) % per_word == 0;
  return rows;
}

PerQuery PerQuery::of(const Tensor& t) {
  if (!t) return {};
  const int head = t.rank - 2;
  return {static_cast<const float*>(t.data), head > 0 && t.size(0) > 1 ? t.stride(0) : 0,
          t.stride(head), t.stride(head + 1)};
}

void write_edges(const AttentionProblem& problem, const planning::AttentionShape& shape,
                 const BackwardWalk& walk, void* stream) {
  const planning::BlockEdges& edges = walk.edges;
  compose_mask(planning::composer_of(problem, shape, edges.sizes.mask, edges.lists), stream);
  write_block_edges(edges, walk.sequences, stream);
}

Tensor readable_dout(const AttentionBackwardProblem& problem, void* copy) {
  if (!copy) return problem.dout;
  Tensor t = problem.dout;
  t.data = copy;
  t.dtype = problem.forward.q.dtype;
  std::int64_t stride = 1;
  for (int i = t.rank; i-- > 0;) {
    t.strides[static_cast<std::size_t>(i)] = stride;
    stride *= t.size(i);
  }
  return t;
}

}  // namespace tessera::cuda::attention_backward
