#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <variant>

#include "src/core/check.hpp"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/merge/kernel.cuh"
#include "src/kernels/cuda/merge/plan.hpp"

namespace tessera::cuda::merge {

using planning::Call;

/// For a tensor [batch, length, heads, dim] or [total, heads, dim].
inline Strides strides_of_values(const Tensor& t) {
  const int row = t.rank - 3;
  return {row > 0 ? t.stride(0) : 0, t.stride(row), t.stride(row + 1), t.stride(row + 2)};
}

/// For a tensor [batch, heads, length] or [heads, total].
inline Strides strides_of_lse(const Tensor& t) {
  const int head = t.rank - 2;
  return {head > 0 ? t.stride(0) : 0, t.stride(head + 1), t.stride(head), 0};
}

inline Part part_of(const Tensor& out, const Tensor& lse) {
  if (!lse) return {out.data, strides_of_values(out), nullptr, {}};
  return {out.data, strides_of_values(out), static_cast<float*>(lse.data), strides_of_lse(lse)};
}

inline Arguments arguments_of(const MergeStatesProblem& problem,
                              const planning::MergeShape& shape) {
  Arguments args;
  args.batch = shape.batch;
  args.length = shape.length;
  args.heads = shape.heads;
  args.dim = shape.dim;
  args.parts = static_cast<int>(shape.parts);
  args.merged = part_of(problem.out, problem.lse);
  if (problem.sinks) {
    args.sinks = problem.sinks.data;
    args.sink_stride = problem.sinks.stride(0);
    args.sink_dtype = problem.sinks.dtype;
  }
  for (std::size_t p = 0; p < problem.outs.size(); ++p) {
    args.part[p] = part_of(problem.outs[p], problem.lses[p]);
  }
  return args;
}

/// Launches the kernel with `kWarps` (row, head) pairs per CTA.
template <int kWarps, class In>
void launch_merge(const Arguments& args, DType out, void* stream) {
  static_assert(kWarps > 0 && kWarps * kLanes <= 1024);
  const std::int64_t rows = args.batch * args.length * args.heads;
  const Launch how{"merge_kernel", grid_of((rows + kWarps - 1) / kWarps), kWarps * kLanes, stream};
  with_element(out, [&](auto element) {
    Kernel<merge_kernel<kWarps, In, decltype(element)>>::launch(how, args);
  });
}

/// tile.m: warps per CTA.
template <planning::Tile kTile, unsigned kDtypes>
void launch(const Call& call) {
  static_assert(kDtypes == core::kFloats, "the kernel is compiled for f32, f16 and bf16");
  const auto& shape = std::get<planning::MergeShape>(call.shape);
  const Arguments args = arguments_of(std::get<MergeStatesProblem>(call.problem), shape);
  with_element(shape.dtype,
               [&](auto in) { launch_merge<kTile.m, decltype(in)>(args, shape.out, call.stream); });
}

}  // namespace tessera::cuda::merge
