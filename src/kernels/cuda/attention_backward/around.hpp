#pragma once

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention_backward/plan.hpp"

// The kernels before and after the main kernel of attention's backward pass, in stream order on the
// current device.
namespace tessera::cuda::attention_backward {

using planning::BackwardScratch;
using planning::BackwardWalk;
using planning::SumsOrder;

/// Rows of heads with any strides, in elements.
struct HeadRows {
  void* data = nullptr;  // null: absent
  DType dtype = DType::none;
  std::int64_t batch = 0, row = 0, head = 0, col = 0;
  int columns = 0;
  bool wide = false;  // eight columns can be read or written at once

  static HeadRows of(const Tensor& t);
};

/// One number per query and head.
struct PerQuery {
  const float* data = nullptr;  // null: absent
  std::int64_t batch = 0, head = 0, row = 0;

  static PerQuery of(const Tensor& t);
};

/// Writes the statistics of all queries, clears the ticket and the turn counters or sums of dQ, and
/// copies dout where `scratch` has room for a copy.
void compute_statistics(const AttentionBackwardProblem& problem, const BackwardWalk& walk,
                        const BackwardScratch& scratch, void* stream);

/// dsinks from the statistics: one thread block per head, sums in a fixed order.
void compute_dsinks(const AttentionBackwardProblem& problem, const BackwardWalk& walk,
                    const BackwardScratch& scratch, void* stream);

/// Writes the edges of a block mask.
void write_edges(const AttentionProblem& problem, const planning::AttentionShape& shape,
                 const BackwardWalk& walk, void* stream);

/// Where the main kernel stores dk or dv: in the gradient `to`, or in `sums` if a tile has shares.
HeadRows rows_of_shares(const Tensor& to, float* sums, const planning::AttentionShape& shape,
                        const BackwardWalk& walk);

/// Converts the sums of dQ, times `scale`, and adds up dk and dv of shares. `width`: columns of a
/// sum of dQ. `overlapped`: the kernel may begin while the one before it runs.
void convert_sums(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
                  const BackwardWalk& walk, const BackwardScratch& scratch, int width,
                  SumsOrder order, bool overlapped, void* stream);

/// dout, or `copy`, a copy of it in contiguous rows, where that exists.
Tensor readable_dout(const AttentionBackwardProblem& problem, void* copy);

}  // namespace tessera::cuda::attention_backward
