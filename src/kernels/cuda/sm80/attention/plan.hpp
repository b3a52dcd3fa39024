#pragma once

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/family.hpp"

// How attention rows for every tensor-core GPU divide a problem. Tiles, their order, KV splits and
// scratch are planned as for Hopper's rows.
namespace tessera::planning {

/// Warps per thread block, and query rows per warp.
constexpr int attention_warps(const Tile& tile) { return tile.warpgroups * 4; }
constexpr int attention_warp_rows(const Tile& tile) { return tile.m / attention_warps(tile); }

/// Shared memory for work descriptors, beside Q and the stages of K and V, and with pages for where
/// their keys are.
inline constexpr int kAttentionScheduleBytes = 1280, kPagedKeysBytes = 640;

/// Shared memory that the driver reserves per thread block.
inline constexpr int kReservedBytes = 1024;

/// Shared memory of a thread block: 16-bit elements.
constexpr int attention_shared_bytes(const Tile& tile, bool paged = false) {
  return 2 * (tile.m * tile.k + tile.stages * tile.n * (tile.k + tile.v)) +
         kAttentionScheduleBytes + (paged ? kPagedKeysBytes : 0);
}

/// Registers that a thread needs for accumulators: scores and O.
constexpr int attention_accumulators(const Tile& tile) {
  return attention_warp_rows(tile) / 16 * (tile.n + tile.v) / 2;
}

/// Thread blocks per SM for which a kernel row is compiled: as many as registers allow, with some
/// 40 per thread besides the accumulators, or 64 with one stage, and as Hopper's shared memory
/// allows.
constexpr int attention_ctas_compiled(const Tile& tile) {
  constexpr int kRegisters = 65536, kMaxOfThread = 255, kBytes = 228 * 1024;
  const int other = tile.stages > 1 ? 40 : 64;
  const int wanted = std::min(attention_accumulators(tile) + other, kMaxOfThread);
  const int of_block = attention_warps(tile) * 32 * ((wanted + 7) / 8 * 8);
  const int by_bytes = kBytes / (attention_shared_bytes(tile) + kReservedBytes);
  return std::max(std::min(kRegisters / of_block, by_bytes), 1);
}

/// Thread blocks that an SM of a device holds at a time: at most `compiled`, each of which has
/// `bytes` of shared memory.
std::int64_t ctas_by_shared_bytes(int bytes, int compiled, const DeviceFacts& device);
std::int64_t attention_ctas_per_sm(const Tile& tile, const DeviceFacts& device);

/// Estimated seconds of one step of each of `ctas` thread blocks of an SM.
double estimated_step_seconds(const Tile& tile, const DeviceFacts& device, std::int64_t ctas);

KernelFamily sm80_attention_family();

}  // namespace tessera::planning
