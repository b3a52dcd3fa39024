#pragma once

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm80/attention/plan.hpp"

// How attention backward rows for every tensor-core GPU divide a problem among warps, shared memory
// and SMs. Key tiles, turns and scratch are planned as on all architectures.
namespace tessera::planning {

/// How the warps of a thread block share the products of a step: a grid of warps each, of which
/// each warp has adjacent rows and as many columns as the others.
struct WarpGrid {
  int row_warps, column_warps, rows, columns;  // warps; rows and columns of a warp

  constexpr int accumulators() const { return rows * columns / 32; }
  TESSERA_HD constexpr int first_row(int warp) const { return warp / column_warps * rows; }
  TESSERA_HD constexpr int first_column(int warp) const { return warp % column_warps * columns; }
  // Where the warps of a row take turns in blocks of 16 columns: of a warp's first block, and of
  // its group `group` of eight columns.
  TESSERA_HD constexpr int first_of_turns(int warp) const { return warp % column_warps * 16; }
  TESSERA_HD constexpr int column_in_turns(int warp, int group) const {
    return first_of_turns(warp) + group / 2 * column_warps * 16 + group % 2 * 8;
  }
};

constexpr int backward_warps(const Tile& tile) { return tile.warpgroups * 4; }

/// Scores, P and dS: queries x keys.
constexpr WarpGrid score_grid(const Tile& tile) {
  const int across = std::min(backward_warps(tile) / 2, tile.n / 16);
  const int down = backward_warps(tile) / across;
  return {down, across, tile.m / down, tile.n / across};
}
/// dV by the first half of the warps, dK by the other: keys x head dimension.
constexpr WarpGrid gradient_grid(const Tile& tile, int dim) {
  const int warps = backward_warps(tile) / 2;
  const int down = warps == 4 && tile.n >= 64 ? 2 : 1, across = warps / down;
  return {down, across, tile.n / down, dim / across};
}
/// dQ: queries x head dimension.
constexpr WarpGrid dq_grid(const Tile& tile) {
  const int warps = backward_warps(tile);
  const int across = warps == 8 && tile.k % 64 == 0 ? 4 : 2, down = warps / across;
  return {down, across, tile.m / down, tile.k / across};
}

/// V stays in registers, so that P and dS take its place in shared memory: else not even 32 keys of
/// 256 columns would fit in 99 KiB.
constexpr bool values_in_registers(const Tile& tile) { return tile.n == 32 && tile.v > 192; }

/// Steps whose descriptors are in shared memory.
inline constexpr int kBackwardSteps = 32;

/// Shared memory of a thread block: K, V, stages of Q and dO, P and dS in 16 bits; statistics; work
/// descriptors.
constexpr int backward_shared_bytes(const Tile& tile) {
  const int scores = values_in_registers(tile) ? 0 : 2 * tile.m * tile.n;
  const int stage = tile.m * (tile.k + tile.v);
  const int other = tile.stages * 2 * tile.m * 4 + kBackwardSteps * 40 + 384;
  return 2 * (tile.n * (tile.k + tile.v) + tile.stages * stage + scores) + other;
}

/// Accumulators of a thread: dV or dK, and at a time scores and dP, or dQ.
constexpr int backward_accumulators(const Tile& tile) {
  const int gradients = gradient_grid(tile, std::max(tile.k, tile.v)).accumulators();
  const int values = values_in_registers(tile) ? score_grid(tile).columns * tile.v / 64 : 0;
  return gradients + values +
         std::max(2 * score_grid(tile).accumulators(), dq_grid(tile).accumulators());
}

/// Thread blocks per SM for which a kernel row is compiled: as many as registers allow, with some
/// 40 per thread besides the accumulators, and as Hopper's shared memory allows.
constexpr int backward_ctas_compiled(const Tile& tile) {
  constexpr int kRegisters = 65536, kOther = 40, kMaxOfThread = 255, kBytes = 228 * 1024;
  const int wanted = std::min(backward_accumulators(tile) + kOther, kMaxOfThread);
  const int of_block = backward_warps(tile) * 32 * ((wanted + 7) / 8 * 8);
  const int by_bytes = kBytes / (backward_shared_bytes(tile) + kReservedBytes);
  return std::max(std::min(kRegisters / of_block, by_bytes), 1);
}

/// Thread blocks that an SM of a device holds at a time.
std::int64_t backward_ctas_per_sm(const Tile& tile, const DeviceFacts& device);

KernelFamily sm80_attention_backward_family();

}  // namespace tessera::planning
