#pragma once

#include <cmath>
#include <cstdint>

#include <tessera/attention.hpp>
#include "src/kernels/cuda/attention/softmax.cuh"

#include "src/kernels/cuda/attention/descriptors.cuh"
#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/plane.cuh"

// From the O accumulator to the result: normalisation with sinks, log-sum-exps, stores from
// registers.
namespace tessera::cuda::attention {

/// The output tensors; strides in elements.
struct Result {
  void* out;
  float* lse;  // may be null
  DType dtype;
  std::int64_t out_batch, out_row, out_head, out_col;
  std::int64_t lse_batch, lse_row, lse_head;
  std::int64_t dim_v;
  bool aligned;  // 16-bit rows whose columns can be stored as 16-byte words
};

inline Result result_of(const AttentionProblem& problem) {
  const Tensor& out = problem.out;
  const int row = out.rank - 3;
  Result result{};
  result.out = out.data;
  result.dtype = out.dtype;
  result.out_batch = row > 0 ? out.stride(0) : 0;
  result.out_row = out.stride(row);
  result.out_head = out.stride(row + 1);
  result.out_col = out.stride(row + 2);
  result.dim_v = out.size(row + 2);
  if (const Tensor& lse = problem.lse) {
    const int head = lse.rank - 2;
    result.lse = static_cast<float*>(lse.data);
    result.lse_batch = head > 0 ? lse.stride(0) : 0;
    result.lse_head = lse.stride(head);
    result.lse_row = lse.stride(head + 1);
  }
  return result;
}

/// Sinks: one score per head that takes part in every row's softmax but has no value.
struct Sinks {
  const void* data;  // may be null
  std::int64_t stride;
  DType dtype;

  __device__ __forceinline__ float of(int head) const {
    if (!data) return -INFINITY;
    Plane plane;
    plane.data = const_cast<void*>(data);
    plane.dtype = dtype;
    return plane.load(head * stride);
  }
};

inline Sinks sinks_of(const Tensor& sinks) {
  return sinks ? Sinks{sinks.data, sinks.stride(0), sinks.dtype} : Sinks{};
}

/// Clears the rows of packed tensors that belong to no sequence, those before the first offset and
/// from the last one on: zeros, and log-sum-exps of -inf. One warp of each CTA calls this.
__device__ inline void clear_rest(const Result& to, const Walk& walk, int lane) {
  const auto total = static_cast<int>(walk.sequences.q_total);
  const planning::SequenceList& offsets = walk.sequences.q_offsets;
  const int begin = planning::clamp_to(offsets.at(0, 0), 0, total);
  const int end = planning::clamp_to(offsets.at(walk.batches, 0), begin, total);
  const int heads = walk.head_groups.divisor * walk.pack.divisor;
  const int width = to.aligned ? 8 : 1, of_head = static_cast<int>(to.dim_v) / width;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < begin + total - end; i += gridDim.x) {
    const std::int64_t row = i < begin ? i : end + i - begin;
#pragma unroll 1
    for (int j = lane; j < heads * of_head; j += 32) {
      const std::int64_t place =
          row * to.out_row + j / of_head * to.out_head + j % of_head * width * to.out_col;
      if (to.aligned) {
        *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(to.out) + place) = uint4{};
      } else if (to.dtype == DType::f32) {
        static_cast<float*>(to.out)[place] = 0.0f;
      } else {
        static_cast<std::uint16_t*>(to.out)[place] = 0;
      }
    }
    if (!to.lse) continue;
#pragma unroll 1
    for (int head = lane; head < heads; head += 32)
      to.lse[row * to.lse_row + head * to.lse_head] = -INFINITY;
  }
}

/// Query and head of each of a thread's two rows.
struct RowPlaces {
  int query[2], head[2];  // query within its sequence; from q_length on there is no row

  __device__ RowPlaces(const Walk& walk, const TileDescriptor& tile, int first_row, int thread) {
    const Fragment fragment(thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + fragment.row(half);
      const int within = walk.pack.quotient(row);
      query[half] = row < walk.rows() ? tile.first_query + within : planning::kOutOfBounds;
      head[half] = tile.head + row - within * walk.pack.divisor;
    }
  }
};

