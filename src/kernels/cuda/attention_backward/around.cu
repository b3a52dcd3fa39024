#include "src/kernels/cuda/attention_backward/around.hpp"

#include <cmath>
#include <cstdint>
#include <type_traits>

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

/// The block and the head of a thread block. Grid: blocks times heads, those of a block together,
/// as they are neighbours in memory.
struct HeadPlace {
  BlockPlace queries;
  int head;
  std::int64_t slot;  // of the block of this head in the scratch

  __device__ static HeadPlace here(const BackwardWalk& walk) {
    const int block = blockIdx.x / walk.heads, head = blockIdx.x % walk.heads;
    return {place_of_block(walk, block), head, std::int64_t{head} * walk.query_blocks + block};
  }
  /// Where query `i` of the block is in `rows`.
  template <class Rows>
  __device__ std::int64_t in(const Rows& rows, int i) const {
    return queries.batch * rows.batch + queries.row(i) * rows.row + head * rows.head;
  }
};

/// Sixteen threads take a query at a time. `Element`: of `out` and `dout`, where both have wide
/// rows of it and there is no copy; else void. Then four queries are loaded at once, so that memory
/// has enough to do.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const __grid_constant__ Statistics s,
                      const __grid_constant__ BackwardWalk walk) {
  constexpr bool kWide = !std::is_void_v<Element>;
  constexpr int kThreadsPerQuery = 16, kQueries = kThreads / kThreadsPerQuery;
  constexpr int kTogether = kWide ? planning::kQueriesPerBlock / kQueries : 1;
  const HeadPlace place = HeadPlace::here(walk);
  const int lane = threadIdx.x % kThreadsPerQuery, size = place.queries.size();
  if (blockIdx.x == 0 && threadIdx.x == 0) *s.scratch.ticket = 0;
  const int turns = s.scratch.turns_per_block;
  if (threadIdx.x < turns) s.scratch.turns[place.slot * turns + threadIdx.x] = 0;
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

struct Conversion {
  const float* sums;
  const std::int32_t* turns;  // null: sums were added in any order, to zeros
  HeadRows dq;
  float scale;
  int turns_per_block, width;  // turn counters, and columns of sums
  SumsOrder order;
};

/// A warp takes 16 queries and 32 columns at a time. Its loads are contiguous, each lane's of two
/// columns of two queries; lanes of a quad exchange them, for rows of 64 bytes or more at once.
__device__ void convert_dq(const Conversion& c, const BackwardWalk& walk) {
  constexpr int kRows = 16, kRowSets = planning::kQueriesPerBlock / kRows, kGroups = 4;
  static_assert(kThreads / kLanes % kRowSets == 0);
  const HeadPlace place = HeadPlace::here(walk);
  if (place.queries.batch < 0) return;
  const bool visited = !c.turns || c.turns[place.slot * c.turns_per_block] != 0;
  const bool by_lane = c.order == SumsOrder::by_lane;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, in_quad = lane % kGroups;
  const int row_set = warp % kRowSets, query = row_set * kRows + lane / 4;
  const float* const block = c.sums + place.slot * planning::kQueriesPerBlock * c.width;
  for (int first = warp / kRowSets * kGroups; first * kEight < c.dq.columns;
       first += kThreads / kLanes / kRowSets * kGroups) {
    // Of each of four groups of eight columns: two columns of `query`, and of `query` + 8.
    float sums[2][2 * kGroups] = {};
    if (visited) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float* const from =
            block + planning::sum_index(c.order, row_set * kRows, (first + g) * kEight);
        const float4 of = by_lane ? reinterpret_cast<const float4*>(from)[lane]
                                  : float4{from[lane], from[kLanes + lane], from[2 * kLanes + lane],
                                           from[3 * kLanes + lane]};
        sums[0][2 * g] = of.x * c.scale, sums[0][2 * g + 1] = of.y * c.scale;
        sums[1][2 * g] = of.z * c.scale, sums[1][2 * g + 1] = of.w * c.scale;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      transpose_in_quad<2>(sums[half], in_quad);
      const int i = query + half * 8, column = (first + in_quad) * kEight;
      if (i < place.queries.size() && column < c.dq.columns)
        store_eight(c.dq, place.in(c.dq, i), column, sums[half]);
    }
  }
}

/// dk or dv, whose sums of shares are in contiguous rows.
struct SharedGradient {
  HeadRows sums, to;
  int rows = 0, kv_heads = 0;
  int length = 0;  // rows of a sequence; 0: packed

