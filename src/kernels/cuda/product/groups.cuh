#pragma once

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/groups.hpp"

namespace tessera::cuda::product {

/// Finds tiles of grouped rows or columns by their numbers, which count the tiles of all groups and
/// must not decrease from call to call. All lanes of a warp call the functions together, each of
/// which reads one of 32 groups at a time. `tiles_of(begin, end)`: the number of tiles of a group.
class GroupSearch {
 public:
  /// Where a search goes on: the first of the 32 groups; tiles and end offset of the groups before
  /// it.
  struct Place {
    int first = 0, tiles_before = 0, floor = 0;
  };

  __device__ void go_on(const Place& place) {
    first_ = place.first;
    tiles_before_ = place.tiles_before;
    floor_ = place.floor;
  }
  __device__ Place place() const { return {first_, tiles_before_, floor_}; }

  /// Each lane reads one of 32 groups from first_ on: where it begins and ends, and the number of
  /// tiles of these groups up to and including it.
  template <class TilesOf>
  __device__ void read(const planning::GroupView& groups, const TilesOf& tiles_of) {
    const int lane = threadIdx.x % 32, group = first_ + lane;
    if (first_ == 0) floor_ = groups.offset(0);
    end_ = group < groups.groups ? groups.offset(group + 1) : floor_;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {  // prefix maximum of the offsets
      const int other = __shfl_up_sync(kAllLanes, end_, d);
      if (lane >= d && other > end_) end_ = other;
    }
    if (end_ < floor_) end_ = floor_;
    begin_ = __shfl_up_sync(kAllLanes, end_, 1);
    if (lane == 0) begin_ = floor_;
    sum_ = sum_through(lane, tiles_of(begin_, end_));
  }

  /// Finds tile `index`: calls visit(group, begin, end, within) with its group, the rows (or
  /// columns) of the group, and the index of the tile in it. False if there is none. `read` has
  /// been called.
  template <class TilesOf, class Visit>
  __device__ bool find(const planning::GroupView& groups, const TilesOf& tiles_of, int index,
                       const Visit& visit) {
    while (true) {
      const unsigned after = __ballot_sync(kAllLanes, tiles_before_ + sum_ > index);
      if (after != 0) {
        const int lane = __ffs(static_cast<int>(after)) - 1;
        const int begin = __shfl_sync(kAllLanes, begin_, lane),
                  end = __shfl_sync(kAllLanes, end_, lane);
        const int before = __shfl_sync(kAllLanes, sum_, lane > 0 ? lane - 1 : 0);
        const int within = index - tiles_before_ - (lane > 0 ? before : 0);
        visit(first_ + lane, begin, end, within);
        return true;
      }
      tiles_before_ += __shfl_sync(kAllLanes, sum_, 31);
      floor_ = __shfl_sync(kAllLanes, end_, 31);
      first_ += 32;
      if (first_ >= groups.groups) return false;
      read(groups, tiles_of);
    }
  }

 private:
  int first_ = 0, tiles_before_ = 0, floor_ = 0;  // see Place
  int begin_ = 0, end_ = 0, sum_ = 0;             // this lane's group; prefix sum of tiles
};

}  // namespace tessera::cuda::product
