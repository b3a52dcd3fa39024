#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/descriptors.cuh"
#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch_count.cuh"
#include "src/walk/key_pieces.hpp"
#include "src/walk/lanes.hpp"
#include "src/walk/tile_walk.hpp"

// How the scheduler warp takes tiles and looks up their pieces. src/walk defines tiles and pieces.
namespace tessera::cuda::attention {

using planning::Piece;
using planning::TilePlace;

/// What TileCursor::take needs besides the walk: this CTA's index, the tile counter, the order of
/// tiles. `kWaits`: an earlier grid that still runs may use the counter, or order the tiles.
template <bool kWaits>
struct TileSource {
  __device__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ void wait() const {
    if (kWaits) wait_for_grid_before();
  }
  __device__ int count(const Walk& walk, int limit, bool begun) const {
    return count_up(walk.next_tile, walk.tag, limit, begun);
  }
  __device__ int ordered(const Walk& walk, int next) const {
    return __ldcg(walk.order + next - walk.blocks);
  }
};

/// The tile cursor of one CTA, in shared memory. All lanes of a warp call its functions together.
struct TileCursor : planning::TileCursor {
  __device__ void start(int lane) {
    if (lane == 0) planning::TileCursor::start();
    __syncwarp();
  }

  /// Writes the descriptor of the next tile that has queries (one lane writes); false after the
  /// last tile. The tile is taken only now, since another CTA may be free earlier.
  template <bool kWaits = true>
  __device__ bool next(const Walk& walk, TileDescriptor& descriptor, int lane) {
    while (true) {
      if (lane == 0) number = take(walk, TileSource<kWaits>{}, descriptor.share);
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

  /// The position of a tile of packed queries. Tiles go sequence by sequence, with all heads of
  /// each, so that the longest sequence does not recur with every head.
  __device__ static TilePlace of_packed(const Walk& walk, int number, int lane) {
    for (int first = 0; first < walk.batches; first += 32) {
      const int mine = first + lane;
      int per_head = 0;
      if (mine < walk.batches) per_head = walk.tiles_of(walk.sequences.at(mine).q_length);
      const int count = per_head * walk.head_groups.divisor;
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

/// Initialises the pieces of a tile in shared memory. All lanes of a warp call this together, and
/// synchronise before they look up pieces.
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
