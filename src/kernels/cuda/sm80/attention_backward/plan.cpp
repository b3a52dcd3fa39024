#include "src/kernels/cuda/sm80/attention_backward/plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/kernels/cuda/attention_backward/order.hpp"
#include "src/kernels/cuda/sm80/attention_backward/rows.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

/// The fraction of the limits below that a kernel row is taken to reach: not measured.
/// FlashAttention-2, whose main loop is similar, reaches .45 to .48 of mma.sync's rate on an H100.
constexpr double kEstimatedShare = 0.55;
/// Seconds of a thread block besides its steps, where `ctas` share an SM. Most of them are
/// latencies, of which several thread blocks hide some. On an H200 8 heads of 64 queries with D192
/// take 1.6 us longer than by Hopper's rows, 300 queries 11 us.
double estimated_tile_seconds(double ctas) { return 7e-6 * (1 + ctas); }

/// Steps by which a thread block follows the one before it: a turn is passed on in the next step,
/// and steps take different times.
constexpr double kLagSteps = 3;

double step_flops(const Tile& tile) {
  return 2.0 * tile.m * tile.n * (3.0 * tile.k + 2.0 * tile.v);
}

/// Bytes per step between shared memory and the registers and copies of a thread block.
double shared_traffic(const Tile& tile) {
  const auto of = [](const WarpGrid& grid, double depth) {
    return 2.0 * grid.row_warps * grid.column_warps * (grid.rows + grid.columns) * depth;
  };
  const double scores = 2.0 * tile.m * tile.n, stage = 2.0 * tile.m * (tile.k + tile.v);
  return of(score_grid(tile), tile.k + tile.v) + of(gradient_grid(tile, tile.k), tile.m) +
         of(gradient_grid(tile, tile.v), tile.m) + of(dq_grid(tile), tile.n) + 2 * scores + stage;
}

/// Estimated seconds of one step of a thread block on a device, on an SM with `ctas` of them.
double step_seconds(const Tile& tile, double ctas, const DeviceFacts& device) {
  const double multiplying = step_flops(tile) / std::max(mma_flops_per_sm(device), 1.0);
  constexpr double kSharedBytesPerClock = 128;
  const double clocks = std::max(device.clock_ghz, 0.1) * 1e9;
  const double moving = shared_traffic(tile) / (kSharedBytesPerClock * clocks);
  // Two warps per scheduler or more hide the barriers of a step, those of several thread blocks
  // better: on an H200, D64, eight warps of one reach .87 of three with four each.
  const double alone =
      std::sqrt(std::min(ctas * backward_warps(tile) / 8, 1.0)) * (ctas > 1 ? 1 : 0.87);
  // D128, two thread blocks of one stage: .87 of the speed of one with two, where D64's reach 1.15.
  const double waiting = tile.stages > 1 ? 1 : 1.25;
  return ctas * std::max(multiplying, moving) * waiting / (kEstimatedShare * alone);
}

double steps_of(const AttentionBackwardShape& s, const Tile& tile, const Work& work) {
  return work.flops * padding_of(s, tile) / step_flops(tile);
}

struct AttentionBackward {
  using Shape = AttentionBackwardShape;
  using Layout = BackwardLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                     Reasons& reasons) {
    refuse_heads(s, row.tile, reasons);
    reasons.unless_at_most("bytes of shared memory", backward_shared_bytes(row.tile),
                           device.shared_bytes_per_block);
  }

  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    TileCosts costs;
    TileOrder order;
    if (device.units > 0) {
      const double parts = key_parts(row.tile);
      const double step = step_seconds(row.tile, 1, device);
      order = {real(device.units * backward_ctas_per_sm(row.tile, device)) / parts,
               kLagSteps * parts, false, estimated_tile_seconds(1) / step, real(device.l2_bytes)};
      costs = {real(device.units) / parts,
               steps_of(s, row.tile, work_of(AnyShape(s))) * step / parts,
               estimated_tile_seconds(1)};
    }
    Layout at = backward_layout(s, 1, best_shares(s, costs, order, !s.any_order).shares, order);
    at.blocks = at.tiles * key_parts(row.tile);
    refuse_backward_layout(s, at, reasons);
    return at;
  }

  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    if (at.tiles == 0 || device.units == 0) return seconds_around(at);
    const Tile& tile = row.tile;
    const Work work = work_of(AnyShape(s));
    const double blocks = real(at.tiles) * key_parts(tile);
    const double ctas =
        std::clamp(std::ceil(blocks / device.units), 1.0, real(backward_ctas_per_sm(tile, device)));
    const double concurrent_blocks = std::min(real(device.units) * ctas, blocks);
    const double steps = steps_of(s, tile, work);
    const double step = step_seconds(tile, ctas, device) * at.slowdown;
    // Thread blocks of one head add to the same sums one after the other, a step apart, unless
    // sections take turns.
    const double blocks_per_head = concurrent_blocks / real(std::max<std::int64_t>(at.section, 1));
    const double waits = at.turns > 0 && !at.alternates ? std::max(blocks_per_head, 1.0) - 1 : 0;
    const double all_resident = real(device.units * backward_ctas_per_sm(tile, device));
    const double longest = longest_tile(s) / std::max(blocks / all_resident, 1.0);
    const double compute = (steps / concurrent_blocks * std::max(longest, 1.0) + waits) * step +
                           std::max(blocks / concurrent_blocks, 1.0) * estimated_tile_seconds(ctas);
    return std::max(compute, memory_seconds(s, at, tile, work.bytes, device)) + seconds_around(at);
  }

  static BufferSizes buffers(const Shape& s, const Layout& at, const KernelRow& row, int) {
    core::Carver carver;
    carve_backward(carver, s, at, row.tile);
    return {carver.used(), 0};
  }

  static std::string describe(const Shape&, const Layout& at) {
    return "; the time is estimated, not fitted to measurements" + describe_backward(at);
  }
};

}  // namespace

std::int64_t backward_ctas_per_sm(const Tile& tile, const DeviceFacts& device) {
  return ctas_by_shared_bytes(backward_shared_bytes(tile), backward_ctas_compiled(tile), device);
}

KernelFamily sm80_attention_backward_family() {
  return make_family<AttentionBackward>("sm80_attention_backward", Backend::sm80,
                                        Op::attention_backward, kSm80AttentionBackwardRows);
}

}  // namespace tessera::planning
