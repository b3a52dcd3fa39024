#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/decode/narrow.cuh"
#include "src/kernels/cuda/sm90/decode/parts.cuh"
#include "src/kernels/cuda/sm90/decode/traits.cuh"

// The end of a tile: the teams' results are merged, chunk by chunk, and stored. If other CTAs have
// parts of the tile, the CTA that finishes last merges all parts. The order is always the same.
namespace tessera::cuda::sm90::decode {

/// The place of a consumer warp.
template <class T>
struct ConsumerPlace {
  int team, row_warp, lane;

  __device__ explicit ConsumerPlace(int thread)
      : team(thread / 32 / T::kRowWarps), row_warp(thread / 32 % T::kRowWarps), lane(thread % 32) {}

  /// Whether some of the warp's rows hold queries.
  __device__ bool has_rows(const planning::AttentionWalk& walk, const TileDescriptor& tile) const {
    return row_warp * 16 < walk.rows() && tile.reaches(row_warp * 16, walk.pack);
  }
  /// The team's first step from `step` on.
  __device__ int first_step(int step) const {
    return step + (team - step % T::kTeams + T::kTeams) % T::kTeams;
  }
  /// Waits for all consumer warps.
  __device__ void sync() const { tile::sync_at(1, T::kWarps * 32); }
};

/// Normalises and stores one chunk of a tile's columns.
template <class T>
__device__ __forceinline__ void store_chunk(const Arguments& args, const ConsumerPlace<T>& place,
                                            const TileDescriptor& tile, int chunk,
                                            const OAccumulator<T::kChunk>& sums,
                                            const Softmax& softmax) {
  OAccumulator<T::kChunk> o_acc;
#pragma unroll
  for (int i = 0; i < T::kChunk / 2; ++i) o_acc[i] = sums[i];
  if constexpr (T::kNarrow) order_columns<T::kChunk>(o_acc, place.lane);
  const RowPlaces rows(args.walk, tile, place.row_warp * 16, place.lane);
  const Normalised normalised(softmax, args.sinks, rows);
  const int first_column = chunk * T::kChunk;
  Result to = args.result;
  to.dim_v -= first_column;
  const std::int64_t offset = first_column * to.out_col;
  if (to.dtype == DType::f32) {
    to.out = static_cast<float*>(to.out) + offset;
    store_f32<T::kChunk>(to, tile, rows, o_acc, normalised.factor, place.lane);
  } else {
    to.out = static_cast<std::uint16_t*>(to.out) + offset;
    store_16bit<T::kChunk>(to, tile, rows, o_acc, normalised.factor, place.lane);
  }
  if (chunk == 0) store_lse(to, tile, rows, normalised.lse, place.lane);
}

/// Adds the same chunk of all CTAs' parts, and stores the result. Called by the CTA that finished
/// last.
template <class T>
__device__ __forceinline__ void merge_parts(const Arguments& args, const ConsumerPlace<T>& place,
                                            const TileDescriptor& tile) {
  using Part = typename T::Partial[T::kRowWarps][T::kChunks];
  const planning::KvShare& share = tile.share;
  // The first part's place is apart from the others, which are evenly spaced.
  const auto* first_part = static_cast<const Part*>(args.partials) + args.walk.slot(share, 0);
  const auto* other_parts = static_cast<const Part*>(args.partials) + args.walk.slot(share, 1);
  const int apart = static_cast<int>(args.walk.slot(share, 2) - args.walk.slot(share, 1));
#pragma unroll 1
  for (int chunk = place.team; chunk < T::kChunks; chunk += T::kTeams) {
    OAccumulator<T::kChunk> sum;
    Softmax softmax;
    clear<T::kChunk>(sum);
#pragma unroll 1
    for (int first = 0; first < share.parts; first += T::kPartsAtOnce) {
      LoadedPart<T::kChunk> loaded[T::kPartsAtOnce];
#pragma unroll
      for (int i = 0; i < T::kPartsAtOnce; ++i) {
        const int part = first + i;
        const Part& from = part == 0 ? *first_part : other_parts[(part - 1) * apart];
        if (part < share.parts)
          load_part<false>(from[place.row_warp][chunk], loaded[i], place.lane);
      }
      add_parts<T::kChunk>(loaded, sum, softmax);
    }
    store_chunk<T>(args, place, tile, chunk, sum, softmax);
  }
}

/// Whether this thread counts its CTA's part of a tile.
__device__ __forceinline__ bool counts(const planning::KvShare& share) {
  return threadIdx.x == 0 && share.parts > 1;
}

/// Called by all consumer warps when they have walked their pieces of a tile. `seen`: the tile's
/// counter, in the thread that counts, read before the walk, as reading takes as long as counting.
template <class T>
__device__ __forceinline__ void finish_tile(const Arguments& args, typename T::Shared& shared,
                                            const ConsumerPlace<T>& place,
                                            const TileDescriptor& tile, bool active,
                                            const OAccumulator<T::kChunk> (&o_acc)[T::kChunks],
                                            const Softmax& softmax, std::uint64_t seen) {
  using Part = typename T::Partial[T::kRowWarps][T::kChunks];
  const planning::KvShare share = tile.share;
  std::uint64_t* const counter = &args.merge_counts[share.tile];
  if (counts(share)) begin_count(counter, seen, args.walk.tag, share.parts);
  Part& part = static_cast<Part*>(args.partials)[args.walk.slot(share, share.part)];
#pragma unroll 1
  for (int round = 0; round < T::kRounds; ++round) {
    if (active) {
#pragma unroll
      for (int chunk = 0; chunk < T::kChunks; ++chunk)
        if (chunk / T::kPerRound == round)
          store_partial<T::kChunk>(
              shared.exchange[place.team][place.row_warp][chunk % T::kPerRound], o_acc[chunk],
              softmax, place.lane);
    }
    place.sync();
    const int chunk = round * T::kPerRound + place.team;
    if (active && place.team < T::kPerRound && chunk < T::kChunks) {
      OAccumulator<T::kChunk> sum;
      Softmax merged;
      clear<T::kChunk>(sum);
      LoadedPart<T::kChunk> loaded[T::kTeams];
#pragma unroll
      for (int team = 0; team < T::kTeams; ++team)
        load_part<true>(shared.exchange[team][place.row_warp][place.team], loaded[team],
                        place.lane);
      add_parts<T::kChunk>(loaded, sum, merged);
      if (share.parts == 1) {
        store_chunk<T>(args, place, tile, chunk, sum, merged);
      } else {
        store_partial<T::kChunk>(part[place.row_warp][chunk], sum, merged, place.lane);
        __threadfence();
      }
    }
    place.sync();
  }
  if (share.parts == 1) return;
  if (counts(share)) {
    shared.merges = count_begun(counter, args.walk.tag, share.parts) == share.parts - 1;
    __threadfence();
  }
  place.sync();
  if (shared.merges && active) merge_parts<T>(args, place, tile);
}

}  // namespace tessera::cuda::sm90::decode
