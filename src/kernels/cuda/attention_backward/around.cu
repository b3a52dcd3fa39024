#include "src/kernels/cuda/attention_backward/around.hpp"

#include <cmath>
#include <cstdint>

#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/common/plane.cuh"
#include "src/kernels/cuda/prepare/block_edges.hpp"
#include "src/kernels/cuda/prepare/compose_mask.hpp"
#include "src/walk/lanes.hpp"

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

constexpr int kThreads = 256;
constexpr int kEight = 8;  // columns that a thread reads or writes at once
constexpr float kLog2e = 1.4426950408889634f;

/// A block of queries: of sequence `batch`, or of none (-1).
struct BlockPlace {
  int batch = -1, block = 0, q_begin = 0, q_length = 0;

  /// The row of query `i` in a tensor [batch, length, ...] or [total, ...].
  __device__ std::int64_t row(int i) const {
    return q_begin + block * planning::kQueriesPerBlock + i;
  }
  __device__ int size() const {
    const int left = q_length - block * planning::kQueriesPerBlock;
    return left < planning::kQueriesPerBlock ? left : planning::kQueriesPerBlock;
  }
};

/// The block with a number. All threads of the thread block call.
__device__ BlockPlace place_of_block(const BackwardWalk& walk, int number) {
  if (!walk.queries.packed) {
    const int batch = number / walk.queries.per_sequence;
    return {batch, number % walk.queries.per_sequence, 0,
            static_cast<int>(walk.sequences.q_length)};
  }
  __shared__ BlockPlace found;
  if (threadIdx.x == 0) found = {};
  __syncthreads();
  for (int batch = threadIdx.x; batch < walk.batches; batch += blockDim.x) {
    const planning::Sequence s = walk.sequences.at(batch);
    const int begin = static_cast<int>(s.q_begin), length = static_cast<int>(s.q_length);
    const int block = number - walk.queries.first(batch, begin);
    if (block >= 0 && block < walk.queries.count(length)) found = {batch, block, begin, length};
  }
  __syncthreads();
  return found;
}

__device__ void load_eight(const HeadRows& from, std::int64_t at, int column, float (&to)[kEight]) {
  if (from.wide) {
    if (from.dtype == DType::f32) {
      const float4* words =
          reinterpret_cast<const float4*>(static_cast<const float*>(from.data) + at + column);
      const float4 low = words[0], high = words[1];
      to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
      to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    } else {
      const uint4 word = *reinterpret_cast<const uint4*>(
          static_cast<const std::uint16_t*>(from.data) + at + column);
      const std::uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack(from.dtype, pairs[i]);
        to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
      }
    }
    return;
  }
  Plane plane;
  plane.data = from.data, plane.dtype = from.dtype;
#pragma unroll
  for (int i = 0; i < kEight; ++i) to[i] = plane.load(at + (column + i) * from.col);
}

__device__ void store_eight(const HeadRows& to, std::int64_t at, int column,
                            const float (&from)[kEight]) {
  if (to.wide) {
    if (to.dtype == DType::f32) {
      float4* words = reinterpret_cast<float4*>(static_cast<float*>(to.data) + at + column);
      words[0] = make_float4(from[0], from[1], from[2], from[3]);
      words[1] = make_float4(from[4], from[5], from[6], from[7]);
    } else {
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(to.data) + at + column) =
          uint4{pack(to.dtype, from[0], from[1]), pack(to.dtype, from[2], from[3]),
                pack(to.dtype, from[4], from[5]), pack(to.dtype, from[6], from[7])};
    }
    return;
  }
  Plane plane;
  plane.data = to.data, plane.dtype = to.dtype;
#pragma unroll
  for (int i = 0; i < kEight; ++i) plane.store(at + (column + i) * to.col, from[i]);
}

struct Statistics {
  HeadRows out, dout, copy;
  PerQuery lse, dlse;
  BackwardScratch scratch;
};

