#pragma once

#include <cstdint>

namespace tessera::cuda {

/// Which element of a warpgroup's 64 x N tile a thread's accumulator i holds. The layout is the
/// same for wgmma and mma.sync (16 rows x 8 columns per warp).
struct Fragment {
  int warp, lane;
  __device__ explicit Fragment(int thread_in_warpgroup)
      : warp(thread_in_warpgroup / 32), lane(thread_in_warpgroup % 32) {}
  /// Row of accumulator i; `half` is i / 2 % 2, the upper or lower eight of the warp's 16 rows.
  __device__ int row(int half) const { return warp * 16 + half * 8 + lane / 4; }
  /// First column in group `group` of eight columns, i / 4; a thread holds two adjacent ones.
  __device__ int col(int group) const { return group * 8 + lane % 4 * 2; }
};

/// Loads the A operand of an MMA into registers (ldmatrix): 16 rows x 32 bytes. Lane l gives the
/// shared address of 16 bytes of row l % 16: the first 16, or the second 16 from lane 16 on.
__device__ __forceinline__ void load_left_operand(std::uint32_t address, std::uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

/// The same, with each 8 x 8 part transposed: the B operands of two MMAs, from rows along the depth
/// (16) that hold 16 columns. Lane l gives the address of 16 bytes of row l % 16.
__device__ __forceinline__ void load_transposed(std::uint32_t address, std::uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

/// The reverse (stmatrix): stores the words that load_left_operand loads.
__device__ __forceinline__ void store_left_operand(std::uint32_t address,
                                                   const std::uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace tessera::cuda