/// The factor that normalises each row of the O accumulator, and the row's log-sum-exp. The four
/// lanes of a quad share a row.
struct Normalised {
  float factor[2], lse[2];

  __device__ Normalised(const Softmax& softmax, const Sinks& sinks, const RowPlaces& rows) {
    constexpr float kLn2 = 0.6931471806f, kLog2e = 1.4426950409f;
    float total[2] = {softmax.row_sum[0], softmax.row_sum[1]};
#pragma unroll
    for (int away = 1; away <= 2; away *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) total[half] += __shfl_xor_sync(~0u, total[half], away);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The largest P was near 1 when the row max was set, so the sum is zero only if no key was
      // seen.
      const bool unseen = total[half] == 0.0f;
      float row_max = softmax.row_max[half], rescale_factor = 1.0f, sink = -INFINITY;
      if (sinks.data) {  // the sink is one more score
        sink = sinks.of(rows.head[half]);
        const float mine = row_max, other = sink * kLog2e;
        row_max = fmaxf(mine, other);
        rescale_factor = exp2f(mine - row_max);
        total[half] = total[half] * rescale_factor + exp2f(other - row_max);
      }
      factor[half] = unseen ? 0.0f : __fdividef(rescale_factor, total[half]);
      lse[half] = unseen ? sink : (row_max + __log2f(total[half])) * kLn2;
    }
  }

  /// Multiplies the results by a factor: those in `o_acc` where one factor for both would vanish.
  template <int kCount>
  __device__ __forceinline__ void multiply_by(float of_values, float (&o_acc)[kCount]) {
    constexpr float kSmallest = 1.2e-38f;  // that is not flushed to zero
    const float both[2] = {factor[0] * of_values, factor[1] * of_values};
    if (agreed(fabsf(both[0]) < kSmallest | fabsf(both[1]) < kSmallest)) {
#pragma unroll
      for (float& x : o_acc) x *= of_values;
    } else {
      factor[0] = both[0], factor[1] = both[1];
    }
  }

  __device__ Normalised(const TwoSumSoftmax& softmax, const Sinks& sinks, const RowPlaces& rows)
      : Normalised(static_cast<const Softmax&>(softmax), sinks, rows) {
    const Normalised exact(softmax.exact(), sinks, rows);
    lse[0] = exact.lse[0], lse[1] = exact.lse[1];
  }
};

/// Stores the log-sum-exps of a thread's rows, by one lane per quad.
__device__ __forceinline__ void store_lse(const Result& to, const TileDescriptor& tile,
                                          const RowPlaces& rows, const float (&lse)[2],
                                          int thread) {
  if (!to.lse || thread % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.query[half] >= tile.q_length) continue;
    const std::int64_t row = tile.q_begin + rows.query[half];
    to.lse[tile.batch * to.lse_batch + rows.head[half] * to.lse_head + row * to.lse_row] =
        lse[half];
  }
}

/// Stores f32 results from registers.
template <int kDimV>
__device__ __forceinline__ void store_f32(const Result& to, const TileDescriptor& tile,
                                          const RowPlaces& rows, const OAccumulator<kDimV>& o_acc,
                                          const float (&factor)[2], int thread) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.query[half] >= tile.q_length) continue;
    int column = thread % 4 * 2;
    float* at = static_cast<float*>(to.out) + tile.batch * to.out_batch +
                rows.head[half] * to.out_head + (tile.q_begin + rows.query[half]) * to.out_row +
                column * to.out_col;
#pragma unroll
    for (int j = 0; j < kDimV / 8; ++j) {
      if (column < to.dim_v) {  // a multiple of eight
        at[0] = o_acc[j * 4 + half * 2] * factor[half];
        at[to.out_col] = o_acc[j * 4 + half * 2 + 1] * factor[half];
      }
      at += 8 * to.out_col;
      column += 8;
    }
  }
}

