// Rate of copies from L2 to shared memory: every SM fills a ring of stages with bulk copies from
// memory that stays in L2. The copies are never read.
#include <cstdint>

#include "bench/ceilings/kernel.hpp"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

namespace tessera::ceilings {
namespace {

namespace tile = cuda::tile;

constexpr int kChunkBytes = 16 * 1024;  // a box of 64 elements x 128 rows
constexpr int kStages = 12;
constexpr int kFootprint = 16 << 20;  // a third of Hopper's L2, which may hold a line twice
constexpr int kChunks = kFootprint / kChunkBytes;

struct Shared {
  alignas(128) unsigned char stages[kStages][kChunkBytes];
  std::uint64_t full[kStages];
};

/// Each CTA loads `count` chunks, starting at a different place and wrapping around. One thread
/// announces the bytes, copies, waits for the oldest stage and fills it again.
__global__ void __launch_bounds__(32, 1) l2_kernel(const unsigned char* data, int count) {
  extern __shared__ __align__(128) char raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw);
  if (!tile::elect()) return;
  for (std::uint64_t& full : shared.full) tile::ptx::mbarrier_init(&full, 1);
  tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);

  int chunk = static_cast<int>(blockIdx.x) * kChunks / static_cast<int>(gridDim.x);
  const auto fetch = [&](int stage) {
    tile::arrive_expecting(&shared.full[stage], kChunkBytes);
    tile::ptx::cp_async_bulk(tile::ptx::space_cluster, tile::ptx::space_global,
                             shared.stages[stage], data + chunk * kChunkBytes, kChunkBytes,
                             &shared.full[stage]);
    chunk = chunk + 1 == kChunks ? 0 : chunk + 1;
  };
  for (int i = 0; i < kStages && i < count; ++i) fetch(i);
  tile::RingCursor<kStages> cursor;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    tile::wait(&shared.full[cursor.stage], cursor.parity);
    if (i + kStages < count) fetch(cursor.stage);
    cursor.advance();
  }
}

cudaError_t launch(const void* data, void*, unsigned sms, int repeats, cudaStream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(l2_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (status != cudaSuccess) return status;
  l2_kernel<<<sms, 32, sizeof(Shared), stream>>>(static_cast<const unsigned char*>(data), repeats);
  return cudaGetLastError();
}

constexpr Kernel kKernels[] = {{"l2_to_shared", "bf16", kFootprint, 0, kChunkBytes, launch}, {}};

}  // namespace
}  // namespace tessera::ceilings

TESSERA_CEILINGS(l2) { return tessera::ceilings::kKernels; }
