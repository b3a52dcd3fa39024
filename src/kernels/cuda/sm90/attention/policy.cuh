#pragma once

#include <algorithm>

#include "src/kernels/cuda/sm90/attention/plan.hpp"

// How consumers work, where kernel rows differ. The figures come from the README's table of trials.
namespace tessera::cuda::sm90::attention {

/// Each kernel row is compiled as up to two kernels: plain, and with a score transform before the
/// softmax (softcap, scales of zero or less).
enum class Instance { plain, transformed };

template <class Shape, Instance kInstance>
struct Policy {
  static constexpr bool kTransformsScores = kInstance == Instance::transformed;
  // The grid before may still run when the kernel begins (common/grid.cuh).
  static constexpr bool kWaitsForGrids = true;
  // A consumer leaves a tile once its rows see no further key, and joins it when they see their
  // first, if that saves steps: D64 causal S 1024 292 -> 336 TFLOPS, a window of 1024 505 -> 534.
  static constexpr bool kLeavesSooner = planning::leaves_sooner(Shape::kTile);
  static constexpr bool kJoinsLater = planning::joins_later(Shape::kTile);
  static_assert(!kLeavesSooner || (Shape::kKvSplits == 1 && !Shape::kOwnLists));
  static constexpr bool kSkipsSteps = kJoinsLater || Shape::kOwnLists;
  // A consumer skips a tile in which it has no rows: D128 causal S 1024 395 -> 434 TFLOPS.
  static constexpr bool kSkipsTiles = planning::skips_tiles(Shape::kTile);
  // Two consumers take turns at a tile's start, so that one computes P while the other multiplies;
  // the check of the maxima then hides behind the wait for the consumer's own PV. With more
  // consumers the warp schedulers have no idle issue slots, and checking row sums instead of maxima
  // is faster: D64 539 -> 551 TFLOPS, but two consumers D128 711 -> 693.
  static constexpr bool kTakesTurns =
      Shape::kConsumers == 2 && Shape::kKvSplits == 1 && !Shape::kNarrow;

  // Registers per thread at launch, and after setmaxnreg has redistributed them.
  static constexpr int kRegisters = 65536 / Shape::kThreads / 8 * 8;
  // With a list per row group and factors, the scheduler needs more, but for a row whose consumers
  // have none to give.
  static constexpr int kProducerRegisters =
      (Shape::kConsumers > 2 ? 32 : 40) +
      (Shape::kNarrow && Shape::kOwnLists && Shape::kConsumers * Shape::kDimV < 256 ? 8 : 0);
  // With FP8: the groups of 16 columns of V that a turning warp loads ahead of the one that it
  // transposes, in four registers each. With four groups the kernels spill.
  static constexpr int kTurnsAhead = 3;
  // With FP8: columns of V that are multiplied at once, in a register for each two.
  static constexpr int kPvColumns = Shape::kOwnLists && Shape::kConsumers > 2 ? 64 : Shape::kN;
  static constexpr int kConsumerRegisters =
      (kRegisters * (Shape::kConsumers + 1) - kProducerRegisters) / Shape::kConsumers / 8 * 8;
  // Number of QK MMAs whose Q operand stays in registers (four words each), so that QK reads less
  // shared memory: as many as fit beside the scores, the O accumulator, P and kOtherRegisters.
  // Three consumers keep all or none: a quarter costs as much time as it saves.
  static constexpr int kOtherRegisters = kTransformsScores                               ? 48
                                         : Shape::kKvSplits > 1 && Shape::kConsumers > 2 ? 28
                                                                                         : 36;
  static constexpr int kFreeRegisters =
      kConsumerRegisters - Shape::kN / 2 - Shape::kDimV / 2 - Shape::kPvMmas * 4 - kOtherRegisters;
  static constexpr int kQRegisterMmas =
      Shape::kNarrow || (Shape::kConsumers == 3 && kFreeRegisters / 4 < Shape::kQkMmas)
          ? 0
          : std::clamp(kFreeRegisters / 4, 0, Shape::kQkMmas);
  // With four consumers, values that can be recomputed are hidden from the compiler, so that it
  // does not keep them in registers.
  static constexpr bool kFewRegisters = Shape::kConsumers > 3;
  // Which rows a product adds up over the keys, with P or dS as its left operand: those of V, or of
  // K where a kernel computes dQ. NaN in rows that no query sees would spoil the sum.
  static constexpr bool kAddsUpKeys = false;
  // How the step flags become warp-uniform, which ptxas needs to keep a warp converged: by votes in
  // kernel rows whose consumers leave early; in the others by a shuffle, with two consumers at each
  // use.
  static constexpr bool kVotesOnFlags = kLeavesSooner && !Shape::kNarrow;
  // Whether consumers test the barrier of the next step's K while they compute. With FP8 they have
  // no register for that step's position, and other warpgroups compute during the wait.
  static constexpr bool kLooksAhead = !Shape::kNarrow;
  // FP8 where consumers have registers for it: QK of the next step and PV of this one run while a
  // consumer computes the next step's P.
  static constexpr bool kOverlapsSteps = Shape::kNarrow && Shape::kTile.stages >= 3 &&
                                         Shape::kDimV <= (Shape::kConsumers == 2 ? 128 : 64) &&
                                         (Shape::kConsumers == 2 || !Shape::kOwnLists) &&
                                         !kTransformsScores;
  static_assert(kLooksAhead || Shape::kKvSplits == 1);
};

}  // namespace tessera::cuda::sm90::attention
