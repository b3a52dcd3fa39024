#pragma once

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/attention/work.cuh"
#include "src/kernels/cuda/sm90/attention/policy.cuh"
#include "src/kernels/cuda/sm90/attention/shape.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

// The shared memory of a CTA: stages of K and V, work descriptors, barriers. The table of barriers
// in the README lists which warps arrive at each and which wait.
namespace tessera::cuda::sm90::attention {

/// The warps of the producer warpgroup. With FP8 the last two transpose V.
enum class WarpRole { producer, scheduler, v_post_process, store };

/// Shared memory for KV splits inside the CTA: once per tile, consumers of later splits hand their
/// partial results to those of the first split.
template <class Partial, int kCount>
struct SplitExchange {
  Partial partials[kCount];
  std::uint64_t full[kCount], empty[kCount];
};
template <class Partial>
struct SplitExchange<Partial, 0> {};

/// With FP8, what each consumer thread has no registers for: the scales of its rows and, if LSE is
/// asked for, sums of its columns of P before it is rounded. Of each warp, the factors of the
/// tile's keys and values.
template <int kThreads>
struct ThreadRows {
  float2 factors[kThreads / 32];
  RowExponents exponents[kThreads];
  float2 sums[kThreads];       // of all steps so far that are done
  float2 step_sums[kThreads];  // of the current step, which may have to be computed again
};
template <>
struct ThreadRows<0> {};

/// With FP8, pieces of V as they lie in memory: a ring between the producer and the warps that
/// transpose them.
template <class Rows, int kCount>
struct Landing {
  static constexpr int kPieces = kCount;

  struct Piece {
    std::int32_t stage, number;  // where it belongs; a stage below 0: there are no more
    std::uint64_t kept;          // the keys that must not be zeroed
  };

  Rows rows[kPieces];
  tile::RingBarriers<kPieces> ring;
  Piece pieces[kPieces];
};
template <class Rows>
struct Landing<Rows, 0> {};

template <class Shape, class Policy>
struct Pipeline {
  static constexpr int kStages = Shape::kTile.stages;
  static_assert(kStages >= (Shape::kKvSplits > 1 ? 2 * Shape::kKvSplits : 2));
  using Keys = typename Shape::Keys;
  using Values = typename Shape::Values;
  // Partial results per tile: one per consumer of the second and later KV splits.
  static constexpr int kSplitPartials = Shape::kConsumers - Shape::kSplitConsumers;
  // With FP8: bytes of the rows of threads, of a tile's pieces, and of two pieces of V that land.
  using Rows = ThreadRows<Shape::kNarrow ? Shape::kConsumers * kWarpgroup : 0>;
  using LandingRows = typename Shape::ValuesOfPiece;
  static constexpr int kNarrowBytes =
      Shape::kNarrow ? static_cast<int>(sizeof(Rows) + sizeof(typename Shape::Pieces)) +
                           2 * LandingRows::kBytes
                     : 0;
  static constexpr int kMaxBytes =
      kStages * (Keys::kBytes + Values::kBytes) + 2 * Shape::Queries::kBytes + kNarrowBytes +
      kSplitPartials * static_cast<int>(sizeof(typename Shape::Partial));
  // With two Q buffers, the next tile's Q arrives during the current tile, and results are staged
  // in the current tile's buffer. If shared memory holds only one, the next Q is loaded once the
  // consumers have read this one, and consumers store results from registers.
  static constexpr int kMaxOfRings = (Shape::kNarrow ? 220 : 224) * 1024;
  static constexpr int kQueryStages = kMaxBytes <= kMaxOfRings ? 2 : 1;
  // Two more pieces land where there is room for them.
  static constexpr int kFreeBytes =
      kMaxOfRings - kMaxBytes + (2 - kQueryStages) * Shape::Queries::kBytes;
  static constexpr int kLandingPieces =
      Shape::kNarrow ? 2 + std::min(kFreeBytes / LandingRows::kBytes, 2) : 0;
  static constexpr bool kConsumersStore = kQueryStages == 1 || Shape::kNarrow;
  static constexpr int kValueStages = kStages;
  // With one Q buffer: the steps whose K is requested before the tile's Q, which waits until the
  // tile before has been read.
  static constexpr int kKeysBeforeQueries = kStages;
  static constexpr int kGradientPanels = 0;  // of dO, loaded with Q where a kernel computes dQ
  // The first QK of a tile overlaps the last PV of the tile before. Not with KV splits: the splits
  // overlap each other, and merging them needs the registers of those scores.
  static constexpr bool kOverlapsTiles = !kConsumersStore && Shape::kKvSplits == 1;
  // More than 32: the scheduler looks up 32 pieces before it publishes their first step.
  static constexpr int kStepDescriptors = kMaxBytes <= 220 * 1024 ? 64 : 40;
  static constexpr int kTileDescriptors = 3, kVPostDescriptors = 3;

  /// Named barriers; 0 is __syncthreads.
  enum NamedBarrier : int {
    kWarpgroupBarrier = 1,                                // one per consumer
    kTurnBarrier = kWarpgroupBarrier + Shape::kConsumers  // two: + tile % 2
  };

  /// A job of the V post-process warp: a stage of V, and the keys whose rows it must not zero.
  struct VPostDescriptor {
    std::int32_t stage;
    std::uint64_t kept[Shape::kPieces];  // one bit per key
  };
  struct Shared {
    typename Shape::Queries q[kQueryStages];
    Keys keys[kStages];
    Values values[kStages];
    [[no_unique_address]] Landing<LandingRows, kLandingPieces> landing;
    [[no_unique_address]] typename Shape::Ones ones;
    tile::RingBarriers<kQueryStages> q_ring;
    tile::RingBarriers<kStages> k_ring, v_ring;
    tile::RingBarriers<kTileDescriptors> tile_ring;
    tile::RingBarriers<kStepDescriptors> step_ring;
    tile::RingBarriers<kVPostDescriptors> v_post_ring;
    std::uint64_t v_landed[kStages];             // V that has to be post-processed
    std::uint64_t results_staged[kQueryStages];  // per Q buffer
    // Split tiles: whether this CTA finished last for a consumer's rows and merges them.
    bool merges[kQueryStages][Shape::kSplitConsumers];
    SplitExchange<typename Shape::Partial, kSplitPartials> split_exchange;
    TileDescriptor tiles[kTileDescriptors];
    typename Shape::Step steps[kStepDescriptors];
    [[no_unique_address]] Rows rows;
    // For the producer: where the keys of each piece lie, and a bitmask of those that some query of
    // the tile sees.
    planning::KeyPlace places[kStepDescriptors][Shape::kPieces];
    std::uint64_t kept[kStepDescriptors][Shape::kPieces];
    typename Shape::Step stage_steps[kStages];  // descriptor of the step in each stage
    TileCursor cursor;                          // used by the scheduler alone
    // First and last needed step of the current tile, per consumer.
    int first_step[Shape::kConsumers], last_step[Shape::kConsumers];
    typename Shape::Pieces pieces;
    VPostDescriptor v_post_descriptors[kVPostDescriptors];
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
};

}  // namespace tessera::cuda::sm90::attention
