#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"
#include "src/walk/backward_walk.hpp"

// The compile-time constants of the kernel that computes dQ alone, its shared memory and its
// parameters. Tiles, steps and lists are those of the forward pass, whose scheduler and producer it
// uses: their names are the forward kernel's.
namespace tessera::cuda::sm90::attention_backward {

using namespace cuda::attention_backward;  // parts shared by all architectures
namespace forward = cuda::sm90::attention;

/// Compiled as two kernels: plain, and with a softcap.
template <planning::Tile kOfRow, class ElementType, bool kSoftcap>
struct DqTraits : forward::Shape<planning::dq_tile(kOfRow), ElementType> {
  using Base = forward::Shape<planning::dq_tile(kOfRow), ElementType>;
  using typename Base::Element, typename Base::Keys, typename Base::Values;
  using Gradients = tile::RowsTile<Element, Base::kM, Base::kDimV>;
  static_assert(Gradients::kLine == Base::Queries::kLine && Base::kPieces == 1);
  static constexpr bool kCaps = kSoftcap;

  // Both consumers visit all steps of a tile, so that they keep taking turns.
  static constexpr bool kLeavesSooner = false, kJoinsLater = false;
  // What the kernel reads has been written before it begins (dq_launch.cuh).
  static constexpr bool kWaitsForGrids = false;
  // dQ = dS K adds up rows of K.
  static constexpr bool kAddsUpKeys = true;
  static constexpr int kStages = Base::kTile.stages;
  static constexpr int kValueStages = planning::dq_value_stages(kOfRow);
  static_assert(kStages >= 2 && kValueStages >= 1);
  // One buffer of Q and dO, which the first step needs whole: all other loads come after theirs,
  // but for its K.
  static constexpr int kQueryStages = 1, kKeysBeforeQueries = 1;
  static constexpr bool kConsumersStore = true;
  static constexpr int kGradientPanels = Gradients::kPanels, kLandingPieces = 0;
  static constexpr int kStepDescriptors = 40, kTileDescriptors = 3, kVPostDescriptors = 3;

  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  // MMAs of S whose Q stays in registers: as many as fit beside dQ, S, dP, dS and others.
  static constexpr int kOtherRegisters = 44;
  static constexpr int kFreeRegisters =
      kConsumerRegisters - Base::kDim / 2 - Base::kN / 2 * 5 / 2 - kOtherRegisters;
  static constexpr int kQRegisterMmas = std::clamp(kFreeRegisters / 4, 0, Base::kQkMmas);

  /// Named barriers; 0 is __syncthreads. One per consumer.
  enum NamedBarrier : int { kTurnBarrier = 1 };

  struct VPostDescriptor {
    std::int32_t stage;
    std::uint64_t kept[Base::kPieces];
  };
  struct Shared {
    typename Base::Queries q[kQueryStages];
    Gradients gradients;
    Keys keys[kStages];
    Values values[kValueStages];
    tile::RingBarriers<kQueryStages> q_ring;
    tile::RingBarriers<kStages> k_ring;
    tile::RingBarriers<kValueStages> v_ring;
    tile::RingBarriers<kTileDescriptors> tile_ring;
    tile::RingBarriers<kStepDescriptors> step_ring;
    tile::RingBarriers<kVPostDescriptors> v_post_ring;
    std::uint64_t v_landed[kStages];  // K that has to be post-processed
    forward::TileDescriptor tiles[kTileDescriptors];
    typename Base::Step steps[kStepDescriptors];
    planning::KeyPlace places[kStepDescriptors][Base::kPieces];
    std::uint64_t kept[kStepDescriptors][Base::kPieces];
    typename Base::Step stage_steps[kStages];  // descriptor of the step in each stage of K
    forward::TileCursor cursor;                // used by the scheduler alone
    int first_step[Base::kConsumers], last_step[Base::kConsumers];  // not used
    typename Base::Pieces pieces;
    VPostDescriptor v_post_descriptors[kVPostDescriptors];
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
};

/// The parameters: dQ is the forward kernel's `result`.
struct DqArguments : forward::Arguments {
  CUtensorMap dout;
  planning::RowBlocks query_blocks;  // where statistics of queries are
  int query_blocks_per_head;
  const float *lse, *delta;  // see BackwardScratch
  float scale;
  float exponent_scale;  // of scores, or of capped ones, to exponents of two
  float inverse_cap;     // ln(2) / softcap: from exponents of two to s / softcap
};

}  // namespace tessera::cuda::sm90::attention_backward
