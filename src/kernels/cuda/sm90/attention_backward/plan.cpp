#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/refuse.hpp"
#include "src/kernels/cuda/attention_backward/order.hpp"
#include "src/kernels/cuda/sm90/attention_backward/rows.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

// Estimates until they are measured: a step per SM by the FLOPs of its MMAs at the rate of large
// problems, and the time of the kernels before and after by their bytes.
constexpr double kTflopsOfOneSm = 4.5, kTileSeconds = 6e-6;
// The last additions to dQ take this much longer than the rest of a tile. Two kernels take the
// launch of another one, but without shares need not convert any sums.
constexpr double kDqSeconds = 2e-6, kLaunchSeconds = 1.5e-6, kLaunchSecondsOfShares = 3e-6;
// Of kTflopsOfOneSm: steps of two blocks of queries, without a block mask and with one; two kernels
// (seven products instead of five); lists whose sums of dQ have an order; lists of 64 rows each
// (not measured). H200, sustained TFLOPS:
// D64 S 16384 461, with steps of one block 418; lists of 128 x 128, density .125, S 32768: D64 204
// and 299; D128 in two kernels 447, in one in order 370; D256 S 16384 416.
constexpr double kRateOfTallSteps = 1.2, kRateOfTallLists = 0.7, kRateOfTwoKernels = 0.75,
                 kRateOfOrderedLists = 0.63, kRateOfOwnLists = 0.65;
// Key tiles without a mask begin at blocks of their own where they would otherwise wait for more
// than this share of their time. On an H200 that gains 45% at 100% (S2048 H8 D64), 12 to 15% at 26%
// (H4 S8192), 4 to 8% at 13%, 2% at 6% and -1 to 1% at 3%. The second sums may take so many bytes.
constexpr double kWaits = 0.06, kSecondSums = 1 << 30;
// Steps by which a key tile follows the one before it.
constexpr double kLagSteps = 1.5;
// Of two kernels: the share of the main one, with four products of seven.
constexpr double kShareOfMain = 4.0 / 7.0;

double rate_of(const AttentionBackwardShape& s, const Tile& tile) {
  if (tile.row_groups > 1) return kRateOfOwnLists;
  if (tile.dq_queries > 0) return kRateOfTwoKernels;
  const double in_order = s.masked && !s.any_order ? kRateOfOrderedLists : 1;
  if (blocks_of_step(tile) == 1) return in_order;
  return (s.masked ? kRateOfTallLists : kRateOfTallSteps) * in_order;
}

/// Seconds of one SM for the steps of all tiles.
double step_seconds(const AttentionBackwardShape& s, const Tile& tile, const Work& work,
                    const DeviceFacts& device) {
  return work.flops * padding_of(s, tile) / (rate_of(s, tile) * kTflopsOfOneSm * 1e12) *
         step_factor(device);
}

/// Of a kernel: seconds of one SM for the steps of all tiles, its tiles, and how much longer the
/// longest one is.
struct KernelWork {
  double steps, tiles, imbalance;

  double longest() const { return steps * imbalance / std::max(tiles, 1.0) + kTileSeconds; }
  double seconds(double sms) const {
    const double mean = steps / std::max(std::min(sms, tiles), 1.0);
    return std::max(mean + std::max(tiles / sms, 1.0) * kTileSeconds, longest());
  }
};

/// Seconds of two kernels that run at the same time where SMs are left.
double seconds_of_both(const KernelWork& main, const KernelWork& dq, double sms) {
  const double of_main = main.seconds(sms), of_dq = dq.seconds(sms);
  if (main.imbalance > 1) {  // SMs become free one after the other
    const double all = main.steps + dq.steps + (main.tiles + dq.tiles) * kTileSeconds;
    return std::max({of_main, of_dq, all / sms});
  }
  const double turns = std::max(std::floor(of_main / dq.longest()), 1.0);
  const double beside = std::max(sms - main.tiles, 0.0) * turns;
  const double rounds = std::ceil(std::max(dq.tiles - beside, 0.0) / sms);
  return std::max(of_main + rounds * dq.longest(), of_dq);
}

