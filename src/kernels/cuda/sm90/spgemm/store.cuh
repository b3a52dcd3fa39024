#pragma once

#include <cuda.h>

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// Stores a consumer's sums in blocks of the result. If TMA can write them, panels of 64 x 64 go
// through shared memory, and the consumer continues to multiply while TMA stores.
namespace tessera::cuda::sm90::spgemm {

namespace ptx = ::cuda::ptx;

inline constexpr int kWarpgroup = 128;

/// Named barriers, one per consumer; 0 is __syncthreads.
enum NamedBarrier : int { kConsumer0Barrier = 1, kConsumer1Barrier };

inline constexpr int kPanels = 2;  // panels per consumer

struct StoreBuffers {
  alignas(tile::kAtomBytes) std::uint16_t panel[kPanels][tile::kLine * tile::kLine];
};

struct Result {
  CUtensorMap map;      // of 64 x 64 panels
  bool mapped = false;  // TMA stores: 16-bit values, beta 0, suitable strides
  void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t block = 0, row = 0, col = 0;  // strides in elements
  float alpha = 1, beta = 0;

  template <class Out>
  __device__ void store_as(std::int64_t element, float sum) const {
    Out& to = static_cast<Out*>(data)[element];
    float value = alpha * sum;
    if (beta != 0.0f) value += beta * to_float(to);
    to = from_float<Out>(value);
  }
  __device__ void store(std::int64_t element, float sum) const {
    if (dtype == DType::f32) {
      store_as<float>(element, sum);
    } else if (dtype == DType::bf16) {
      store_as<__nv_bfloat16>(element, sum);
    } else {
      store_as<__half>(element, sum);
    }
  }
};

__device__ __forceinline__ void sync_consumer(int consumer) {
  // Constants, because with a register operand the kernel would reserve all named barriers.
  if (consumer == 0) {
    asm volatile("bar.sync %0, %1;" ::"n"(int{kConsumer0Barrier}), "n"(kWarpgroup) : "memory");
  } else {
    asm volatile("bar.sync %0, %1;" ::"n"(int{kConsumer1Barrier}), "n"(kWarpgroup) : "memory");
  }
}

__device__ __forceinline__ void store_matrices(void* to, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   tile::shared_address(to)),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/// Rounds 64 x 64 sums into a panel in the layout that TMA reads: lines of 128 bytes, swizzled.
__device__ __forceinline__ void fill_panel(const Result& result, const float (&sum)[32],
                                           std::uint16_t* panel, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  // Lane l gives the address of line l % 8 of matrix l / 8; matrices are ordered by rows first,
  // then columns.
  const int line = warp * 16 + lane % 16, right = lane / 16;
#pragma unroll
  for (int group = 0; group < 8; group += 2) {
    std::uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = group * 4 + i * 2;
      v[i] = pack(result.dtype, result.alpha * sum[at], result.alpha * sum[at + 1]);
    }
    const int chunk = (group + right) ^ (line % 8);
    store_matrices(panel + line * tile::kLine + chunk * 8, v);
  }
}

/// Makes all threads' writes to panels visible to TMA.
__device__ __forceinline__ void sync_panels(int consumer) {
  ptx::fence_proxy_async(ptx::space_shared);
  sync_consumer(consumer);
}

/// Starts the TMA store of a panel at (row, col) of a block of the result.
__device__ __forceinline__ void store_panel(const CUtensorMap& map, const std::uint16_t* panel,
                                            int block, int row, int col) {
  const std::int32_t at[] = {col, row, block};
  ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, at, panel);
  ptx::cp_async_bulk_commit_group();
}

/// Waits until TMA has read the panels that this thread stores.
__device__ __forceinline__ void wait_for_buffers() {
  ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
}

/// Stores any result, one element at a time; not unrolled, to keep the code small. Overwrites
/// `sum`.
__device__ __forceinline__ void store_elements(const Result& result, float (&sum)[32], int block,
                                               int row, int col, int thread) {
  const Fragment fragment(thread);
  std::int64_t out = block * result.block + (row + fragment.row(0)) * result.row +
                     (col + fragment.col(0)) * result.col;
#pragma unroll 1
  for (int group = 0; group < 8; ++group, out += 8 * result.col) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      result.store(out + i / 2 * 8 * result.row + i % 2 * result.col, sum[i]);
#pragma unroll
    for (int i = 0; i + 4 < 32; ++i) sum[i] = sum[i + 4];
  }
}

}  // namespace tessera::cuda::sm90::spgemm
