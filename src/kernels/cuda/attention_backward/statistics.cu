#include <cmath>
#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/cuda/attention_backward/head_rows.cuh"
#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/prepare/block_edges.hpp"
#include "src/kernels/cuda/prepare/compose_mask.hpp"

// Before the main kernel: statistics of each query, dsinks, which follow from them, and edges of a
// block mask.
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

namespace {

constexpr float kLog2e = 1.4426950408889634f;

struct Statistics {
  HeadRows out, dout, copy;
  PerQuery lse, dlse;
  BackwardScratch scratch;
};

/// Sixteen threads take a query at a time. `Element`: of `out` and `dout`, where both have wide
/// rows of it and there is no copy; else void. Then four queries are loaded at once, so that memory
/// has enough to do.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const __grid_constant__ Statistics s,
                      const __grid_constant__ BackwardWalk walk) {
  let_next_grid_begin();
  constexpr bool kWide = !std::is_void_v<Element>;
  constexpr int kThreadsPerQuery = 16, kQueries = kThreads / kThreadsPerQuery;
  constexpr int kTogether = kWide ? planning::kQueriesPerBlock / kQueries : 1;
  const HeadPlace place = HeadPlace::here(walk);
  const int lane = threadIdx.x % kThreadsPerQuery, size = place.queries.size();
  if (blockIdx.x == 0 && threadIdx.x == 0) *s.scratch.ticket = 0;
  const int turns = s.scratch.turns_per_block;
  for (int i = threadIdx.x; i < turns * s.scratch.sums; i += kThreads)
    s.scratch.turns[(place.slot + i / turns * blocks_of_heads(walk)) * turns + i % turns] = 0;
  float4* const sums = reinterpret_cast<float4*>(s.scratch.dq + place.slot * s.scratch.cleared);
  for (int i = threadIdx.x; i < s.scratch.cleared / 4; i += kThreads) sums[i] = {};
  for (int first = threadIdx.x / kThreadsPerQuery; first < planning::kQueriesPerBlock;
       first += kTogether * kQueries) {
    float deltas[kTogether] = {};
    // The query whose statistics this lane writes.
    const int mine = first + lane * kQueries;
    float lse = -INFINITY, dlse = 0;
    if (lane < kTogether && mine < size) {
      lse = s.lse.data[place.in(s.lse, mine)];
      if (s.dlse.data) dlse = s.dlse.data[place.in(s.dlse, mine)];
    }
    for (int column = lane * kEight; column < s.out.columns; column += kThreadsPerQuery * kEight) {
      if constexpr (kWide) {
        uint4 out[kTogether] = {}, dout[kTogether] = {};
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const int i = first + j * kQueries;
          if (i >= size) continue;
          const auto load = [&](const HeadRows& rows) {
            return *reinterpret_cast<const uint4*>(static_cast<const Element*>(rows.data) +
                                                   place.in(rows, i) + column);
          };
          out[j] = load(s.out), dout[j] = load(s.dout);
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const std::uint32_t of_out[] = {out[j].x, out[j].y, out[j].z, out[j].w};
          const std::uint32_t of_dout[] = {dout[j].x, dout[j].y, dout[j].z, dout[j].w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float2 a = Precision<Element>::unpack(of_out[k]);
            const float2 b = Precision<Element>::unpack(of_dout[k]);
            deltas[j] = fmaf(a.y, b.y, fmaf(a.x, b.x, deltas[j]));
          }
        }
      } else if (first < size) {
        float out[kEight], dout[kEight];
        load_eight(s.out, place.in(s.out, first), column, out);
        load_eight(s.dout, place.in(s.dout, first), column, dout);
        if (s.copy.data) {
          // The main kernel multiplies the rounded values.
#pragma unroll
          for (int j = 0; j < kEight; j += 2) {
            const float2 pair = unpack(s.copy.dtype, pack(s.copy.dtype, dout[j], dout[j + 1]));
            dout[j] = pair.x, dout[j + 1] = pair.y;
          }
          store_eight(s.copy, place.in(s.copy, first), column, dout);
        }
#pragma unroll
        for (int j = 0; j < kEight; ++j) deltas[0] = fmaf(out[j], dout[j], deltas[0]);
      }
    }
    float delta = 0;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
#pragma unroll
      for (int step = kThreadsPerQuery / 2; step > 0; step /= 2)
        deltas[j] += __shfl_xor_sync(kAllLanes, deltas[j], step);
      if (lane == j) delta = deltas[j] - dlse;
    }
    if (lane < kTogether) {
      const std::int64_t to = place.slot * planning::kQueriesPerBlock + planning::mixed_query(mine);
      s.scratch.lse[to] = lse == -INFINITY ? -INFINITY : -kLog2e * lse;
      s.scratch.delta[to] = delta;
    }
  }
}

