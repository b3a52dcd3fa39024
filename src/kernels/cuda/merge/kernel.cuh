#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/merge/plan.hpp"

namespace tessera::cuda::merge {

inline constexpr int kMaxParts = planning::kMaxGpuMergeParts;
inline constexpr int kColumns = 4;  // loads in flight per lane and part

/// Strides of [batch, length, heads, dim], in elements; `batch` is 0 if the tensor has no batch.
struct Strides {
  std::int64_t batch = 0, row = 0, head = 0, column = 0;
};

/// One partial result of attention: its values, and its log-sum-exps (which have no column).
struct Part {
  void* out = nullptr;
  Strides out_strides;
  float* lse = nullptr;
  Strides lse_strides;
};

struct Arguments {
  std::int64_t batch = 0, length = 0, heads = 0, dim = 0;
  int parts = 0;
  Part merged;  // the result; its lse may be null
  const void* sinks = nullptr;
  std::int64_t sink_stride = 0;
  DType sink_dtype = DType::none;
  Part part[kMaxParts];
};

struct Place {
  std::int64_t batch, row, head;
};

__device__ inline std::int64_t offset(const Strides& strides, const Place& at) {
  return at.batch * strides.batch + at.row * strides.row + at.head * strides.head;
}

/// The head's sink; without sinks -inf, which adds nothing.
__device__ inline float sink_of(const Arguments& args, std::int64_t head) {
  const std::int64_t at = head * args.sink_stride;
  switch (args.sink_dtype) {
    case DType::f32:
      return static_cast<const float*>(args.sinks)[at];
    case DType::f16:
      return to_float(static_cast<const __half*>(args.sinks)[at]);
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(args.sinks)[at]);
    default:
      return -INFINITY;
  }
}

/// The weight that marks a part without keys: its values are never read, so NaN in them does not
/// spread.
inline constexpr float kEmpty = -1.0f;

/// The state shared by all columns of one (row, head): the maximum that is subtracted from the
/// log-sum-exps, and the sum of the weights exp(lse - base).
struct Weights {
  float base, total;
};

__device__ inline Weights weigh(const Arguments& args, const Place& at, int lane, float* weight) {
  const float sink = sink_of(args, at.head);
  float top = sink;
  for (int p = lane; p < args.parts; p += kLanes) {
    const float lse = args.part[p].lse[offset(args.part[p].lse_strides, at)];
    weight[p] = lse;
    top = fmaxf(top, lse);
  }
  top = warp_max(top);
  // If all parts are empty any base will do; -inf - -inf would be NaN.
  const float base = top == -INFINITY ? 0.0f : top;
  float total = lane == 0 ? expf(sink - base) : 0.0f;
  for (int p = lane; p < args.parts; p += kLanes) {
    const float lse = weight[p];
    const float share = expf(lse - base);
    weight[p] = lse == -INFINITY ? kEmpty : share;
    total += share;
  }
  total = warp_sum(total);
  __syncwarp();
  return {base, total};
}

/// One warp per (row, head), lanes over columns. All parts of a column are read before it is
/// written, so `merged` may be one of the parts.
template <int kWarps, class In, class Out>
__global__ void __launch_bounds__(kWarps* kLanes)
    merge_kernel(const __grid_constant__ Arguments args) {
  __shared__ float weights[kWarps][kMaxParts];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  float* const weight = weights[warp];

  const std::int64_t rows = args.batch * args.length * args.heads;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; i < rows;
       i += step) {
    const std::int64_t row = i / args.heads;
    const Place at{row / args.length, row % args.length, i % args.heads};
    const auto [base, total] = weigh(args, at, lane, weight);

    for (std::int64_t first = lane; first < args.dim; first += kLanes * kColumns) {
      float sum[kColumns] = {};
      for (int p = 0; p < args.parts; ++p) {
        if (weight[p] == kEmpty) continue;
        const Part& part = args.part[p];
        const In* values = static_cast<const In*>(part.out) + offset(part.out_strides, at);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const std::int64_t column = first + j * kLanes;
          if (column < args.dim) {
            sum[j] += weight[p] * to_float(values[column * part.out_strides.column]);
          }
        }
      }
      Out* out = static_cast<Out*>(args.merged.out) + offset(args.merged.out_strides, at);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const std::int64_t column = first + j * kLanes;
        if (column < args.dim) {
          out[column * args.merged.out_strides.column] =
              from_float<Out>(total == 0.0f ? 0.0f : sum[j] / total);
        }
      }
    }
    if (lane == 0 && args.merged.lse) {
      args.merged.lse[offset(args.merged.lse_strides, at)] =
          total == 0.0f ? -INFINITY : base + logf(total);
    }
    __syncwarp();  // all lanes have read the weights before the next row overwrites them
  }
}

}  // namespace tessera::cuda::merge
