#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include <tessera/matmul.hpp>

#include "src/cuda/tile/wgmma.cuh"

// From accumulators to the result: out = activation(alpha * sum + beta * c + bias).
namespace tessera::cuda::sm90::product {

/// A matrix of any float dtype and strides (in elements); data null where absent.
struct Plane {
  void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t row = 0, col = 0, batch = 0;

  __device__ std::int64_t at(int r, int c, int b) const { return r * row + c * col + b * batch; }
  __device__ float load(std::int64_t element) const {
    if (dtype == DType::f32) return static_cast<const float*>(data)[element];
    if (dtype == DType::bf16)
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[element]);
    return __half2float(static_cast<const __half*>(data)[element]);
  }
  __device__ void store(std::int64_t element, float value) const {
    if (dtype == DType::f32) {
      static_cast<float*>(data)[element] = value;
    } else if (dtype == DType::bf16) {
      static_cast<__nv_bfloat16*>(data)[element] = __float2bfloat16_rn(value);
    } else {
      static_cast<__half*>(data)[element] = __float2half_rn(value);
    }
  }
};

struct Finish {
  Plane out, c, bias;  // bias: strides of 0 where it does not vary
  float alpha = 1, beta = 0;
  Activation activation = Activation::none;
  bool wide = false;  // rows of out take 16-byte stores
  bool tall = false;  // columns do

  __device__ float apply(float sum, int row, int col, int batch) const {
    float value = alpha * sum;
    if (c.data) value += beta * c.load(c.at(row, col, batch));
    if (bias.data) value += bias.load(bias.at(row, col, batch));
    switch (activation) {
      case Activation::none:
        break;
      case Activation::relu:
        value = value < 0.0f ? 0.0f : value;
        break;
      case Activation::gelu:
        value = 0.5f * value * erfcf(value * -0.70710678f);
        break;
      case Activation::gelu_tanh:
        value = 0.5f * value *
                (1.0f + tanhf(0.79788456f * (value + 0.044715f * value * value * value)));
        break;
      case Activation::silu:
        value = value / (1.0f + __expf(-value));
        break;
    }
    return value;
  }
  __device__ bool plain() const {
    return alpha == 1.0f && !c.data && !bias.data && activation == Activation::none;
  }
};

__device__ __forceinline__ std::uint32_t pack(DType dtype, float low, float high) {
  if (dtype == DType::bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

/// Four lanes hold one pair of each of four groups of eight columns; afterwards each holds the four
/// pairs of one group. `quad` is the lane's place among the four.
__device__ __forceinline__ uint4 gather_group(const std::uint32_t (&pair)[4], int quad) {
  std::uint32_t v[4] = {pair[0], pair[1], pair[2], pair[3]};
  // Exchange with the lane one away, then two away: a 4 x 4 transposition.
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (quad & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const std::uint32_t sent = upper ? v[i] : v[i | bit];
      const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, sent, bit);
      (upper ? v[i] : v[i | bit]) = got;
    }
  }
  return {v[0], v[1], v[2], v[3]};
}

/// 64 x kN accumulators, rounded and stored 16 bytes at a time: no arithmetic, columns all inside.
template <int kN>
__device__ __forceinline__ void store_plain(const Finish& finish, const float (&sum)[kN / 2],
                                            int row, int col, int batch, std::int64_t m,
                                            int thread) {
  const tile::Fragment fragment(thread);
  const int quad = fragment.lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + fragment.row(half);
    auto* line = static_cast<std::uint16_t*>(finish.out.data) + finish.out.at(r, col, batch);
#pragma unroll
    for (int set = 0; set < kN / 32; ++set) {
      std::uint32_t pair[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const int i = (set * 4 + g) * 4 + half * 2;
        pair[g] = pack(finish.out.dtype, sum[i], sum[i + 1]);
      }
      const uint4 group = gather_group(pair, quad);
      if (r < m) *reinterpret_cast<uint4*>(line + (set * 4 + quad) * 8) = group;
    }
  }
}

/// An 8 x 8 block of 16-bit elements, a pair a lane, turned over its diagonal within the warp.
__device__ __forceinline__ std::uint32_t turn(std::uint32_t pair) {
  std::uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}

/// The same for a result whose columns are contiguous: blocks of 8 x 8 are turned, then 8 rows of a
/// column go out together. Rows all inside.
template <int kN>
__device__ __forceinline__ void store_plain_turned(const Finish& finish, const float (&sum)[kN / 2],
                                                   int row, int col, int batch, std::int64_t n,
                                                   int thread) {
  const tile::Fragment fragment(thread);
  const int quad = fragment.lane % 4;
#pragma unroll
  for (int set = 0; set < kN / 16; ++set) {
    std::uint32_t pair[4];  // (group, half) in order
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (set * 2 + i / 2) * 4 + i % 2 * 2;
      pair[i] = turn(pack(finish.out.dtype, sum[at], sum[at + 1]));
    }
    const uint4 eight = gather_group(pair, quad);
    const int c = col + (set * 2 + quad / 2) * 8 + fragment.lane / 4;
    const int r = row + fragment.warp * 16 + quad % 2 * 8;
    if (c < n)
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(finish.out.data) +
                                finish.out.at(r, c, batch)) = eight;
  }
}

/// Any epilogue, any output: an element at a time. Rolled up, because inlining every activation for
/// every accumulator makes code that outgrows the instruction cache; moving the accumulators down
/// is cheap.
template <int kN>
__device__ __forceinline__ void store_general(const Finish& finish, float (&sum)[kN / 2], int row,
                                              int col, int batch, std::int64_t m, std::int64_t n,
                                              int thread) {
  const tile::Fragment fragment(thread);
  constexpr int kTurn = 8;  // accumulators a turn: two groups of columns
#pragma unroll 1
  for (int turn = 0; turn < kN / 2 / kTurn; ++turn) {
#pragma unroll
    for (int i = 0; i < kTurn; ++i) {
      const int r = row + fragment.row(i / 2 % 2);
      const int c = col + fragment.col(turn * kTurn / 4 + i / 4) + i % 2;
      if (r < m && c < n)
        finish.out.store(finish.out.at(r, c, batch), finish.apply(sum[i], r, c, batch));
    }
#pragma unroll
    for (int j = 0; j + kTurn < kN / 2; ++j) sum[j] = sum[j + kTurn];
  }
}

/// Stores a warpgroup's 64 x kN tile whose first element is (row, col) of the result.
template <int kN>
__device__ __forceinline__ void store_tile(const Finish& finish, float (&sum)[kN / 2], int row,
                                           int col, int batch, std::int64_t m, std::int64_t n,
                                           int thread) {
  if (finish.wide && finish.plain() && col + kN <= n) {
    store_plain<kN>(finish, sum, row, col, batch, m, thread);
  } else if (finish.tall && finish.plain() && row + 64 <= m) {
    store_plain_turned<kN>(finish, sum, row, col, batch, n, thread);
  } else {
    store_general<kN>(finish, sum, row, col, batch, m, n, thread);
  }
}

}  // namespace tessera::cuda::sm90::product