struct Dsinks {
  const float *lse, *delta;
  Plane sinks;
  std::int64_t sink_stride;
  float* to;
  std::int64_t to_stride;
  std::int64_t queries;  // statistics per head
};

/// A sink takes part in the softmax of each query but has no value: d = -P * delta.
__global__ void __launch_bounds__(kThreads) dsinks_kernel(const __grid_constant__ Dsinks s) {
  __shared__ double of_warps[kThreads / kLanes];
  const std::int64_t head = blockIdx.x;
  const float sink = s.sinks.load(head * s.sink_stride) * kLog2e;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < s.queries; i += kThreads) {
    const float lse = s.lse[head * s.queries + i];
    if (lse != -INFINITY)
      sum -= static_cast<double>(exp2f(sink + lse)) *
             static_cast<double>(s.delta[head * s.queries + i]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kLanes == 0) of_warps[threadIdx.x / kLanes] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / kLanes; ++warp) sum += of_warps[warp];
  s.to[head * s.to_stride] = static_cast<float>(sum);
}

}  // namespace

void compute_statistics(const AttentionBackwardProblem& problem, const BackwardWalk& walk,
                        const BackwardScratch& scratch, void* stream) {
  const AttentionProblem& forward = problem.forward;
  Statistics s{HeadRows::of(forward.out), HeadRows::of(problem.dout), {},
               PerQuery::of(forward.lse), PerQuery::of(problem.dlse), scratch};
  if (scratch.dout) {
    const std::int64_t columns = s.dout.columns, row = columns * walk.heads;
    s.copy = {scratch.dout,
              forward.q.dtype,
              walk.queries.packed ? 0 : row * walk.sequences.q_length,
              row,
              columns,
              1,
              s.dout.columns,
              true};
  }
  const Launch launch{"statistics_kernel", grid_of(blocks_of_heads(walk)), kThreads, stream};
  const DType dtype = s.out.dtype;
  const bool plain = s.out.wide && s.dout.wide && dtype == s.dout.dtype && !s.copy.data;
  if (plain && dtype == DType::bf16)
    Kernel<statistics_kernel<__nv_bfloat16>>::launch(launch, s, walk);
  else if (plain && dtype == DType::f16)
    Kernel<statistics_kernel<__half>>::launch(launch, s, walk);
  else
    Kernel<statistics_kernel<void>>::launch(launch, s, walk);
}

void compute_dsinks(const AttentionBackwardProblem& problem, const BackwardWalk& walk,
                    const BackwardScratch& scratch, void* stream) {
  const Tensor &sinks = problem.forward.sinks, &to = problem.dsinks;
  Plane plane;
  plane.data = sinks.data, plane.dtype = sinks.dtype;
  const Dsinks s{scratch.lse, scratch.delta, plane, sinks.stride(0), static_cast<float*>(to.data),
                 to.stride(0),
                 // Without a query there are no statistics, although there can be blocks for them.
                 problem.forward.q.numel() == 0
                     ? 0
                     : std::int64_t{walk.query_blocks} * planning::kQueriesPerBlock};
  Kernel<dsinks_kernel>::launch({"dsinks_kernel", grid_of(walk.heads), kThreads, stream}, s);
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
