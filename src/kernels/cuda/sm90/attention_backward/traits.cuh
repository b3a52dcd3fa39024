#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/attention/scores.cuh"
#include "src/kernels/cuda/attention_backward/around.hpp"
#include "src/kernels/cuda/attention_backward/key_tiles.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm90/tile/arrivals.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/rows_tile.cuh"

// The compile-time constants of a kernel, its shared memory and its parameters.
namespace tessera::cuda::sm90::attention_backward {

using namespace cuda::attention_backward;  // parts shared by all architectures
using cuda::attention::ScoreTransform;
using planning::BackwardStep;
using planning::KeyTileJob;
using tile::arrive_as_warp;
using tile::kWarpArrivals;

inline constexpr int kWarpgroup = 128;

/// A key tile, and its steps, counted through all tiles of the thread block.
struct TileDescriptor : TakenTile {
  std::uint32_t first_step, end_step;
};

/// Each kernel row is compiled as two kernels: plain, and with a softcap.
template <planning::Tile kOfRow, class ElementType, bool kSoftcap>
struct Traits {
  using Element = ElementType;
  using Precision = cuda::Precision<Element>;
  static constexpr planning::Tile kTile = kOfRow;
  static constexpr bool kCaps = kSoftcap;
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  // Whether this kernel computes dQ and adds it to the sums, or another kernel computes it.
  static constexpr bool kSendsDq = kTile.dq_queries == 0;
  // Each consumer, here and in the kernel of dQ, leaves out steps in which lists name nothing of
  // its 64 rows.
  static constexpr bool kOwnLists = kTile.row_groups > 1;
  static_assert(!kOwnLists || !kSendsDq);
  static constexpr int kStages = kTile.stages;
  static constexpr int kConsumers = kTile.warpgroups, kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kBlocks = planning::blocks_of_step(kTile);
  static constexpr int kBlock = planning::kQueriesPerBlock;
  static_assert(kM == kBlocks * kBlock && kBlocks <= 2 && kConsumers == 2);

  // Thread blocks per key tile. With 1, each consumer has half of the keys; with 2, the thread
  // block has half of them, and one consumer has dV, the other dK.
  static constexpr int kKeyParts = planning::key_parts(kTile);
  static_assert(kKeyParts == 1 || (kKeyParts == 2 && !kSendsDq));

  // dQ is computed and sent in parts of kPart columns. A panel of K has the columns of a part.
  static constexpr int kPart = planning::dq_part_columns(kTile);
  static constexpr int kColumnParts = planning::dq_parts(kTile), kParts = kBlocks * kColumnParts;
  static_assert(!kSendsDq || kParts == kConsumers);
  // A part is a block of queries, or some columns of one.
  static_assert(kBlocks == 1 || kColumnParts == 1);
  TESSERA_HD static constexpr int block_of(int part) { return kBlocks > 1 ? part : 0; }
  TESSERA_HD static constexpr int columns_at(int part) { return kBlocks > 1 ? 0 : part; }
  static constexpr int columns_of(int part) {
    return kDim - part * kPart < kPart ? kDim - part * kPart : kPart;
  }

  static constexpr int whole_lines(int columns) { return (columns + 63) / 64 * 64; }
  using Keys = tile::RowsTile<Element, kN, kColumnParts * kPart, kPart>;
  using Values = tile::RowsTile<Element, kN, whole_lines(kDimV)>;
  using Queries = tile::RowsTile<Element, kM, whole_lines(kDim)>;
  using Gradients = tile::RowsTile<Element, kM, whole_lines(kDimV)>;
  // dS, transposed: lines of the queries of one key.
  using ScoreGradients = tile::RowsTile<Element, kN, kM>;

  // Registers per thread after setmaxnreg; 384 threads begin with 168.
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

  static constexpr int kScoreGradients = 2;               // buffers
  static constexpr int kStepDescriptors = 8, kTiles = 2;  // rings of descriptors
  static constexpr int kDqBuffers = 2, kSenders = 3;
  // Without senders no barrier guards descriptors: the producer has loaded the step before, so the
  // consumers have released the one kStages before that.
  static_assert(kStepDescriptors > kStages + 1);
  static constexpr int kPBuffers = 2;

  /// Named barriers; 0 is __syncthreads.
  enum NamedBarrier : int { kTurnBarrier = 1, kWarpgroupBarrier = 3 };  // one per consumer each

  struct Operands {
    Keys keys;
    Values values;
    Queries queries[kStages];
    Gradients gradients[kStages];
  };
  struct DqBuffers {
    ScoreGradients ds[kScoreGradients];
    alignas(128) float dq[kDqBuffers][kBlock * kPart];
  };
  // Of a consumer with dV, which hands P to the one with dK, in the layout of their registers.
  struct PBuffers {
    alignas(128) float4 p[kPBuffers][kM / 8][kWarpgroup];
  };
  struct NoBuffers {};
  struct Shared : Operands,
                  std::conditional_t<kSendsDq, DqBuffers,
                                     std::conditional_t<kKeyParts == 2, PBuffers, NoBuffers>> {
    alignas(16) float lse[kStages][kM], delta[kStages][kM];
    BackwardStep steps[kStepDescriptors][kBlocks];
    TileDescriptor tiles[kTiles];
    tile::RingBarriers<1> kv_ring;
    tile::RingBarriers<kStages> q_ring;
    tile::RingBarriers<kStages> g_ring;
    tile::RingBarriers<kStepDescriptors> step_ring;
    tile::RingBarriers<kTiles> tile_ring;
    tile::RingBarriers<kScoreGradients> ds_ring;
    tile::RingBarriers<kPBuffers> p_ring;
    std::uint64_t dq_full[kDqBuffers][kSenders], dq_empty[kDqBuffers];
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
};

/// The gradient of K or V.
struct Arguments {
  CUtensorMap q, k, v, dout;
  planning::BackwardWalk walk;
  BackwardScratch scratch;
  HeadRows dk, dv;
  float scale;
  float exponent_scale;  // of scores, or of capped ones, to exponents of two
  float inverse_cap;     // ln(2) / softcap: from exponents of two to s / softcap
  ScoreTransform transform;
};

}  // namespace tessera::cuda::sm90::attention_backward