/// Grid: numbers of blocks, heads. Sixteen threads take a query at a time.
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const __grid_constant__ Statistics s,
                      const __grid_constant__ BackwardWalk walk) {
  constexpr int kThreadsPerQuery = 16, kQueries = kThreads / kThreadsPerQuery;
  const BlockPlace place = place_of_block(walk, blockIdx.x);
  const int lane = threadIdx.x % kThreadsPerQuery;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *s.scratch.ticket = 0;
  for (int head = blockIdx.y; head < walk.heads; head += gridDim.y) {
    const std::int64_t slot = std::int64_t{head} * walk.query_blocks + blockIdx.x;
    const int turns = s.scratch.turns_per_block;
    if (threadIdx.x < turns) s.scratch.turns[slot * turns + threadIdx.x] = 0;
    for (int i = threadIdx.x / kThreadsPerQuery; i < planning::kQueriesPerBlock; i += kQueries) {
      float delta = 0, lse = -INFINITY;
      if (place.batch >= 0 && i < place.size()) {
        const std::int64_t row = place.row(i);
        const auto at = [&](const HeadRows& rows) {
          return place.batch * rows.batch + row * rows.row + head * rows.head;
        };
        for (int column = lane * kEight; column < s.out.columns;
             column += kThreadsPerQuery * kEight) {
          float out[kEight], dout[kEight];
          load_eight(s.out, at(s.out), column, out);
          load_eight(s.dout, at(s.dout), column, dout);
          if (s.copy.data) {
            // The main kernel multiplies the rounded values.
#pragma unroll
            for (int j = 0; j < kEight; j += 2) {
              const float2 pair = unpack(s.copy.dtype, pack(s.copy.dtype, dout[j], dout[j + 1]));
              dout[j] = pair.x, dout[j + 1] = pair.y;
            }
            store_eight(s.copy, at(s.copy), column, dout);
          }
#pragma unroll
          for (int j = 0; j < kEight; ++j) delta = fmaf(out[j], dout[j], delta);
        }
        const auto of = [&](const PerQuery& per) {
          return per.data[place.batch * per.batch + head * per.head + row * per.row];
        };
        lse = of(s.lse) == -INFINITY ? -INFINITY : -kLog2e * of(s.lse);
        if (s.dlse.data && lane == 0) delta -= of(s.dlse);
      }
#pragma unroll
      for (int step = kThreadsPerQuery / 2; step > 0; step /= 2)
        delta += __shfl_xor_sync(kAllLanes, delta, step);
      if (lane == 0) {
        const std::int64_t to = slot * planning::kQueriesPerBlock + planning::mixed_query(i);
        s.scratch.lse[to] = lse;
        s.scratch.delta[to] = delta;
      }
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

struct Conversion {
  const float* sums;
  const std::int32_t* turns;
  HeadRows dq;
  float scale;
  int turns_per_block, width;  // turn counters, and columns of sums
  SumsOrder order;
};

/// Grid: numbers of blocks, heads. A thread takes eight columns of two queries, those of a quad: 16
/// sums, four at a time.
__global__ void __launch_bounds__(kThreads)
    convert_dq_kernel(const __grid_constant__ Conversion c,
                      const __grid_constant__ BackwardWalk walk) {
  constexpr int kQuads = planning::kQueriesPerBlock / 2;
  const BlockPlace place = place_of_block(walk, blockIdx.x);
  if (place.batch < 0) return;
  for (int head = blockIdx.y; head < walk.heads; head += gridDim.y) {
    const std::int64_t slot = std::int64_t{head} * walk.query_blocks + blockIdx.x;
    const bool visited = c.turns[slot * c.turns_per_block] != 0;
    const float* const block = c.sums + slot * planning::kQueriesPerBlock * c.width;
    for (int item = threadIdx.x; item < c.dq.columns / kEight * kQuads; item += kThreads) {
      const int group = item / kQuads, quad = item % kQuads, column = group * kEight;
      const int i = quad / 8 * 16 + quad % 8;
      float low[kEight] = {}, high[kEight] = {};
      if (visited) {
        const bool by_lane = c.order == SumsOrder::by_lane;
        const auto* from =
            reinterpret_cast<const float4*>(block + planning::sum_index(c.order, i, column));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          // Accumulators of lane `j` of the quad, or accumulator `j` of its lanes.
          const float4 sum = from[by_lane ? j : j * 8];
          const float of[4] = {sum.x * c.scale, sum.y * c.scale, sum.z * c.scale, sum.w * c.scale};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (by_lane)
              (k < 2 ? low : high)[2 * j + k % 2] = of[k];
            else
              (j < 2 ? low : high)[2 * k + j % 2] = of[k];
          }
        }
      }
      const auto at = [&](int query) {
        return place.batch * c.dq.batch + place.row(query) * c.dq.row + head * c.dq.head;
      };
      if (i < place.size()) store_eight(c.dq, at(i), column, low);
      if (i + 8 < place.size()) store_eight(c.dq, at(i + 8), column, high);
    }
  }
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
  Kernel<statistics_kernel>::launch(
      {"statistics_kernel", grid_of(walk.query_blocks, walk.heads), kThreads, stream}, s, walk);
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

void convert_dq(const AttentionBackwardProblem& problem, const BackwardWalk& walk,
                const BackwardScratch& scratch, float scale, int width, SumsOrder order,
                void* stream) {
  const Conversion c{scratch.dq, scratch.turns,           HeadRows::of(problem.dq),
                     scale,      scratch.turns_per_block, width,
                     order};
  Kernel<convert_dq_kernel>::launch(
      {"convert_dq_kernel", grid_of(walk.query_blocks, walk.heads), kThreads, stream}, c, walk);
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