/// Stores 16-bit results from registers. The lanes of a quad exchange values until each has eight
/// adjacent columns, which it stores as 16 bytes if the rows of the result are aligned.
template <int kDimV>
__device__ __forceinline__ void store_16bit(const Result& to, const TileDescriptor& tile,
                                            const RowPlaces& rows, const OAccumulator<kDimV>& o_acc,
                                            const float (&factor)[2], int thread) {
  constexpr int kSets = kDimV / 32;
  const int lane = thread % 4;
  std::uint32_t word[2][kSets][4];
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = (set * 4 + i) * 4 + half * 2;
        word[half][set][i] = pack(to.dtype, o_acc[j] * factor[half], o_acc[j + 1] * factor[half]);
      }
      transpose_in_quad(word[half][set], lane);
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.query[half] >= tile.q_length) continue;
    std::uint16_t* const at = static_cast<std::uint16_t*>(to.out) + tile.batch * to.out_batch +
                              rows.head[half] * to.out_head +
                              (tile.q_begin + rows.query[half]) * to.out_row;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const std::uint32_t(&mine)[4] = word[half][set];
      const int column = (set * 4 + lane) * 8;
      if (column >= to.dim_v) continue;  // a multiple of eight
      if (to.aligned) {
        *reinterpret_cast<uint4*>(at + column) = {mine[0], mine[1], mine[2], mine[3]};
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          at[(column + i) * to.out_col] = static_cast<std::uint16_t>(mine[i / 2] >> i % 2 * 16);
      }
    }
  }
}

/// Where the 16-bit result of one of a thread's rows begins: with this expression in its place
/// below, two rows of FP8 spill registers.
__device__ __forceinline__ std::uint16_t* row_of_result(const Result& to,
                                                        const TileDescriptor& tile,
                                                        const RowPlaces& rows, int half) {
  return static_cast<std::uint16_t*>(to.out) + tile.batch * to.out_batch +
         rows.head[half] * to.out_head + (tile.q_begin + rows.query[half]) * to.out_row;
}

/// The same with few instructions: pairs of lanes exchange values until each has four adjacent
/// columns, so that a quad stores 32 bytes at a time; code of its own for each of the two types,
/// and for aligned rows of all columns.
template <int kDimV>
__device__ __forceinline__ void store_16bit_by_pairs(const Result& to, const TileDescriptor& tile,
                                                     const RowPlaces& rows,
                                                     const OAccumulator<kDimV>& o_acc,
                                                     const float (&factor)[2], int thread) {
  constexpr int kPairs = kDimV / 16;  // of eight columns
  const bool odd = thread % 2 != 0;
  const int first = thread % 2 * 8 + thread % 4 / 2 * 4;  // of the thread's columns
  std::uint32_t word[2][kPairs][2];
  const auto pack_all = [&](auto element) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kPairs * 2; ++i)
        word[half][i / 2][i % 2] = Precision<decltype(element)>::pack(
            o_acc[i * 4 + half * 2] * factor[half], o_acc[i * 4 + half * 2 + 1] * factor[half]);
  };
  if (to.dtype == DType::bf16)
    pack_all(__nv_bfloat16{});
  else
    pack_all(__half{});
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (auto& [even_word, odd_word] : word[half]) {
      const std::uint32_t other = __shfl_xor_sync(kAllLanes, odd ? even_word : odd_word, 1);
      even_word = odd ? other : even_word, odd_word = odd ? odd_word : other;
    }
  const bool whole = to.aligned && to.dim_v == kDimV;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.query[half] >= tile.q_length) continue;
    std::uint16_t* const at = row_of_result(to, tile, rows, half);
    if (whole) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair)
        *reinterpret_cast<uint2*>(at + first + pair * 16) = {word[half][pair][0],
                                                             word[half][pair][1]};
      continue;
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const std::uint32_t(&mine)[2] = word[half][pair];
      const int column = first + pair * 16;
      if (column >= to.dim_v) continue;  // a multiple of eight
      if (to.aligned) {
        *reinterpret_cast<uint2*>(at + column) = {mine[0], mine[1]};
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          at[(column + i) * to.out_col] = static_cast<std::uint16_t>(mine[i / 2] >> i % 2 * 16);
      }
    }
  }
}

}  // namespace tessera::cuda::attention