/// The share of the time for which key tiles of a head wait if they follow each other one step
/// apart.
double waits_of(const AttentionBackwardShape& s, const Tile& tile, const BackwardLayout& at,
                double concurrent_tiles) {
  const double steps = real(at.query_blocks) / real(s.batch) / blocks_of_step(tile) *
                       (real(s.heads) / real(s.kv_heads));
  const double rounds = std::max(real(at.tiles) / concurrent_tiles, 1.0);
  return real(at.tiles) / real(s.batch * s.kv_heads) / (steps * rounds);
}

/// The tiles of the kernel that computes dQ alone: they are neither split nor ordered, as the row
/// states no times.
AttentionLayout dq_layout(const AttentionBackwardShape& s, const Tile& tile,
                          const DeviceFacts& device) {
  return attention_layout(
      s, {.name = "", .tile = dq_tile(tile), .dtypes = 0, .why = "", .measured = ""}, device.units);
}

struct AttentionBackward {
  using Shape = AttentionBackwardShape;
  using Layout = BackwardLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    refuse_heads(s, row.tile, reasons);
    if (s.transforms_scores && !supports_softcap(row.tile))
      reasons.unsupported("a softcap, or a scale of 0 or less");
    if (!s.masked && row.tile.row_groups > 1) reasons.required("a block mask");
  }

  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts& device,
                       Reasons& reasons) {
    const bool apart = row.tile.dq_queries > 0;
    const double parts = key_parts(row.tile);
    const Work work = work_of(AnyShape(s));
    const double steps = step_seconds(s, row.tile, work, device);
    AttentionLayout dq;
    if (apart) dq = dq_layout(s, row.tile, device);
    // The kernel of dQ runs beside the main one if both have an SM for each tile.
    const double beside = real(device.units - dq.tiles), all = real(key_tiles_of(s)) * parts;
    const double sms = all <= beside ? beside : real(device.units);
    const TileCosts costs{sms / parts, steps * (apart ? kShareOfMain : 1) / parts, kTileSeconds};
    const double block_flops =
        2.0 * kQueriesPerBlock * row.tile.n * (3.0 * row.tile.k + 2.0 * row.tile.v);
    const TileOrder order{costs.concurrent_tiles, kLagSteps * blocks_of_step(row.tile), true,
                          kTileSeconds * kTflopsOfOneSm * 1e12 / block_flops,
                          real(device.l2_bytes)};
    const ChosenShares chosen = best_shares(s, costs, order, !apart && !s.any_order);
    Layout at = backward_layout(s, apart ? 0 : dq_parts(row.tile), chosen.shares, order);
    at.waits = chosen.waits;
    at.blocks = std::min<std::int64_t>(at.tiles * key_parts(row.tile), device.units);
    at.rotates = may_rotate(s, at) && waits_of(s, row.tile, at, costs.concurrent_tiles) > kWaits &&
                 sums_bytes(s, at, row.tile) <= kSecondSums;
    refuse_backward_layout(s, at, reasons);
    if (!apart) return at;
    at.dq = dq;
    refuse_attention_layout(s, row, at.dq, reasons);
    return at;
  }

  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    const Tile& tile = row.tile;
    const Work work = work_of(AnyShape(s));
    const double steps = step_seconds(s, tile, work, device) * at.slowdown;
    const double longest = longest_tile(s);
    const double blocks = real(at.tiles) * key_parts(tile);
    const double sms = std::max(real(device.units), 1.0);
    const double compute =
        tile.dq_queries > 0
            ? seconds_of_both({kShareOfMain * steps, blocks, longest},
                              {(1 - kShareOfMain) * steps, real(at.dq.tiles), longest}, sms) +
                  (at.tile_shares.count() > 1 ? kLaunchSecondsOfShares : kLaunchSeconds)
            : KernelWork{steps, blocks, longest}.seconds(sms) + kDqSeconds + at.waits;
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
