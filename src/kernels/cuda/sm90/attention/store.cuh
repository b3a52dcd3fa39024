#pragma once

#include <cmath>
#include <cstdint>

#include <cuda/ptx>

#include "src/kernels/cuda/sm90/attention/softmax.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/product/staging.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

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
      float base = softmax.base[half], shrink = 1.0f, sink = -INFINITY;
      if (args.sinks) {  // joins with its own weight
        sink = sink_of(args, rows.head[half]);
        const float mine = base, other = sink * kLog2e;
        base = fmaxf(mine, other);
        shrink = exp2f(mine - base);
        total[half] = total[half] * shrink + exp2f(other - base);
      }
      factor[half] = unseen ? 0.0f : __fdividef(shrink, total[half]);
      lse[half] = unseen ? sink : (base + __log2f(total[half])) * kLn2;
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
                    row * args.result.lse_row] = lse[half];
  }
}

/// What a consumer found, for others to join. They read it behind a barrier.
template <int kDimV>
__device__ __forceinline__ void put_found(FoundSums<kDimV>& to, const float (&sum)[kDimV / 2],
                                          const Softmax& softmax, int thread) {
#pragma unroll
  for (int i = 0; i < kDimV / 8; ++i)
    to.sum[i][thread] = {sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]};
  float base[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    base[half] = softmax.seen(half) ? softmax.base[half] : -INFINITY;
  to.state[thread] = {base[0], base[1], softmax.sum[0], softmax.sum[1]};
}

/// Adds what another consumer found: of this block, or of another, which L1 would not know.
template <bool kOfBlock, int kDimV>
__device__ __forceinline__ void add_found(const FoundSums<kDimV>& from, float (&sum)[kDimV / 2],
                                          Softmax& softmax, int thread) {
  constexpr int kAtOnce = kDimV > 128 ? 4 : 8;
  const auto load = [](const float4& at) { return kOfBlock ? at : __ldcg(&at); };
  const float4 state = load(from.state[thread]);
  const float2 weight[2] = {softmax.join(0, state.x, state.z), softmax.join(1, state.y, state.w)};
#pragma unroll
  for (int i = 0; i < kDimV / 8; ++i) {
    const float4 other = load(from.sum[i][thread]);
    const float theirs[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& mine = sum[i * 4 + j];
      mine = fmaf(weight[j / 2].x, mine, weight[j / 2].y * theirs[j]);
    }
    // Else all loads come first, which takes too many registers.
    if (i % kAtOnce == kAtOnce - 1) asm volatile("" ::: "memory");
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
                column * to.out_col;
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

/// Exchanges 4 x 4 words in a quad: word i of lane j becomes word j of lane i.
__device__ __forceinline__ void exchange_in_quad(std::uint32_t (&word)[4], int lane) {
#pragma unroll
  for (int away = 1; away <= 2; away *= 2) {
    const bool upper = (lane & away) != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t& low = word[away == 1 ? 2 * i : i];
      std::uint32_t& high = word[away == 1 ? 2 * i + 1 : i + 2];
      const std::uint32_t other = __shfl_xor_sync(~0u, upper ? low : high, away);
      (upper ? low : high) = other;
    }
  }
}

/// 16-bit results, straight from registers: quads turn eight columns of four groups into eight
/// neighbours a lane, where memory takes sixteen bytes at once.
template <int kDimV>
__device__ __forceinline__ void store_short(const Arguments& args, const TileNote& tile,
                                            const RowPlaces& rows, const float (&sum)[kDimV / 2],
                                            const float (&factor)[2], int thread) {
  constexpr int kSets = kDimV / 32;
  const Result& to = args.result;
  const int lane = thread % 4;
  std::uint32_t word[2][kSets][4];
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = (set * 4 + i) * 4 + half * 2;
        word[half][set][i] =
            product::pack(to.dtype, sum[j] * factor[half], sum[j + 1] * factor[half]);
      }
      exchange_in_quad(word[half][set], lane);
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
      if (args.carried) {
        *reinterpret_cast<uint4*>(at + column) = {mine[0], mine[1], mine[2], mine[3]};
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          at[(column + i) * to.out_col] = static_cast<std::uint16_t>(mine[i / 2] >> i % 2 * 16);
      }
    }
  }
}

/// 16-bit results lie where this consumer's queries were.
template <class T>
__device__ __forceinline__ void put_panels(const Arguments& args, typename T::Queries& panels,
                                           const float (&sum)[T::kDimV / 2],
                                           const float (&factor)[2], int first_row, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const std::uint32_t at =
      tile::shared_address(panels.chunk(first_row + warp * 16 + lane % 16, lane / 16 * 8));
  const DType dtype = args.result.dtype;
#pragma unroll
  for (int set = 0; set < T::kDimV / 16; ++set) {
    std::uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* two = sum + set * 8 + i * 2;
      pair[i] = product::pack(dtype, two[0] * factor[i % 2], two[1] * factor[i % 2]);
    }
    product::put_blocks<false>(T::Queries::to_column(at, set * 16), pair);
  }
}

/// Whether TMA takes a consumer's results, from this row of the tile on: it ends where the tensor
/// ends, not where a sequence does.
template <class T>
__device__ __forceinline__ bool is_carried(const Arguments& args, const TileNote& tile,
                                           int first_row) {
  const int after = tile.first_query + (first_row + T::kRows >> args.walk.pack_shift);
  return args.carried && (!args.walk.packed_q || after <= tile.q_length);
}

/// One lane. Hands results to TMA and gives tiles back that have left.
template <class T>
__device__ __forceinline__ void carry_results(const Arguments& args, typename T::Shared& shared) {
  for (unsigned tile = 0;; ++tile) {
    const unsigned place = tile % T::kTileNotes, q = tile % T::kQueryStages;
    tile::wait(&shared.tile_ring.full[place], tile / T::kTileNotes % 2);
    const TileNote& note = shared.tiles[place];
    if (note.ends_all) break;
    tile::wait(&shared.results[q], tile / T::kQueryStages % 2);
#pragma unroll
    for (int consumer = 0; consumer < T::kTeamSize; ++consumer) {
      const int row = consumer * T::kRows;
      if (note.share.parts > 1 && !shared.joins[q][consumer]) continue;
      if (!is_carried<T>(args, note, row)) continue;
      const int first = note.q_begin + note.first_query + (row >> args.walk.pack_shift);
#pragma unroll
      for (int p = 0; p < T::kDimV / T::Queries::kLine; ++p)
        tile::store_box(args.out, p * T::Queries::kLine, 0, first,
                        note.head >> args.walk.pack_shift, args.walk.packed_q ? 0 : note.batch,
                        shared.q[q].panel(p, row));
    }
    tile::commit_stores();
    ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
    tile::arrive(&shared.q_ring.empty[q]);
    tile::arrive(&shared.tile_ring.empty[place]);
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
#pragma unroll 1
  for (int column = thread % 2; column < to.dim_v; column += 2) {
    at[column * to.out_col] =
        reinterpret_cast<const std::uint16_t*>(panels.chunk(row, column))[column % 8];
  }
}

}  // namespace tessera::cuda::sm90::attention