  __host__ __device__ std::int64_t threads() const {
    return to.data ? std::int64_t{rows} * kv_heads * (to.columns / kEight) : 0;
  }
};

/// A thread adds up eight columns of a key, in the order of shares.
__device__ void add_shares(const SharedGradient& g, const BackwardWalk& walk, std::int64_t number) {
  if (number >= g.threads()) return;
  const int words = g.to.columns / kEight, shares = walk.of_tile.count();
  const int column = static_cast<int>(number % words) * kEight;
  const int of_heads = static_cast<int>(number / words);
  const int row = of_heads / g.kv_heads, head = of_heads % g.kv_heads;
  if (walk.keys.packed) {  // rows of no sequence have no sums
    const planning::Sequence last = walk.sequences.at(walk.batches - 1);
    if (row < walk.sequences.at(0).kv_begin || row >= last.kv_begin + last.kv_length) return;
  }
  float sum[kEight] = {};
  const std::int64_t from = row * g.sums.row + head * shares * g.sums.head;
  for (int share = 0; share < shares; ++share) {
    float of_share[kEight];
    load_eight(g.sums, from + share * g.sums.head, column, of_share);
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum[i] += of_share[i];
  }
  const int batch = g.length > 0 ? row / g.length : 0, in_sequence = row - batch * g.length;
  store_eight(g.to, batch * g.to.batch + in_sequence * g.to.row + head * g.to.head, column, sum);
}

/// The first `dq_blocks` thread blocks have dQ, the next `dk_blocks` dk, the others dv.
__global__ void __launch_bounds__(kThreads)
    convert_sums_kernel(const __grid_constant__ Conversion c,
                        const __grid_constant__ BackwardWalk walk,
                        const __grid_constant__ SharedGradient dk,
                        const __grid_constant__ SharedGradient dv, unsigned dq_blocks,
                        unsigned dk_blocks) {
  if (blockIdx.x < dq_blocks) return convert_dq(c, walk);
  const unsigned block = blockIdx.x - dq_blocks;
  const bool keys = block < dk_blocks;
  const std::int64_t first = std::int64_t{keys ? block : block - dk_blocks} * kThreads;
  add_shares(keys ? dk : dv, walk, first + threadIdx.x);
}

std::int64_t blocks_of_heads(const BackwardWalk& walk) {
  return std::int64_t{walk.query_blocks} * walk.heads;
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

HeadRows rows_of_shares(const Tensor& to, float* sums, const planning::AttentionShape& shape,
                        const BackwardWalk& walk) {
  HeadRows rows = HeadRows::of(to);
  if (!to || !sums) return rows;
  rows.data = sums;
  rows.dtype = DType::f32;
  rows.head = rows.columns;
  rows.row = std::int64_t{walk.shares} * rows.head;
  rows.batch = walk.keys.packed ? 0 : shape.kv_length * rows.row;
  rows.col = 1;
  rows.wide = true;
  return rows;
}

void convert_sums(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
                  const BackwardWalk& walk, const BackwardScratch& scratch, int width,
                  SumsOrder order, void* stream) {
  const Conversion c{scratch.dq,  scratch.turns,           HeadRows::of(problem.dq),
                     shape.scale, scratch.turns_per_block, width,
                     order};
  const auto gradient = [&](const Tensor& to, float* sums) {
    if (!to || !sums) return SharedGradient{};
    return SharedGradient{rows_of_shares(to, sums, shape, walk), HeadRows::of(to),
                          static_cast<int>(shape.kv_total), static_cast<int>(shape.kv_heads),
                          walk.keys.packed ? 0 : static_cast<int>(shape.kv_length)};
  };
  const SharedGradient dk = gradient(problem.dk, scratch.dk), dv = gradient(problem.dv, scratch.dv);
  const auto blocks_of = [](const SharedGradient& g) {
    return static_cast<unsigned>((g.threads() + kThreads - 1) / kThreads);
  };
  const bool has_dq = problem.dq && shape.q_total > 0;
  const unsigned of_dq = has_dq ? static_cast<unsigned>(blocks_of_heads(walk)) : 0;
  const unsigned of_dk = blocks_of(dk), blocks = of_dq + of_dk + blocks_of(dv);
  if (blocks == 0) return;
  Kernel<convert_sums_kernel>::launch({"convert_sums_kernel", grid_of(blocks), kThreads, stream}, c,
                                      walk, dk, dv, of_dq, of_dk);
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
