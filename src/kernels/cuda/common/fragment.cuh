#pragma once

namespace tessera::cuda {

/// Which element of a warpgroup's 64 x N tile a thread's accumulator i holds: the same for wgmma
/// as for mma.sync, of which a warp's 16 rows x 8 columns are one tile.
struct Fragment {
  int warp, lane;
  __device__ explicit Fragment(int thread_in_warpgroup)
      : warp(thread_in_warpgroup / 32), lane(thread_in_warpgroup % 32) {}
  /// i / 2 % 2 picks the upper or lower eight rows of the warp's sixteen.
  __device__ int row(int half) const { return warp * 16 + half * 8 + lane / 4; }
  /// Columns come in groups of eight; a thread holds two adjacent ones of each.
  __device__ int col(int group) const { return group * 8 + lane % 4 * 2; }
};

}  // namespace tessera::cuda
