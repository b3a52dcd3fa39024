#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/plane.cuh"

// How the kernels before and after the main one read and write rows of heads.
namespace tessera::cuda::attention_backward {

inline constexpr int kThreads = 256;
inline constexpr int kEight = 8;  // columns that a thread reads or writes at once

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
__device__ inline BlockPlace place_of_block(const BackwardWalk& walk, int number) {
  if (!walk.queries.packed) {
    return {walk.queries.per_sequence.quotient(number), walk.queries.per_sequence.rest(number), 0,
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

__device__ inline void load_eight(const HeadRows& from, std::int64_t at, int column,
                                  float (&to)[kEight]) {
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

__device__ inline void store_eight(const HeadRows& to, std::int64_t at, int column,
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

/// The block and the head of a thread block. Grid: blocks times heads, those of a block together,
/// as they are neighbours in memory.
struct HeadPlace {
  BlockPlace queries;
  int head;
  std::int64_t slot;  // of the block of this head in the scratch

  __device__ static HeadPlace here(const BackwardWalk& walk) {
    const auto number = static_cast<int>(blockIdx.x);
    const int block = walk.by_heads.quotient(number), head = walk.by_heads.rest(number);
    return {place_of_block(walk, block), head, std::int64_t{head} * walk.query_blocks + block};
  }
  /// Where query `i` of the block is in `rows`.
  template <class Rows>
  __device__ std::int64_t in(const Rows& rows, int i) const {
    return queries.batch * rows.batch + queries.row(i) * rows.row + head * rows.head;
  }
};

__host__ __device__ inline std::int64_t blocks_of_heads(const BackwardWalk& walk) {
  return std::int64_t{walk.query_blocks} * walk.heads;
}

}  // namespace tessera::cuda::attention_backward
