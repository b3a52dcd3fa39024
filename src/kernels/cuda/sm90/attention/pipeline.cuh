#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/work.cuh"
#include "src/kernels/cuda/sm90/attention/policy.cuh"
#include "src/kernels/cuda/sm90/attention/shape.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

// The shared memory of a CTA: stages of K and V, work descriptors and barriers. The README's table
// of barriers says which warps arrive and which wait.
namespace tessera::cuda::sm90::attention {

/// The warps of the producer warpgroup.
enum class WarpRole { producer, scheduler, v_post_process, store };

/// Shared memory through which the consumers of other KV splits hand their partial results to those
/// of the first split, once per tile.
template <class Partial, int kCount>
struct SplitExchange {
  Partial partials[kCount];
  std::uint64_t full[kCount], empty[kCount];
};
template <class Partial>
struct SplitExchange<Partial, 0> {};

template <class Shape, class Policy>
struct Pipeline {
  static constexpr int kStages = Shape::kTile.stages;
  static_assert(kStages >= (Shape::kKvSplits > 1 ? 2 * Shape::kKvSplits : 2));
  using Keys = typename Shape::Keys;
  using Values = typename Shape::Values;
  // Partial results of all KV splits inside the CTA but the first.
  static constexpr int kSplitPartials = Shape::kConsumers - Shape::kSplitConsumers;
  static constexpr int kMaxBytes =
      kStages * (Keys::kBytes + Values::kBytes) + 2 * Shape::Queries::kBytes +
      kSplitPartials * static_cast<int>(sizeof(typename Shape::Partial));
  // The next tile's Q arrives while the current one is multiplied, where there is room. Where there
  // is not, the next Q is loaded as soon as this one is read: results are not staged there, but go
  // from registers to global memory.
  static constexpr int kQueryStages = kMaxBytes <= 224 * 1024 ? 2 : 1;
  static constexpr bool kConsumersStore = kQueryStages == 1;
  // The next tile's QK overlaps this tile's last PV. KV splits overlap each other instead, and
  // merging their results needs the registers of those scores.
  static constexpr bool kOverlapsTiles = kQueryStages > 1 && Shape::kKvSplits == 1;
  // More than 32: the scheduler looks up as many pieces before it publishes the first step.
  static constexpr int kStepDescriptors = kMaxBytes <= 220 * 1024 ? 64 : 40;
  static constexpr int kTileDescriptors = 3, kVPostDescriptors = 3;

  /// Named barriers; 0 is __syncthreads.
  enum NamedBarrier : int {
    kWarpgroupBarrier = 1,  // the first of one per consumer
    kTurnBarrier =
        kWarpgroupBarrier + Shape::kConsumers  // the first of two, for even and odd tiles
  };

  /// Which stage of V the V post-process warp has to fix, and which keys stay.
  struct VPostDescriptor {
    std::int32_t stage;
    std::uint64_t kept[Shape::kPieces];  // bitmask of keys
  };
  struct Shared {
    typename Shape::Queries q[kQueryStages];
    Keys keys[kStages];
    Values values[kStages];
    tile::RingBarriers<kQueryStages> q_ring;
    tile::RingBarriers<kStages> k_ring, v_ring;
    tile::RingBarriers<kTileDescriptors> tile_ring;
    tile::RingBarriers<kStepDescriptors> step_ring;
    tile::RingBarriers<kVPostDescriptors> v_post_ring;
    std::uint64_t v_landed[kStages];             // V that is post-processed before consumers see it
    std::uint64_t results_staged[kQueryStages];  // staged in the Q buffer
    // Split tiles: whether this consumer is the last and merges.
    bool merges[kQueryStages][Shape::kSplitConsumers];
    SplitExchange<typename Shape::Partial, kSplitPartials> split_exchange;
    TileDescriptor tiles[kTileDescriptors];
    typename Shape::Step steps[kStepDescriptors];
    // For loads: where the keys of a step lie, and which of them some query sees.
    planning::KeyPlace places[kStepDescriptors][Shape::kPieces];
    std::uint64_t kept[kStepDescriptors][Shape::kPieces];
    typename Shape::Step stage_steps[kStages];  // of the steps whose K is in each stage
    TileCursor cursor;                          // the scheduler's
    // Per consumer, in the current tile.
    int first_step[Shape::kConsumers], last_step[Shape::kConsumers];
    typename Shape::Pieces pieces;
    VPostDescriptor v_post_descriptors[kVPostDescriptors];
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace tessera::cuda::sm90::attention
