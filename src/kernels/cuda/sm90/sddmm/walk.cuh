#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/sddmm_walk.hpp"

// How a warp finds the stored blocks of a tile. src/walk defines what a tile holds.
namespace tessera::cuda::sm90::sddmm {

using planning::sddmm::Pass;
using planning::sddmm::Walk;

/// Maximum number of pieces per pass, one per lane. A piece is a set of columns of B that are
/// adjacent in every pass.
inline constexpr int kMaxPieces = 32;

/// Finds the batch and the row of blocks of a stored position. The whole warp searches together, 32
/// entries at a time.
struct WarpSearch {
  const Walk& walk;
  int lane;

  /// The batch that holds a position; if none does, the position to continue with.
  __device__ Walk::Owner owner(int first, int last, int position) const {
    unsigned next = static_cast<unsigned>(walk.lists.stored);
    for (int b = first; b < last; b += 32) {
      int begin = 0, end = 0;
      if (b + lane < last) {
        const std::int64_t own = walk.offsets_of(b + lane);
        begin = walk.begin(own);
        end = walk.end(own);
      }
      const unsigned found = __ballot_sync(kAllLanes, begin <= position && position < end);
      if (found) return {b + __ffs(static_cast<int>(found)) - 1, position};
      if (begin > position && begin < end) next = min(next, static_cast<unsigned>(begin));
    }
    return {-1, static_cast<int>(__reduce_min_sync(kAllLanes, next))};
  }

  /// The last row of blocks that begins at or before a position.
  __device__ int row_of(int batch, int position) const {
    const std::int64_t own = walk.offsets_of(batch);
    planning::sddmm::RowSearch rows{0, static_cast<int>(walk.lists.block_rows)};
    while (rows.open()) {
      const int probe = rows.probe(lane);
      const bool before = probe < rows.high && walk.begins_by(own, probe, position);
      rows.narrow(__popc(__ballot_sync(kAllLanes, before)));
    }
    return rows.low;
  }
};

/// Calls `emit(pass, begin)` for every pass of this CTA, see planning::sddmm. The whole warp calls.
template <int kRows, class Emit>
__device__ __forceinline__ void for_each_pass(const Walk& walk, int jobs, int cluster, int lane,
                                              const Emit& emit) {
  planning::sddmm::for_each_pass<kRows>(walk, jobs, cluster, blockIdx.x, gridDim.x, lane,
                                        WarpSearch{walk, lane}, emit);
}

}  // namespace tessera::cuda::sm90::sddmm
