#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"

#include <algorithm>
#include <string>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/kernels/cuda/sm90/attention_backward/rows.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

// Estimates until they are measured: a step per SM by the FLOPs of its MMAs at the rate of large
// problems, and the time of the kernels before and after by their bytes.
constexpr double kTflopsOfOneSm = 4.5, kTileSeconds = 6e-6;
// Of kTflopsOfOneSm: thread blocks with half a key tile; steps of two blocks of queries, without a
// block mask and with one, where fewer steps leave more waits for turns (H200: D64, S 16384, 418 ->
// 461 TFLOPS, causal 402 -> 433, lists of 128 x 128 at S 32768 299 -> 204).
constexpr double kRateOfHalfTiles = 0.6, kRateOfTallSteps = 1.2, kRateOfTallLists = 0.7;

/// Seconds of one SM for the steps of all tiles.
double step_seconds(const AttentionBackwardShape& s, const Tile& tile, const Work& work,
                    const DeviceFacts& device) {
  // Where thread blocks have half a key tile, both consumers compute the scores, and a step moves
  // twice as many bytes per FLOP.
  const double products = key_parts(tile) > 1 ? 6.0 / 5.0 / kRateOfHalfTiles
                          : blocks_of_step(tile) > 1
                              ? 1 / (s.masked ? kRateOfTallLists : kRateOfTallSteps)
                              : 1;
  return work.flops * products * padding_of(s, tile) / (kTflopsOfOneSm * 1e12) *
         step_factor(device);
}

struct AttentionBackward {
  using Shape = AttentionBackwardShape;
  using Layout = BackwardLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    refuse_heads(s, row.tile, reasons);
    // Scores of two blocks of queries leave no registers for the derivative of a softcap.
    if (s.transforms_scores && blocks_of_step(row.tile) > 1)
      reasons.unsupported("a softcap, or a scale of 0 or less");
  }

  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const double parts = key_parts(row.tile);
    const TileCosts costs{real(device.units) / parts,
                          step_seconds(s, row.tile, work_of(AnyShape(s)), device) / parts,
                          kTileSeconds};
    Layout at = backward_layout(s, dq_parts(row.tile), best_shares(s, costs));
    at.blocks = std::min<std::int64_t>(at.tiles * key_parts(row.tile), device.units);
    refuse_backward_layout(s, at, reasons);
    return at;
  }

  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    const Tile& tile = row.tile;
    const Work work = work_of(AnyShape(s));
    const double blocks = real(at.tiles) * key_parts(tile);
    const double units = std::max(std::min(real(device.units), blocks), 1.0);
    const double rounds = blocks / std::max(real(device.units), 1.0);
    const double compute =
        step_seconds(s, tile, work, device) / units + std::max(rounds, 1.0) * kTileSeconds;
    return std::max(compute, memory_seconds(s, at, tile, work.bytes, device)) + seconds_around(at);
  }

  static BufferSizes buffers(const Shape& s, const Layout& at, const KernelRow& row, int) {
    core::Carver carver;
    carve_backward(carver, s, at, row.tile);
    return {carver.used(), 0};
  }

  static std::string describe(const Shape&, const Layout& at) { return describe_backward(at); }
};

}  // namespace

KernelFamily sm90_attention_backward_family() {
  return make_family<AttentionBackward>("sm90_attention_backward", Backend::sm90,
                                        Op::attention_backward, kSm90AttentionBackwardRows);
}

}  // namespace tessera::planning
