#pragma once

#include <cstdint>

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

/// Loads 16 rows x 32 bytes as an MMA takes its left operand from registers. Lane l gives the
/// shared address of 16 bytes: those of row l % 16, the first ones or, from lane 16 on, the second
/// ones.
__device__ __forceinline__ void load_left_operand(std::uint32_t address, std::uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

}  // namespace tessera::cuda
