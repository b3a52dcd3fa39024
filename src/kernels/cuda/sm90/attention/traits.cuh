#pragma once

#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <tessera/tensor.hpp>

#include "src/kernels/cuda/sm90/attention/descriptors.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/attention/rings.cuh"
#include "src/kernels/cuda/sm90/attention/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/kernels/row.hpp"

namespace tessera::cuda::sm90::attention {

inline constexpr int kWarpgroup = 128;

/// A tile of rows of Q, K or V: panels of 64 columns with `kRows` lines each, or of 32 columns
/// where the last panel would be half empty. The swizzle is as wide as a line.
template <class Element, int kRows, int kColumns>
struct RowsTile {
  static constexpr int kLine = kColumns % tile::kLine == 0 ? tile::kLine : tile::kLine / 2;
  static_assert(kColumns % kLine == 0);
  static constexpr int kLineBytes = kLine * 2, kPanels = kColumns / kLine;
  static constexpr int kPanelBytes = kRows * kLineBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  alignas(tile::kAtomBytes) Element data[kPanels * kRows * kLine];

  __device__ Element* panel(int p, int row = 0) { return data + (p * kRows + row) * kLine; }
  /// The 16-byte chunk of a row that holds `column` and its seven neighbours.
  __device__ uint4* chunk(int row, int column) {
    const int place = column % kLine / 8 ^ row * kLineBytes / 128 % (kLine / 8);
    return reinterpret_cast<uint4*>(panel(column / kLine, row)) + place;
  }
  /// Moves the address of one of a row's first two chunks by `column`, a multiple of 16 columns.
  __device__ static std::uint32_t to_column(std::uint32_t chunk, int column) {
    return (chunk ^ column % kLine * 2) + column / kLine * kPanelBytes;
  }
  /// wgmma descriptor with the columns as depth, from a row (a multiple of 8) on.
  __device__ std::uint64_t by_columns(int row) const {
    return tile::uniform(tile::descriptor(data + row * kLine, 0, 8 * kLineBytes, kLineBytes));
  }
  /// What depth step i of 16 columns adds to that descriptor.
  static constexpr std::uint32_t column_step(int i) {
    return (i * 16 / kLine * kPanelBytes + i * 16 % kLine * 2) >> 4;
  }
  /// wgmma descriptor with the rows as depth, all columns.
  __device__ std::uint64_t by_rows() const {
    return tile::uniform(tile::descriptor(data, kPanelBytes, 8 * kLineBytes, kLineBytes));
  }
  static constexpr std::uint32_t kRowStep = (16 * kLineBytes) >> 4;
};

/// A thread's part of the unnormalised output of 64 rows.
template <int kDimV>
using OAccumulator = float[kDimV / 2];

/// The unnormalised output of 64 rows over a part of their keys, in the layout of a consumer's
/// registers.
template <int kDimV>
struct PartialResult {
  float4 o_acc[kDimV / 8][kWarpgroup];
  float4 softmax_state[kWarpgroup];  // both rows: row max, -inf without any key; row sum
};

/// Shared memory through which the consumers of other KV splits hand their partial results to those
/// of the first split, once per tile.
template <class Partial, int kCount>
struct SplitExchange {
  Partial partials[kCount];
  std::uint64_t full[kCount], empty[kCount];
};
template <class Partial>
struct SplitExchange<Partial, 0> {};

/// The kernels of one kernel row. `plain`: scores as they are. `transformed`: a score transform
/// before the softmax. `counted`: as plain, for calls without log-sum-exps. The row sum is taken in
/// fp32 before P is rounded; the counting variant sums the rounded P in the PV MMA instead.
enum class Instance { plain, transformed, counted };

/// Everything a kernel is compiled for.
template <planning::Tile kTile, class ElementType, Instance kInstance>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  static constexpr int kConsumers = kTile.warpgroups, kStages = kTile.stages;
  // KV splits inside the CTA take the steps of a walk in rotation; the consumers of one split
  // divide the rows.
  static constexpr int kKvSplits = kTile.kv_splits, kSplitConsumers = kConsumers / kKvSplits;
  static constexpr int kRows = kM / kSplitConsumers;  // of one consumer
  static_assert(kConsumers % kKvSplits == 0 && kStages >= (kKvSplits > 1 ? 2 * kKvSplits : 2));
  // Row groups with their own lists: a consumer skips the steps that its list does not name.
  static constexpr bool kOwnLists = kTile.row_groups > 1;
  static constexpr int kRowGroupRows = planning::row_group_queries(kTile);
  static_assert(kM <= planning::SmallDivisor::kMax);
  static_assert(!kOwnLists || kKvSplits == 1);
  // A consumer leaves a tile when its rows see no more keys, and joins it when they begin
  // to see keys, if that saves steps.
  static constexpr bool kLeavesSooner = planning::leaves_sooner(kTile);
  static constexpr bool kJoinsLater = planning::joins_later(kTile);
  static constexpr bool kSkipsTiles = planning::skips_tiles(kTile);
  // Two consumers ping-pong: one computes P while the other multiplies, and the check of the maxima
  // fills the wait for its own product. With more consumers the warp schedulers are never idle.
  static constexpr bool kPingPong = kConsumers == 2 && kKvSplits == 1;
  static constexpr int kPieces = kN / planning::kKeyPiece, kRoundPieces = kPieces * kKvSplits;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static_assert(kRows == 64 && kN % planning::kKeyPiece == 0 && kDim % 16 == 0);
  static constexpr bool kTransformsScores = kInstance == Instance::transformed;
  static constexpr bool kCounts = kInstance == Instance::counted;
  // Registers per thread at launch, and how the warpgroups divide them.
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kConsumers > 2 ? 32 : 40;
  static constexpr int kConsumerRegisters =
      (kRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers / 8 * 8;
  // Steps of 16 columns of Q that a consumer keeps in registers, so that QK reads less shared
  // memory: as many as fit beside scores, O accumulator, P and everything else. Three consumers
  // keep all or none: a quarter costs as much time as it saves.
  static constexpr int kOtherRegisters = kTransformsScores                 ? 48
                                         : kKvSplits > 1 && kConsumers > 2 ? 28
                                                                           : 36;
  static constexpr int kFreeSteps =
      (kConsumerRegisters - kN / 2 - kDimV / 2 - kN / 4 - kOtherRegisters) / 4;
  static constexpr int kQRegisterSteps =
      kConsumers == 3 && kFreeSteps < kDim / 16 ? 0 : std::clamp(kFreeSteps, 0, kDim / 16);

  using Queries = RowsTile<Element, kM, (kDim > kDimV ? kDim : kDimV)>;
  using Keys = RowsTile<Element, kN, kDim>;
  using Values = RowsTile<Element, kN, kDimV>;
  // The next tile's Q arrives while the current one is multiplied, where there is room.
  static constexpr int kRingBytes = kStages * (Keys::kBytes + Values::kBytes);
  using Partial = PartialResult<kDimV>;
  static constexpr int kSplitPartials =
      kConsumers - kSplitConsumers;  // of all splits but the first
  static constexpr int kMaxBytes =
      kRingBytes + 2 * Queries::kBytes + kSplitPartials * static_cast<int>(sizeof(Partial));
  using RingsWithOnes = CountingRings<Element, Keys, Values, kStages>;
  static constexpr bool kCanCount =
      kPingPong && !kOwnLists && kDimV > 64 && kMaxBytes + RingsWithOnes::kOnesBytes <= 220 * 1024;
  static_assert(kCanCount || !kCounts);
  static constexpr int kQueryStages = kMaxBytes <= 224 * 1024 ? 2 : 1;
  // Where shared memory has room for one Q tile, the next Q is loaded as soon as this one is read:
  // results are not staged there, but go from registers to global memory.
  static constexpr bool kConsumersStore = kQueryStages == 1;
  // More than 32: the scheduler looks up as many pieces before it publishes the first step.
  static constexpr int kStepDescriptors = kMaxBytes <= 220 * 1024 ? 64 : 48;
  static constexpr int kTileDescriptors = 3, kVPostDescriptors = 3;
  static_assert(!kOwnLists || (kConsumers % kTile.row_groups == 0 && kPieces <= 2));
  static constexpr int kRowGroups = planning::walk_row_groups(kTile);
  static constexpr int kConsumersPerRowGroup = kSplitConsumers / kRowGroups;
  static_assert(!kLeavesSooner || (kKvSplits == 1 && !kOwnLists));
  using Step = StepDescriptor<kPieces>;
  using Pieces = planning::PiecesOfTile<kTile>;

  /// Which stage of V the V post-process warp has to fix, and which keys stay.
  struct VPostDescriptor {
    std::int32_t stage;
    std::uint64_t kept[kPieces];  // bitmask of keys
  };
  struct Shared {
    Queries q[kQueryStages];
    std::conditional_t<kCounts, RingsWithOnes, Rings<Element, Keys, Values, kStages>> rings;
    tile::RingBarriers<kQueryStages> q_ring;
    tile::RingBarriers<kStages> k_ring, v_ring;
    tile::RingBarriers<kTileDescriptors> tile_ring;
    tile::RingBarriers<kStepDescriptors> step_ring;
    tile::RingBarriers<kVPostDescriptors> v_post_ring;
    std::uint64_t v_landed[kStages];             // V that is post-processed before consumers see it
    std::uint64_t results_staged[kQueryStages];  // staged in the Q buffer
    bool merges[kQueryStages]
               [kSplitConsumers];  // split tiles: whether this consumer is the last and merges
    SplitExchange<Partial, kSplitPartials> split_exchange;
    TileDescriptor tiles[kTileDescriptors];
    Step steps[kStepDescriptors];
    std::uint64_t kept[kStepDescriptors][kPieces];      // keys that some query of the step sees
    Step stage_steps[kStages];                          // of the steps whose K is in each stage
    TileCursor cursor;                                  // the scheduler's
    int first_step[kConsumers], last_step[kConsumers];  // per consumer, in the current tile
    Pieces pieces;
    VPostDescriptor v_post_descriptors[kVPostDescriptors];
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
};

/// Where results go; strides in elements.
struct Result {
  void* out;
  float* lse;  // may be null
  DType dtype;
  std::int64_t out_batch, out_row, out_head, out_col;
  std::int64_t lse_batch, lse_row, lse_head;
  std::int64_t dim_v;
};

/// A score transform before the softmax: a softcap, or a scale of zero or less. Near zero, up to
/// `near`, cap * tanh(x * scale / cap) is x times a series in x * x.
struct ScoreTransform {
  float scale, cap, near, series[3];
  float slope_log2, series_log2[3];  // as exponents of two, which are below `slope` times x
};

/// Scores times `scale` are exponents of two; none exceeds the ceiling.
struct Exponents {
  float scale, ceiling = INFINITY;
};

struct Arguments {
  CUtensorMap q, k, v, out;
  Walk walk;
  Result result;
  bool tma_store;  // whether TMA stores the (16-bit) results
  Exponents exponents;
  ScoreTransform transform;
  const void* sinks;  // may be null
  std::int64_t sink_stride;
  DType sink_dtype;
  const std::uint8_t* bits;     // element masks of partial blocks
  bool bits_aligned;            // the bits of one row and 64 keys are eight aligned bytes
  void* partials;               // partial results of split tiles
  std::uint64_t* merge_counts;  // finished parts per split tile
};

}  // namespace tessera::cuda::sm90::attention
