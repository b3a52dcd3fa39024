#pragma once

#include <cmath>
#include <cstdint>

#include <cuda/ptx>

#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/attention/consumer_pipeline.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/product/staging.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

// From the O accumulator to the result: normalise, round, stage in the Q buffer, store through TMA.
namespace tessera::cuda::sm90::attention {

/// Stages 16-bit results in shared memory, over the consumer's own rows of Q.
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
      pair[i] = pack(dtype, two[0] * factor[i % 2], two[1] * factor[i % 2]);
    }
    product::put_blocks<false>(T::Queries::to_mma(at, set), pair);
  }
}

/// Whether TMA stores a consumer's rows. TMA clips at the end of the tensor, not at the end of a
/// packed sequence, so all rows that it stores must belong to the sequence.
template <class T>
__device__ __forceinline__ bool uses_tma_store(const Arguments& args, const TileDescriptor& tile,
                                               int first_row) {
  const bool by_consumer = args.stored_rows == T::kRows;
  if (args.stored_rows == 0 || (!by_consumer && tile.share.parts > 1)) return false;
  const int end = args.stored_rows + (by_consumer ? first_row : 0);
  return !args.walk.packed_q || tile.first_query + args.walk.pack.quotient(end) <= tile.q_length;
}

/// Zeros the rows of a Q buffer that hold no queries in any tile, so that their scores are finite.
/// Staged results may have overwritten them. `lanes` threads share the work.
template <class T>
__device__ __forceinline__ void clear_empty_rows(typename T::Queries& q, const Walk& walk, int lane,
                                                 int lanes) {
  if (walk.rows() == T::kM) return;
  constexpr int kChunks = T::Queries::kLineBytes / 16, kOfRow = T::Queries::kPanels * kChunks;
#pragma unroll 1
  for (int place = walk.rows() * kOfRow + lane; place < T::kM * kOfRow; place += lanes) {
    const int row = place / kOfRow, chunk = place % kOfRow;
    reinterpret_cast<uint4*>(q.panel(chunk / kChunks, row))[chunk % kChunks] = uint4{};
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

/// The store warp (one lane): issues the TMA stores of staged results and, once TMA has read them,
/// releases the Q buffer and the tile.
template <class T>
__device__ __forceinline__ void store_results(const Arguments& args, typename T::Shared& shared) {
  for (unsigned tile = 0;; ++tile) {
    const unsigned place = tile % T::kTileDescriptors, q = tile % T::kQueryStages;
    tile::wait(&shared.tile_ring.full[place], tile / T::kTileDescriptors % 2);
    const TileDescriptor& descriptor = shared.tiles[place];
    if (descriptor.no_more_tiles) break;
    tile::wait(&shared.results_staged[q], tile / T::kQueryStages % 2);
#pragma unroll 1
    for (int row = 0; row < args.walk.rows(); row += max(args.stored_rows, T::kRows)) {
      if (descriptor.share.parts > 1 && !shared.merges[q][row / T::kRows]) continue;
      if (!uses_tma_store<T>(args, descriptor, row)) continue;
      const int first = descriptor.q_begin + descriptor.first_query + args.walk.pack.quotient(row);
#pragma unroll
      for (int p = 0; p < T::Queries::panels_of(T::kDimV); ++p)
        tile::store_box(args.out, p * T::Queries::kLine, 0, first, descriptor.head_group,
                        args.walk.packed_q ? 0 : descriptor.batch, shared.q[q].panel(p, row));
    }
    tile::commit_stores();
    ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
    clear_empty_rows<T>(shared.q[q], args.walk, 0, 1);
    tile::arrive(&shared.q_ring.empty[q]);
    tile::arrive(&shared.tile_ring.empty[place]);
  }
}

/// Copies a consumer's staged rows to global memory: 16 bytes at a time to aligned rows, element by
/// element to any strides.
template <class T>
__device__ __forceinline__ void copy_staged(const Arguments& args, const TileDescriptor& tile,
                                            typename T::Queries& panels, int first_row,
                                            int thread) {
  const Result& to = args.result;
  const int rows = args.walk.rows();
  // Where a row's result begins; null: nowhere.
  const auto row_at = [&](int row) -> std::uint16_t* {
    const int within = args.walk.pack.quotient(row), query = tile.first_query + within;
    if (query >= tile.q_length || row >= rows) return nullptr;
    return static_cast<std::uint16_t*>(to.out) + tile.batch * to.out_batch +
           (tile.head + row - within * args.walk.pack.divisor) * to.out_head +
           (tile.q_begin + query) * to.out_row;
  };
  constexpr int kChunks = T::kDimV / 8;
#pragma unroll 1
  for (int place = thread; place < T::kRows * kChunks; place += kWarpgroup) {
    const int row = first_row + place / kChunks, column = place % kChunks * 8;
    uint4* const chunk = panels.chunk(row, column);
    std::uint16_t* const at = row_at(row);
    if (!at || column >= to.dim_v) continue;
    if (to.aligned) {
      *reinterpret_cast<uint4*>(at + column) = *chunk;
    } else {
#pragma unroll 1
      for (int i = 0; i < 8; ++i)
        at[(column + i) * to.out_col] = reinterpret_cast<const std::uint16_t*>(chunk)[i];
    }
  }
}

/// Stores a consumer's rows of a tile, or stages them for the store warp. FP8: times a factor.
template <class T, bool kWithLse = true>
__device__ __forceinline__ void store_tile(ConsumerPipeline<T>& pipe, unsigned number,
                                           OAccumulator<T::kDimV>& o_acc, const auto& softmax,
                                           float of_values = 1.0f) {
  const TileDescriptor& descriptor = pipe.descriptor_of(number);
  const int thread = pipe.thread();
  const RowPlaces rows(pipe.args.walk, descriptor, pipe.first_row(), thread);
  Normalised normalised(softmax, pipe.args.sinks, rows);
  if constexpr (T::kNarrow) normalised.multiply_by(of_values, o_acc);
  const bool wide = pipe.args.result.dtype == DType::f32;
  if (wide) {
    store_f32<T::kDimV>(pipe.args.result, descriptor, rows, o_acc, normalised.factor, thread);
  } else if constexpr (T::kNarrow) {
    store_16bit_by_pairs<T::kDimV>(pipe.args.result, descriptor, rows, o_acc, normalised.factor,
                                   thread);
  } else if constexpr (T::kConsumersStore) {
    store_16bit<T::kDimV>(pipe.args.result, descriptor, rows, o_acc, normalised.factor, thread);
  } else {
    pipe.sync_warpgroup();  // all warps are past their last QK of the tile
    stage_results<T>(pipe.args, pipe.queries_of(number), o_acc, normalised.factor, pipe.first_row(),
                     thread);
  }
  if constexpr (kWithLse) store_lse(pipe.args.result, descriptor, rows, normalised.lse, thread);
  if (T::kConsumersStore || wide) return;
  if (agreed(uses_tma_store<T>(pipe.args, descriptor, pipe.first_row()))) {
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  } else {
    pipe.sync_warpgroup();
    copy_staged<T>(pipe.args, descriptor, pipe.queries_of(number), pipe.first_row(), thread);
  }
}

}  // namespace tessera::cuda::sm90::attention
