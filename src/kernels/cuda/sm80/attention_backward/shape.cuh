#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/attention/scores.cuh"
#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/attention_backward/key_tiles.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/sm80/attention/shape.cuh"
#include "src/kernels/cuda/sm80/attention_backward/operands.hpp"
#include "src/kernels/cuda/sm80/attention_backward/plan.hpp"

// The sizes of a kernel row, its shared memory, and the kernel's parameters.
namespace tessera::cuda::sm80::attention_backward {

using namespace cuda::attention_backward;  // parts shared by all architectures
using attention::ScoreTransform;
using attention::Source;
using planning::BackwardStep;
using planning::KeyTileJob;
using planning::WarpGrid;

template <planning::Tile kTile, class ElementType>
struct Traits {
  using Element = ElementType;
  using Precision = cuda::Precision<Element>;
  static constexpr planning::Tile kOfRow = kTile;
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  static constexpr int kStages = kTile.stages;
  static constexpr int kWarps = planning::backward_warps(kTile), kThreads = kWarps * kLanes;
  static constexpr int kKeyParts = planning::key_parts(kTile);
  static constexpr int kCtasPerSm = planning::backward_ctas_compiled(kTile);
  static constexpr bool kHoldsValues = planning::values_in_registers(kTile);
  static_assert(kM == planning::kQueriesPerBlock && kThreads >= 2 * kM);
  static_assert(kStages == 1 || kStages == 2);

  static constexpr WarpGrid kScores = planning::score_grid(kTile);
  static constexpr WarpGrid kOfKeys = planning::gradient_grid(kTile, kDim);
  static constexpr WarpGrid kOfValues = planning::gradient_grid(kTile, kDimV);
  static constexpr WarpGrid kDq = planning::dq_grid(kTile);
  static_assert(kScores.rows % 16 == 0 && kScores.columns % 16 == 0 && kOfKeys.rows % 16 == 0);
  static_assert(kOfKeys.columns % 16 == 0 && kOfValues.columns % 16 == 0 && kDq.columns % 16 == 0);

  using Queries = SwizzledRows<kM, kDim>;
  using Gradients = SwizzledRows<kM, kDimV>;
  using Keys = SwizzledRows<kN, kDim>;
  using Values = SwizzledRows<kN, kDimV>;
  using Scores = SwizzledRows<kM, kN>;  // P, and dS

  struct Stage {
    alignas(128) unsigned char queries[Queries::kBytes];
    alignas(128) unsigned char gradients[Gradients::kBytes];
  };
  /// P and dS, which take the place of V where V stays in registers.
  struct Rounded {
    alignas(128) unsigned char p[Scores::kBytes];
    alignas(128) unsigned char ds[Scores::kBytes];
  };
  struct Nothing {};
  struct Shared {
    alignas(128) unsigned char keys[Keys::kBytes];
    union {
      alignas(128) unsigned char values[Values::kBytes];
      std::conditional_t<kHoldsValues, Rounded, Nothing> in_place;
    };
    Stage stages[kStages];
    std::conditional_t<kHoldsValues, Nothing, Rounded> beside;
    float lse[kStages][kM], delta[kStages][kM];
    BackwardStep steps[planning::kBackwardSteps];
    TakenTile taken;
    // The walk: steps described so far; the head and block of the last one, or the word of 32
    // blocks that it is from, and that word's other blocks.
    std::int32_t described, head, block, word;
    std::uint32_t bits;
    bool turn_has_come;  // of this step, when all warps have written P and dS

    __device__ __forceinline__ Rounded& rounded() {
      if constexpr (kHoldsValues)
        return in_place;
      else
        return beside;
    }
  };
  static_assert(sizeof(Shared) <= planning::backward_shared_bytes(kTile));
};

/// The kernel's parameters.
struct Arguments {
  Source q, k, v, dout;
  BackwardWalk walk;
  BackwardScratch scratch;
  HeadRows dk, dv;
  float scale;
  float exponent_scale;  // of scores, or of capped ones, to exponents of two
  float inverse_cap;     // ln(2) / softcap: from exponents of two to s / softcap
  bool caps;             // a softcap
  ScoreTransform transform;
};

}  // namespace tessera::cuda::sm80::attention_backward
