#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/descriptors.cuh"
#include "src/kernels/cuda/attention/launch_count.cuh"
#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/key_pieces.hpp"
#include "src/walk/lanes.hpp"
#include "src/walk/tile_walk.hpp"

// How the scheduler warp takes tiles and looks their pieces up. What a tile and a piece are follows
// from src/walk.
namespace tessera::cuda::attention {

using planning::Piece;
using planning::TilePlace;

/// What a thread block knows about its tiles besides the walk, see TileCursor::take.
struct TileSource {
  __device__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ void wait() const { wait_for_grid_before(); }
  __device__ int count(const Walk& walk, int limit, bool begun) const {
    return count_up(walk.next_tile, walk.tag, limit, begun);
  }
  __device__ int ordered(const Walk& walk, int next) const {
    return __ldcg(walk.order + next - walk.blocks);
  }
};

/// The cursor of one thread block. Lives in shared memory; all lanes of a warp call it together.
struct TileCursor : planning::TileCursor {
  __device__ void start(int lane) {
    if (lane == 0) planning::TileCursor::start();
    __syncwarp();
  }

  /// Writes the descriptor of the next tile that has queries (one lane writes); false after the
  /// last. A number is taken no sooner than here: another block may be free first.
  __device__ bool next(const Walk& walk, TileDescriptor& descriptor, int lane) {
    while (true) {
      if (lane == 0) number = take(walk, TileSource{}, descriptor.share);
      __syncwarp();
      if (number < 0) return false;
      write(walk, number, descriptor, lane);
      __syncwarp();
      if (descriptor.first_query < descriptor.q_length) return true;
      __syncwarp();
    }
  }

 private:
  __device__ void write(const Walk& walk, int of_tile, TileDescriptor& descriptor, int lane) const {
    const TilePlace place =
        walk.packed_q ? of_packed(walk, of_tile, lane) : TilePlace::of(walk, of_tile);
    if (lane == 0) planning::describe_tile(walk, place, of_tile, descriptor);
  }

  /// The position of a tile of packed queries: sequences in order, so that the longest sequence
  /// does not recur with each head.
  __device__ static TilePlace of_packed(const Walk& walk, int number, int lane) {
    for (int first = 0; first < walk.batches; first += 32) {
      const int mine = first + lane;
      int per_head = 0;
      if (mine < walk.batches) per_head = walk.tiles_of(walk.sequences.at(mine).q_length);
      const int count = per_head * walk.head_groups;
      const int up_to = sum_through(lane, count);  // tiles of the lanes up to this one
      const unsigned beyond = __ballot_sync(~0u, up_to > number);
      if (beyond != 0) {
        const int holder = planning::first_lane(beyond);
        per_head = __shfl_sync(~0u, per_head, holder);
        number -= __shfl_sync(~0u, up_to - count, holder);
        return TilePlace::of_sequence(walk, first + holder, per_head, number);
      }
      number -= __shfl_sync(~0u, up_to, 31);
    }
    return TilePlace::beyond(walk, walk.batches - 1);
  }
};

/// Begins the pieces of a tile, in shared memory. All lanes of a warp call it together and
/// synchronise before they look pieces up.
template <int kRowGroups, int kRows>
__device__ void start_pieces(planning::ListPieces<kRowGroups, kRows>& pieces, const Walk& walk,
                             const TileDescriptor& tile, int lane) {
  pieces.start(walk, tile, lane);
}
template <int kRowGroups, int kRows>
__device__ void start_pieces(planning::RowGroupPieces<kRowGroups, kRows>& pieces, const Walk& walk,
                             const TileDescriptor& tile, int lane) {
  const int columns = pieces.start_row_groups(walk, tile, lane);
  __syncwarp();
  pieces.name_columns(walk, tile, columns, lane,
                      [](std::uint32_t& word, unsigned bits) { atomicOr(&word, bits); });
}

}  // namespace tessera::cuda::attention
