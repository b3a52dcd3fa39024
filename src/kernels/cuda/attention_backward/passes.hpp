#pragma once

#include <variant>

#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/common/check.hpp"

namespace tessera::cuda::attention_backward {

/// Where the main kernel adds up dQ.
struct NoDqKernel {
  void operator()(const auto&...) const {}
};

/// Launches all kernels of a backward pass. `main(problem, shape, walk, scratch)` launches the main
/// one, whose sums of dQ are in `order`; `dq`, with the same arguments and whether it follows the
/// main one, the one that computes dQ alone, where the row has one. `overlapped`: the main kernel
/// lets the next one begin (common/grid.cuh), so that the last kernel may be launched to wait.
template <class Main, class Dq = NoDqKernel>
void launch_passes(const planning::Call& call, const planning::Tile& tile, SumsOrder order,
                   bool overlapped, const Main& main, const Dq& dq = {}) {
  const auto& problem = std::get<AttentionBackwardProblem>(call.problem);
  const auto& shape = std::get<planning::AttentionBackwardShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::BackwardLayout>();
  if (shape.heads == 0) return;
  core::Carver carver(call.workspace);
  const BackwardScratch scratch = planning::carve_backward(carver, shape, layout, tile);
  const BackwardWalk walk = planning::backward_walk(problem.forward, shape, layout, scratch.edges);
  if (shape.q_total > 0)
    compute_statistics(problem, walk, scratch, call.stream);
  else
    check(cudaMemsetAsync(scratch.ticket, 0, sizeof(*scratch.ticket),
                          static_cast<cudaStream_t>(call.stream)),
          "cudaMemsetAsync");
  if (problem.dsinks) compute_dsinks(problem, walk, scratch, call.stream);
  if (!problem.dq && !problem.dk && !problem.dv) return;
  const bool apart = tile.dq_queries > 0;
  const bool has_main = layout.tiles > 0 && (!apart || problem.dk || problem.dv);
  if (has_main) {
    if (layout.edges) write_edges(problem.forward, shape, walk, call.stream);
    main(problem, shape, walk, scratch);
  }
  if (apart && problem.dq && shape.q_total > 0) dq(problem, shape, walk, scratch, has_main);
  convert_sums(problem, shape, walk, scratch, tile.k, order, overlapped && has_main, call.stream);
}

}  // namespace tessera::cuda::attention_backward
