#pragma once

#include <cmath>
#include <cstdint>

#include <cuda/ptx>

#include "src/kernels/cuda/sm90/attention/softmax.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/product/staging.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

// From the O accumulator to the result: normalised, rounded, staged in the Q buffer and stored by
// TMA.
namespace tessera::cuda::sm90::attention {

__device__ __forceinline__ float sink_of(const Arguments& args, int head) {
  if (!args.sinks) return -INFINITY;
  product::Plane plane;
  plane.data = const_cast<void*>(args.sinks);
  plane.dtype = args.sink_dtype;
  return plane.load(head * args.sink_stride);
}

/// The queries and heads of a thread's two rows.
struct RowPlaces {
  int query[2], head[2];  // query inside the sequence; beyond its length: no row

  __device__ RowPlaces(const Arguments& args, const TileDescriptor& tile, int first_row,
                       int thread) {
    const tile::Fragment fragment(thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + fragment.row(half);
      query[half] = tile.first_query + (row >> args.walk.pack_shift);
      head[half] = tile.head + (row & (args.walk.pack - 1));
    }
  }
};

/// The factor that normalises a row of the O accumulator, and the row's log-sum-exp. The lanes of a
/// quad share a row.
struct Normalised {
  float factor[2], lse[2];

  __device__ Normalised(const Arguments& args, const Softmax& softmax, const RowPlaces& rows) {
    constexpr float kLn2 = 0.6931471806f, kLog2e = 1.4426950409f;
    float total[2] = {softmax.row_sum[0], softmax.row_sum[1]};
#pragma unroll
    for (int away = 1; away <= 2; away *= 2)
#pragma unroll
      for (int half = 0; half < 2; ++half) total[half] += __shfl_xor_sync(~0u, total[half], away);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The largest P was near one when the row max was set, so the sum is zero only without any
      // key.
      const bool unseen = total[half] == 0.0f;
      float row_max = softmax.row_max[half], rescale_factor = 1.0f, sink = -INFINITY;
      if (args.sinks) {  // the sink is one more score
        sink = sink_of(args, rows.head[half]);
        const float mine = row_max, other = sink * kLog2e;
        row_max = fmaxf(mine, other);
        rescale_factor = exp2f(mine - row_max);
        total[half] = total[half] * rescale_factor + exp2f(other - row_max);
      }
      factor[half] = unseen ? 0.0f : __fdividef(rescale_factor, total[half]);
      lse[half] = unseen ? sink : (row_max + __log2f(total[half])) * kLn2;
    }
  }
};

__device__ __forceinline__ void store_lse(const Arguments& args, const TileDescriptor& tile,
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

/// Writes a consumer's partial result. Readers wait at a barrier.
template <int kDimV>
__device__ __forceinline__ void store_partial(PartialResult<kDimV>& to,
                                              const OAccumulator<kDimV>& o_acc,
                                              const Softmax& softmax, int thread) {
#pragma unroll
  for (int i = 0; i < kDimV / 8; ++i)
    to.o_acc[i][thread] = {o_acc[i * 4], o_acc[i * 4 + 1], o_acc[i * 4 + 2], o_acc[i * 4 + 3]};
  float row_max[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    row_max[half] = softmax.seen(half) ? softmax.row_max[half] : -INFINITY;
  to.softmax_state[thread] = {row_max[0], row_max[1], softmax.row_sum[0], softmax.row_sum[1]};
}

/// Adds the partial result of another consumer: of this CTA, from shared memory, or of another CTA,
/// bypassing L1.
template <bool kSameCta, int kDimV>
__device__ __forceinline__ void add_partial(const PartialResult<kDimV>& from,
                                            OAccumulator<kDimV>& o_acc, Softmax& softmax,
                                            int thread) {
  constexpr int kAtOnce = kDimV > 128 ? 4 : 8;
  const auto load = [](const float4& at) { return kSameCta ? at : __ldcg(&at); };
  const float4 state = load(from.softmax_state[thread]);
  const float2 factor[2] = {softmax.merge(0, state.x, state.z), softmax.merge(1, state.y, state.w)};
#pragma unroll
  for (int i = 0; i < kDimV / 8; ++i) {
    const float4 other = load(from.o_acc[i][thread]);
    const float theirs[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& mine = o_acc[i * 4 + j];
      mine = fmaf(factor[j / 2].x, mine, factor[j / 2].y * theirs[j]);
    }
    // Without this all loads come first, which takes too many registers.
    if (i % kAtOnce == kAtOnce - 1) asm volatile("" ::: "memory");
  }
}

/// f32 results, straight from registers.
template <int kDimV>
__device__ __forceinline__ void store_f32(const Arguments& args, const TileDescriptor& tile,
                                          const RowPlaces& rows, const OAccumulator<kDimV>& o_acc,
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
        at[0] = o_acc[j * 4 + half * 2] * factor[half];
        at[to.out_col] = o_acc[j * 4 + half * 2 + 1] * factor[half];
      }
      at += 8 * to.out_col;
      column += 8;
    }
  }
}

