#pragma once

#include <algorithm>

#include "src/kernels/cuda/sm90/attention/plan.hpp"

// How the consumers of a kernel row work, where rows differ. The figures are in the README's table
// of trials.
namespace tessera::cuda::sm90::attention {

/// The kernels of one kernel row: scores as they are, or a score transform before the softmax.
enum class Instance { plain, transformed };

template <class Shape, Instance kInstance>
struct Policy {
  static constexpr bool kTransformsScores = kInstance == Instance::transformed;
  // A consumer leaves a tile when its rows see no more keys, and joins it when they begin to see
  // keys, if that saves steps: D64 causal S 1024 292 -> 336 TFLOPS, a window of 1024 505 -> 534.
  static constexpr bool kLeavesSooner = planning::leaves_sooner(Shape::kTile);
  static constexpr bool kJoinsLater = planning::joins_later(Shape::kTile);
  static_assert(!kLeavesSooner || (Shape::kKvSplits == 1 && !Shape::kOwnLists));
  static constexpr bool kSkipsSteps = kJoinsLater || Shape::kOwnLists;
  // A consumer skips a tile in which it has no rows: D128 causal S 1024 395 -> 434 TFLOPS.
  static constexpr bool kSkipsTiles = planning::skips_tiles(Shape::kTile);
  // Two consumers take turns at a tile's start: from then on one computes P while the other
  // multiplies, and the check of the maxima fills the wait for its own product. With more consumers
  // the warp schedulers are never idle: D64 539 -> 551 TFLOPS by row sums, two consumers D128 711
  // -> 693.
  static constexpr bool kTakesTurns = Shape::kConsumers == 2 && Shape::kKvSplits == 1;

  // Registers per thread at launch, and how the warpgroups divide them.
  static constexpr int kRegisters = 65536 / Shape::kThreads / 8 * 8;
  static constexpr int kProducerRegisters = Shape::kConsumers > 2 ? 32 : 40;
  static constexpr int kConsumerRegisters =
      (kRegisters * (Shape::kConsumers + 1) - kProducerRegisters) / Shape::kConsumers / 8 * 8;
  // MMAs whose Q a consumer keeps in registers, four words each, so that QK reads less shared
  // memory: as many as fit beside scores, O accumulator, P and everything else. Three consumers
  // keep all or none: a quarter costs as much time as it saves.
  static constexpr int kOtherRegisters = kTransformsScores                               ? 48
                                         : Shape::kKvSplits > 1 && Shape::kConsumers > 2 ? 28
                                                                                         : 36;
  static constexpr int kFreeRegisters =
      kConsumerRegisters - Shape::kN / 2 - Shape::kDimV / 2 - Shape::kPvMmas * 4 - kOtherRegisters;
  static constexpr int kQRegisterMmas =
      Shape::kConsumers == 3 && kFreeRegisters / 4 < Shape::kQkMmas
          ? 0
          : std::clamp(kFreeRegisters / 4, 0, Shape::kQkMmas);
  // Four consumers have so few registers that the compiler has to be kept from holding what can be
  // computed again.
  static constexpr bool kFewRegisters = Shape::kConsumers > 3;
  // In rows whose consumers leave early, ptxas keeps a warp together only if the flags of a step
  // come from votes; in others, with two consumers, a shuffle at each use does that.
  static constexpr bool kVotesOnFlags = kLeavesSooner;
};

}  // namespace tessera::cuda::sm90::attention
