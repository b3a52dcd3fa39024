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

/// KV heads whose key tiles are handed out in turns. The sums of a block of queries are added in
/// the order of key tiles, so tiles of one head follow each other step by step: with more heads in
/// turns, fewer tiles of one head start together. With fewer, more thread blocks share a head's Q
/// and dO in L2.
constexpr std::int64_t kSection = 16;

// Estimates until they are measured: a step per SM by the FLOPs of its MMAs at the rate of large
// problems, and the time of the kernels before and after by their bytes.
constexpr double kTflopsOfOneSm = 4.5, kTileSeconds = 6e-6, kOtherLaunches = 6e-6;
constexpr double kRateOfHalfTiles = 0.6;  // of kTflopsOfOneSm
constexpr double kEdgeSeconds = 10e-6, kEdgeBytes = 1e12;

}  // namespace

BackwardLayout backward_layout(const AttentionBackwardShape& s, const Tile& tile) {
  BackwardLayout layout;
  if (s.heads == 0 || s.kv_heads == 0 || s.batch == 0) return layout;
  const bool packed = s.kv_layout == KvLayout::packed;
  const RowBlocks queries = RowBlocks::of(tile.m, s.q_packed, s.q_length);
  const RowBlocks keys = RowBlocks::of(kKeysPerTile, packed, s.kv_length);
  layout.query_blocks = queries.bound(s.batch, s.q_total);
  layout.tiles = s.kv_total > 0 ? keys.bound(s.batch, s.kv_total) * s.kv_heads : 0;
  layout.section = packed ? s.kv_heads : std::min(kSection, s.batch * s.kv_heads);
  layout.copies_dout = !s.dout_readable;
  if (s.q_total > 0 && s.kv_total > 0) layout.edges = edge_sizes(s);
  return layout;
}

BackwardWalk backward_walk(const AttentionProblem& problem, const AttentionShape& shape,
                           const BackwardLayout& layout, const BlockEdges& edges) {
  BackwardWalk walk;
  walk.sequences = sequences_of(problem, shape);
  walk.queries = RowBlocks::of(kQueriesPerBlock, shape.q_packed, shape.q_length);
  walk.keys = RowBlocks::of(kKeysPerTile, shape.kv_layout == KvLayout::packed, shape.kv_length);
  walk.batches = static_cast<int>(shape.batch);
  walk.heads = static_cast<int>(shape.heads);
  walk.kv_heads = static_cast<int>(shape.kv_heads);
  walk.group = static_cast<int>(shape.heads / shape.kv_heads);
  walk.tiles = static_cast<int>(layout.tiles);
  walk.section = static_cast<int>(layout.section);
  walk.query_blocks = static_cast<int>(layout.query_blocks);
  walk.edges = edges;
  return walk;
}

BackwardScratch carve_backward(core::Carver& carver, const AttentionShape& s,
                               const BackwardLayout& layout, const Tile& tile) {
  using core::Size;
  BackwardScratch scratch;
  const Size blocks = Size(layout.query_blocks) * s.heads;
  scratch.lse = carver.add<float>(blocks * tile.m);
  scratch.delta = carver.add<float>(blocks * tile.m);
  scratch.dq = carver.add<float>(blocks * tile.m * tile.k);
  scratch.dq_parts = dq_parts(tile);
  scratch.turns = carver.add<std::int32_t>(blocks * scratch.dq_parts);
  scratch.ticket = carver.add<std::int32_t>(1);
  if (layout.copies_dout)
    scratch.dout = carver.add<char>(Size(s.q_total) * s.heads * s.dim_v * size_of(s.dtype));
  scratch.edges = carve_edges(carver, layout.edges);
  return scratch;
}

namespace {

struct AttentionBackward {
  using Shape = AttentionBackwardShape;
  using Layout = BackwardLayout;

  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    refuse_heads(s, row.tile, reasons);
  }

  static Layout layout(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    const Layout at = backward_layout(s, row.tile);
    reasons.unless_at_most("key tiles", at.tiles, INT32_MAX / 2);
    reasons.unless_at_most("blocks of queries of all heads", at.query_blocks * s.heads,
                           INT32_MAX / 4);
    if (!at.edges || refuse_composed(edge_bytes(at.edges), reasons)) return at;
    const ComposedMask& mask = at.edges.mask;
    reasons.unless_at_most("entries of composed lists", mask.list_rows() * mask.capacity,
                           INT32_MAX);
    return at;
  }

  static double seconds(const Shape& s, const Layout& at, const KernelRow& row,
                        const DeviceFacts& device) {
    const Tile& tile = row.tile;
    const Work work = work_of(AnyShape(s));
    // Padded head dimensions and blocks at edges are multiplied as well.
    const double width = real(3 * s.dim + 2 * s.dim_v);
    const double padded = real(3 * tile.k + 2 * tile.v) / std::max(width, 1.0);
    const double edges = (1 + 0.5 * tile.m / std::max(real(s.q_length), 1.0)) *
                         (1 + 0.5 * kKeysPerTile / std::max(real(s.kv_length), 1.0));
    const double blocks = real(at.tiles) * key_parts(tile);
    const double units = std::max(std::min(real(device.units), blocks), 1.0);
    // Where thread blocks have half a key tile, both consumers compute the scores, and a step moves
    // twice as many bytes per FLOP.
    const double products = key_parts(tile) > 1 ? 6.0 / 5.0 / kRateOfHalfTiles : 1;
    const double rounds = blocks / std::max(real(device.units), 1.0);
    const double compute = work.flops * products * padded * edges /
                               (units * kTflopsOfOneSm * 1e12) * step_factor(device) +
                           std::max(rounds, 1.0) * kTileSeconds;
    const double sums = real(at.query_blocks) * real(s.heads) * tile.m * tile.k * sizeof(float);
    const double memory =
        device.memory_tbs > 0 ? (work.bytes + 2 * sums) / (device.memory_tbs * 1e12) : 0;
    const double composing = at.edges ? kEdgeSeconds + edge_bytes(at.edges) / kEdgeBytes : 0;
    return std::max(compute, memory) + kOtherLaunches + composing;
  }

  static BufferSizes buffers(const Shape& s, const Layout& at, const KernelRow& row, int) {
    core::Carver carver;
    carve_backward(carver, s, at, row.tile);
    return {carver.used(), 0};
  }

  static std::string describe(const Shape&, const Layout& at) {
    std::string text = "; " + std::to_string(at.tiles) + " key tiles";
    if (at.copies_dout) text += ", dout copied to rows that TMA can read";
    if (at.edges)
      text += ", blocks composed into " + std::to_string(kQueriesPerBlock) + " x " +
              std::to_string(kComposedKeys);
    return text;
  }
};

}  // namespace

KernelFamily sm90_attention_backward_family() {
  return make_family<AttentionBackward>("sm90_attention_backward", Backend::sm90,
                                        Op::attention_backward, kSm90AttentionBackwardRows);
}

}  // namespace tessera::planning
