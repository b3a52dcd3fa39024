#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <variant>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention/arguments.cuh"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/kernels/cuda/sm90/attention/kernel.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"
#include "src/walk/views.hpp"

namespace tessera::cuda::sm90::attention {

using planning::Call;

/// Fills in the kernel's arguments and launches it, after the kernels that compose the mask and
/// order the tiles if these are needed.
template <class T>
void launch_typed(const Call& call) {
  const auto& problem = std::get<AttentionProblem>(call.problem);
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  const auto& layout = call.planned.layout.get<planning::AttentionLayout>();
  if (layout.tiles == 0 || shape.q_total == 0) return clear_rest(call.problem, call.stream);
  core::Carver carver(call.workspace);
  const planning::AttentionScratch scratch =
      planning::carve_attention_scratch(carver, T::kTile, layout, T::kSoftmaxState);
  Arguments args{};
  args.q = tile::recent_map(tile::heads_of(problem.q), layout.pack, T::kM / layout.pack,
                            T::Queries::kLine);
  // With no keys, every load is out of bounds, so any tensor will do.
  const auto heads_or_q = [&](const Tensor& t) {
    return tile::heads_of(shape.kv_total > 0 ? t : problem.q);
  };
  if (shape.kv_layout == planning::KvLayout::paged)
    args.pages = planning::page_view(problem.page_table, problem.k);
  if (!shape.v_by_keys)
    args.k = tile::recent_map(heads_or_q(problem.k), 0, planning::kKeyPiece, T::Keys::kLine);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  if constexpr (T::kNarrow) {
    if (shape.v_by_keys) {
      tile::HeadsMap k = heads_or_q(problem.k);
      args.k_pairs = tile::recent_map(k, 0, 2, T::Keys::kLine);
      k.every_second_pair = true;
      args.k = tile::recent_map(k, 0, planning::kKeyPiece / 2, T::Keys::kLine);
      args.v = tile::recent_map(
          shape.kv_total > 0 ? tile::columns_of(problem.v) : tile::heads_of(problem.q), 0, T::kDimV,
          planning::kKeyPiece);
      args.v_by_keys = true;
      args.k_rows = static_cast<int>(problem.k.size(problem.k.rank - 3));
    }
    args.q_factors = factors_of<true>(problem.q_scale, problem.q);
    args.k_factors = factors_of<true>(problem.k_scale, problem.k);
    args.v_factors = factors_of<true>(problem.v_scale, problem.v);
    args.factors_by_step = planning::has_factors_by_step(shape);
  }
  if (!shape.v_by_keys)
    args.v = tile::recent_map(heads_or_q(problem.v), 0, planning::kKeyPiece, T::LandingRows::kLine);
  args.zeros_from = shape.kv_layout == planning::KvLayout::dense ? static_cast<int>(shape.kv_length)
                                                                 : planning::kOutOfBounds;
  args.walk = planning::attention_walk(problem, shape, layout, T::kTile);
  set_scores(args, problem, shape);
  const tile::HeadsMap out = tile::heads_of(problem.out);
  args.result.aligned =
      problem.out.dtype != DType::f32 && args.result.out_col == 1 && tile::tma_readable(out);
  if (args.result.aligned && !T::kConsumersStore)
    args.stored_rows = T::kRows % layout.pack == 0 ? T::kRows : args.walk.rows();
  if (args.stored_rows > 0)
    args.out =
        tile::recent_map(out, layout.pack, args.stored_rows / layout.pack, T::Queries::kLine);
  args.overlaps_tiles = layout.overlaps;
  begin_walk(args, problem, shape, layout, scratch, true, stream);
  Kernel<attention_kernel<T>>::launch({.name = "attention_kernel",
                                       .grid = grid_of(args.walk.blocks),
                                       .threads = T::kThreads,
                                       .stream = stream,
                                       .shared_bytes = T::kSharedBytes,
                                       .overlapped = true},
                                      args);
}

template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  const auto& shape = std::get<planning::AttentionShape>(call.shape);
  with_multiplied<kDtypes>(shape.dtype, [&]<class Element>() {
    if constexpr (planning::supports_score_transform(kTile)) {
      if (shape.transforms_scores || planning::has_factors_by_step(shape))
        return launch_typed<Traits<kTile, Element, Instance::transformed>>(call);
    }
    launch_typed<Traits<kTile, Element, Instance::plain>>(call);
  });
}

}  // namespace tessera::cuda::sm90::attention
