#include "src/kernels/cuda/sm80/attention/plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/kernels/cuda/sm80/attention/rows.hpp"
#include "src/walk/arithmetic.hpp"

namespace tessera::planning {
namespace {

/// The fraction of the limits below that a kernel row is taken to reach: not measured.
/// FlashAttention-2, whose main loop is similar, reaches .53 to .56 of mma.sync's rate on an H100.
constexpr double kEstimatedShare = 0.6;
/// Seconds of a tile besides its steps, where `ctas` share an SM: not measured. Most of them are
/// latencies, of which several thread blocks hide some.
double estimated_tile_seconds(std::int64_t ctas) { return 2.5e-6 * real(1 + ctas); }

/// Bytes per step between shared memory and the registers and copies of a thread block.
double shared_traffic(const Tile& tile) {
  const double keys = 2.0 * tile.n * (tile.k + tile.v), queries = 2.0 * tile.m * tile.k;
  const int warp_blocks = attention_warp_rows(tile) / 16;
  const bool holds_q = attention_accumulators(tile) + warp_blocks * tile.k / 4 <= 192;
  return keys * (attention_warps(tile) + 1) + (holds_q ? 0 : queries);
}

/// The row with its estimated times on a full device, as the layout reads them.
KernelRow with_estimates(const KernelRow& row, const DeviceFacts& device) {
  const std::int64_t ctas = attention_ctas_per_sm(row.tile, device);
  KernelRow timed = row;
  timed.times = {.step_ns = estimated_step_seconds(row.tile, device, ctas) * 1e9,
                 .tile_ns = estimated_tile_seconds(ctas) * 1e9};
  return timed;
}

struct Attention {
  using Shape = AttentionShape;
  using Layout = AttentionLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                     Reasons& reasons) {
    refuse_pages(s, reasons);
    refuse_attention(s, row, reasons);
    const bool paged = s.kv_layout == KvLayout::paged;
    reasons.unless_at_most("bytes of shared memory", attention_shared_bytes(row.tile, paged),
                           device.shared_bytes_per_block);
  }

  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const Layout at = attention_layout(s, with_estimates(row, device),
                                       device.units * attention_ctas_per_sm(row.tile, device));
    refuse_attention_layout(s, row, at, reasons);
    return at;
  }

  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    const Work work = walked_work(s, at.composed);
    if (at.tiles == 0 || device.units == 0) return 0;
    // Keys that a tile walks: those that one query sees, and half a tile's where rows see others.
    const double queries = std::max(real(s.q_total) * real(s.heads), 1.0);
    double keys = work.flops / (2 * queries * std::max(real(s.dim + s.dim_v), 1.0));
    const double of_others = 0.5 * (row.tile.m + row.tile.n) / at.pack;
    if (s.window_right >= 0) keys += of_others;
    if (s.window_left >= 0) keys += of_others;
    // at.sms: thread blocks that run at a time, unless there are fewer tiles, which have an SM
    // each.
    const std::int64_t blocks = at.split_ctas > 0 ? at.sms : std::min(at.sms, at.tiles);
    const std::int64_t ctas = ceil_div(blocks, device.units);
    const double tile =
        std::ceil(keys / row.tile.n) * estimated_step_seconds(row.tile, device, ctas) +
        estimated_tile_seconds(ctas);
    // Tiles of different lengths fill the last round.
    const double rounds = real(at.tiles) / real(at.sms);
    const double filled = at.split_ctas > 0 ? real(at.whole) / real(at.sms) +
                                                  real(at.split_tiles()) / real(at.split_ctas)
                          : at.uneven && at.tiles_per_head > 1 ? std::max(rounds, 1.0)
                                                               : std::ceil(rounds);
    const double merging =
        at.split_ctas > 0 ? merge_seconds(row.tile, at.split_tiles(), at.split_ctas) : 0;
    const double memory = device.memory_tbs > 0 ? work.bytes / (device.memory_tbs * 1e12) : 0;
    return std::max(filled * tile, memory) + merging;
  }

  static BufferSizes buffers(const Shape&, const Layout& at, const KernelRow& row, int) {
    core::Carver carver;
    carve_attention_scratch(carver, row.tile, at);
    return {carver.used(), 0};
  }

  static std::string describe(const Shape&, const Layout& at) {
    return "; the time is estimated, not fitted to measurements" + describe_layout(at);
  }
};

}  // namespace

std::int64_t ctas_by_shared_bytes(int bytes, int compiled, const DeviceFacts& device) {
  // A thread block may use all of an SM's shared memory except for the reserved bytes.
  const std::int64_t of_sm = device.shared_bytes_per_block + kReservedBytes;
  return std::clamp<std::int64_t>(of_sm / (bytes + kReservedBytes), 1, compiled);
}

std::int64_t attention_ctas_per_sm(const Tile& tile, const DeviceFacts& device) {
  return ctas_by_shared_bytes(attention_shared_bytes(tile), attention_ctas_compiled(tile), device);
}

double estimated_step_seconds(const Tile& tile, const DeviceFacts& device, std::int64_t ctas) {
  const double flops = 2.0 * tile.m * tile.n * (tile.k + tile.v);
  const double multiplying = flops / std::max(mma_flops_per_sm(device), 1.0);
  constexpr double kSharedBytesPerClock = 128;
  const double clocks = std::max(device.clock_ghz, 0.1) * 1e9;
  const double moving = shared_traffic(tile) / (kSharedBytesPerClock * clocks);
  // With one warp per scheduler nothing runs beside its softmax, and one thread block waits at its
  // barriers as a whole: on an H200, D128, eight warps of one reach .94 of two with four each.
  const double alone =
      std::sqrt(std::min(real(ctas * attention_warps(tile)) / 8, 1.0)) * (ctas > 1 ? 1 : 0.94);
  // Two barriers per step where K and V have one stage.
  const double waiting = tile.stages > 1 ? 1 : 1.1;
  return real(ctas) * std::max(multiplying, moving) * waiting / (kEstimatedShare * alone);
}

KernelFamily sm80_attention_family() {
  KernelFamily family =
      make_family<Attention>("sm80_attention", Backend::sm80, Op::attention, kSm80AttentionRows);
  family.clears_rest = true;
  return family;
}

}  // namespace tessera::planning