/// Transposes 4 x 4 words in a quad: word i of lane j becomes word j of lane i.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&word)[4], int lane) {
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

/// 16-bit results, straight from registers: quads rearrange eight columns of four groups into eight
/// adjacent columns per lane, so that each lane stores sixteen bytes at once.
template <int kDimV>
__device__ __forceinline__ void store_16bit(const Arguments& args, const TileDescriptor& tile,
                                            const RowPlaces& rows, const OAccumulator<kDimV>& o_acc,
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
            product::pack(to.dtype, o_acc[j] * factor[half], o_acc[j + 1] * factor[half]);
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
      if (args.tma_store) {
        *reinterpret_cast<uint4*>(at + column) = {mine[0], mine[1], mine[2], mine[3]};
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          at[(column + i) * to.out_col] = static_cast<std::uint16_t>(mine[i / 2] >> i % 2 * 16);
      }
    }
  }
}

/// Stages 16-bit results in the rows of this consumer's Q.
template <class T>
__device__ __forceinline__ void stage_results(const Arguments& args, typename T::Queries& panels,
                                              const OAccumulator<T::kDimV>& o_acc,
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
      const float* two = o_acc + set * 8 + i * 2;
      pair[i] = product::pack(dtype, two[0] * factor[i % 2], two[1] * factor[i % 2]);
    }
    product::put_blocks<false>(T::Queries::to_column(at, set * 16), pair);
  }
}

/// Whether TMA stores a consumer's rows, from `first_row` of the tile on: TMA clips at the end of
/// the tensor, not at the end of a sequence.
template <class T>
__device__ __forceinline__ bool uses_tma_store(const Arguments& args, const TileDescriptor& tile,
                                               int first_row) {
  const int after = tile.first_query + (first_row + T::kRows >> args.walk.pack_shift);
  return args.tma_store && (!args.walk.packed_q || after <= tile.q_length);
}

/// The store warp (one lane): starts the TMA stores of staged results and releases tiles once these
/// are read.
template <class T>
__device__ __forceinline__ void store_results(const Arguments& args, typename T::Shared& shared) {
  for (unsigned tile = 0;; ++tile) {
    const unsigned place = tile % T::kTileDescriptors, q = tile % T::kQueryStages;
    tile::wait(&shared.tile_ring.full[place], tile / T::kTileDescriptors % 2);
    const TileDescriptor& descriptor = shared.tiles[place];
    if (descriptor.no_more_tiles) break;
    tile::wait(&shared.results_staged[q], tile / T::kQueryStages % 2);
#pragma unroll
    for (int consumer = 0; consumer < T::kSplitConsumers; ++consumer) {
      const int row = consumer * T::kRows;
      if (descriptor.share.parts > 1 && !shared.merges[q][consumer]) continue;
      if (!uses_tma_store<T>(args, descriptor, row)) continue;
      const int first = descriptor.q_begin + descriptor.first_query + (row >> args.walk.pack_shift);
#pragma unroll
      for (int p = 0; p < T::kDimV / T::Queries::kLine; ++p)
        tile::store_box(args.out, p * T::Queries::kLine, 0, first,
                        descriptor.head >> args.walk.pack_shift,
                        args.walk.packed_q ? 0 : descriptor.batch, shared.q[q].panel(p, row));
    }
    tile::commit_stores();
    ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
    tile::arrive(&shared.q_ring.empty[q]);
    tile::arrive(&shared.tile_ring.empty[place]);
  }
}

/// Element by element, two lanes per row: any strides, ends of sequences.
template <class T>
__device__ __forceinline__ void copy_staged(const Arguments& args, const TileDescriptor& tile,
                                            typename T::Queries& panels, int first_row,
                                            int thread) {
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
