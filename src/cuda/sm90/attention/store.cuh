#pragma once

#include <cmath>
#include <cstdint>

#include <cuda/ptx>

#include "src/cuda/sm90/attention/softmax.cuh"
#include "src/cuda/sm90/attention/traits.cuh"
#include "src/cuda/sm90/product/epilogue.cuh"
#include "src/cuda/sm90/product/staging.cuh"
#include "src/cuda/tile/copy.cuh"

// From sums to the result: normalised, rounded, written by TMA from where the queries lay.
namespace tessera::cuda::sm90::attention {

__device__ __forceinline__ float sink_of(const Arguments& args, int head) {
  if (!args.sinks) return -INFINITY;
  product::Plane plane;
  plane.data = const_cast<void*>(args.sinks);
  plane.dtype = args.sink_dtype;
  return plane.load(head * args.sink_stride);
}

/// Rows of one warpgroup's 64: the queries and heads that they are.
struct RowPlaces {
  int query[2], head[2];  // query inside the sequence; beyond its length: no row

  __device__ RowPlaces(const Arguments& args, const TileNote& tile, int first_row, int thread) {
    const tile::Fragment fragment(thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + fragment.row(half);
      query[half] = tile.first_query + (row >> args.walk.pack_shift);
      head[half] = tile.head + (row & (args.walk.pack - 1));
    }
  }
};

/// What a row's sums are multiplied by, and its log sum of exponentials. Quads hold a row.
struct Normalised {
  float factor[2], lse[2];

  __device__ Normalised(const Arguments& args, const Softmax& softmax, const RowPlaces& rows) {
    constexpr float kLn2 = 0.6931471806f, kLog2e = 1.4426950409f;
    float total[2] = {softmax.sum[0], softmax.sum[1]};
#pragma unroll
    for (int away = 1; away <= 2; away *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) total[half] += __shfl_xor_sync(~0u, total[half], away);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The largest weight was one when its base was set, so the sum is zero only without any key.
      const bool unseen = total[half] == 0.0f;
      float base = softmax.base[half], shrink = 1.0f;
      if (args.sinks) {  // joins with its own weight
        const float sink = sink_of(args, rows.head[half]) * kLog2e;
        const float mine = unseen ? -INFINITY : base;
        base = fmaxf(mine, sink);
        if (base == -INFINITY) base = 0.0f;
        shrink = exp2f(mine - base);
        total[half] = total[half] * shrink + exp2f(sink - base);
      }
      factor[half] = unseen ? 0.0f : __fdividef(shrink, total[half]);
      lse[half] = (base + __log2f(total[half])) * kLn2;  // -inf for a sum of zero
    }
  }
};

__device__ __forceinline__ void store_lse(const Arguments& args, const TileNote& tile,
                                          const RowPlaces& rows, const float (&lse)[2],
                                          int thread) {
  if (!args.result.lse || thread % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.query[half] >= tile.q_length) continue;
    const std::int64_t row = tile.q_begin + rows.query[half];
    args.result.lse[tile.batch * args.result.lse_batch + rows.head[half] * args.result.lse_head +
                    row * args.result.lse_row + tile.split * args.result.lse_part] = lse[half];
  }
}

/// f32 results, straight from registers.
template <int kDimV>
__device__ __forceinline__ void store_wide(const Arguments& args, const TileNote& tile,
                                           const RowPlaces& rows, const float (&sum)[kDimV / 2],
                                           const float (&factor)[2], int thread) {
  const Result& to = args.result;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows.query[half] >= tile.q_length) continue;
    int column = thread % 4 * 2;
    float* at = static_cast<float*>(to.out) + tile.batch * to.out_batch +
                rows.head[half] * to.out_head + (tile.q_begin + rows.query[half]) * to.out_row +
                tile.split * to.out_part + column * to.out_col;
#pragma unroll
    for (int j = 0; j < kDimV / 8; ++j) {
      if (column < to.dim_v) {  // a multiple of eight
        at[0] = sum[j * 4 + half * 2] * factor[half];
        at[to.out_col] = sum[j * 4 + half * 2 + 1] * factor[half];
      }
      at += 8 * to.out_col;
      column += 8;
    }
  }
}

/// 16-bit results lie where this consumer's queries were, in panels of 64 columns.
template <class T>
__device__ __forceinline__ void put_panels(const Arguments& args, typename T::Queries& panels,
                                           const float (&sum)[T::kDimV / 2],
                                           const float (&factor)[2], int first_row, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const int line = first_row + warp * 16 + lane % 16;
  const DType dtype = args.result.dtype;
#pragma unroll
  for (int set = 0; set < T::kDimV / 16; ++set) {
    std::uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = set * 8 + i * 2;
      pair[i] = product::pack(dtype, sum[at] * factor[i % 2], sum[at + 1] * factor[i % 2]);
    }
    const int chunk = set % 4 * 2 + lane / 16;
    const std::uint32_t base = tile::shared_address(panels.panel(set / 4, line));
    product::put_blocks<false>(base + ((chunk ^ lane % 8) << 4), pair);
  }
}

/// By TMA, one lane: whole tiles, or tiles that end with the tensor.
template <class T>
__device__ __forceinline__ void carry_out(const Arguments& args, const TileNote& tile,
                                          typename T::Queries& panels, int first_row) {
  const int first = tile.q_begin + tile.first_query + (first_row >> args.walk.pack_shift);
#pragma unroll
  for (int p = 0; p < (T::kDimV + tile::kLine - 1) / tile::kLine; ++p)
    tile::store_box(args.out, p * tile::kLine, 0, first, (tile.head >> args.walk.pack_shift),
                    args.walk.packed_q ? 0 : tile.batch, panels.panel(p, first_row));
  tile::commit_stores();
}

/// Every second column of a row, from panels that are so many elements apart.
inline __device__ __noinline__ void copy_row(std::uint16_t* to, std::int64_t stride, int column,
                                             int columns, const std::uint16_t* from, int apart,
                                             int row) {
#pragma unroll 1
  for (; column < columns; column += 2) {
    const int chunk = column % tile::kLine / 8 ^ row % 8;
    to[column * stride] = from[column / tile::kLine * apart + chunk * 8 + column % 8];
  }
}

/// Element by element, two lanes a row: any strides, ends of sequences.
template <class T>
__device__ __forceinline__ void copy_out(const Arguments& args, const TileNote& tile,
                                         typename T::Queries& panels, int first_row, int thread) {
  const Result& to = args.result;
  const int row = first_row + thread / 2;
  const int query = tile.first_query + (row >> args.walk.pack_shift);
  if (query >= tile.q_length) return;
  std::uint16_t* at = static_cast<std::uint16_t*>(to.out) + tile.batch * to.out_batch +
                      (tile.head + (row & (args.walk.pack - 1))) * to.out_head +
                      (tile.q_begin + query) * to.out_row;
  copy_row(at, to.out_col, thread % 2, static_cast<int>(to.dim_v),
           reinterpret_cast<const std::uint16_t*>(panels.panel(0, row)),
           T::Queries::kPanelBytes / 2, row);
}

}  // namespace tessera::cuda::sm90::attention
