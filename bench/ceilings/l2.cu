// L2 to shared memory: every SM fills a ring of stages by bulk copies from memory that stays in L2;
// the data is not read.
#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "bench/ceilings/random.hpp"
#include "bench/ceilings/steps.hpp"
#include "bench/ceilings/timing.hpp"
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

void measure(const Card& card, double, Figures& figures) {
  const Memory data(kFootprint);
  fill_with_normals<__nv_bfloat16>(data.as<void>(), kFootprint);
  check(
      cudaFuncSetAttribute(l2_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
      "cudaFuncSetAttribute(l2_kernel)");
  const auto blocks = static_cast<unsigned>(card.units);
  const Work work{double{kChunkBytes} * blocks, [&](cudaStream_t stream, int repeats) {
                    l2_kernel<<<blocks, 32, sizeof(Shared), stream>>>(
                        data.as<const unsigned char>(), repeats);
                    check(cudaGetLastError(), "l2_kernel");
                  }};
  figures.emplace_back("l2_to_shared_tbs", burst(work).per_second * 1e-12);
}

}  // namespace

std::vector<Step> l2_steps() { return {{"l2", "l2_to_shared", true, measure}}; }

}  // namespace tessera::ceilings
