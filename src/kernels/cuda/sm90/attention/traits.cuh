#pragma once

#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <tessera/tensor.hpp>

#include "src/kernels/cuda/sm90/attention/lines.cuh"
#include "src/kernels/cuda/sm90/attention/notes.cuh"
#include "src/kernels/cuda/sm90/attention/rings.cuh"
#include "src/kernels/cuda/sm90/attention/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/select/tile_table.hpp"

namespace tessera::cuda::sm90::attention {

inline constexpr int kWarpgroup = 128;

/// Rows of queries, keys or values: panels of 64 columns, each `kRows` lines, or of 32 columns
/// where the last one would be half empty. Swizzled as wide as a line.
template <class Element, int kRows, int kColumns>
struct RowsTile {
  static constexpr int kLine = kColumns % tile::kLine == 0 ? tile::kLine : tile::kLine / 2;
  static_assert(kColumns % kLine == 0);
  static constexpr int kLineBytes = kLine * 2, kPanels = kColumns / kLine;
  static constexpr int kPanelBytes = kRows * kLineBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  alignas(tile::kAtomBytes) Element data[kPanels * kRows * kLine];

  __device__ Element* panel(int p, int row = 0) { return data + (p * kRows + row) * kLine; }
  /// Where sixteen bytes of a row lie, which hold `column` and seven neighbours.
  __device__ uint4* chunk(int row, int column) {
    const int place = column % kLine / 8 ^ row * kLineBytes / 128 % (kLine / 8);
    return reinterpret_cast<uint4*>(panel(column / kLine, row)) + place;
  }
  /// From the address of one of a row's first two chunks to as much behind a multiple of 16
  /// columns.
  __device__ static std::uint32_t to_column(std::uint32_t chunk, int column) {
    return (chunk ^ column % kLine * 2) + column / kLine * kPanelBytes;
  }
  /// wgmma's view with the columns as depth, from a row (a multiple of 8) on.
  __device__ std::uint64_t by_columns(int row) const {
    return tile::uniform(tile::descriptor(data + row * kLine, 0, 8 * kLineBytes, kLineBytes));
  }
  /// What depth step i of 16 columns adds to it.
  static constexpr std::uint32_t column_step(int i) {
    return (i * 16 / kLine * kPanelBytes + i * 16 % kLine * 2) >> 4;
  }
  /// The view with the rows as depth, all columns.
  __device__ std::uint64_t by_rows() const {
    return tile::uniform(tile::descriptor(data, kPanelBytes, 8 * kLineBytes, kLineBytes));
  }
  static constexpr std::uint32_t kRowStep = (16 * kLineBytes) >> 4;
};

/// Sums of 64 rows over some of their keys, as the threads of a consumer hold them.
template <int kDimV>
struct FoundSums {
  float4 sum[kDimV / 8][kWarpgroup];
  float4 state[kWarpgroup];  // of both rows: base, -inf without any key; sum of weights
};

/// Sums that consumers of other teams hand to the first one, tile by tile.
template <class Found, int kCount>
struct HandedSums {
  Found found[kCount];
  std::uint64_t full[kCount], empty[kCount];
};
template <class Found>
struct HandedSums<Found, 0> {};

/// What a row has a kernel for: scores as they are; scores that are changed before the softmax; and
/// as they are where nobody asks for log-sum-exps. These take weights as they are added up before
/// they are rounded, else whoever multiplies them adds them up besides.
enum class Instance { usual, mapped, counted };

/// Everything a kernel is compiled for.
template <planning::Tile kTile, class ElementType, Instance kInstance>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  static constexpr int kConsumers = kTile.warpgroups, kStages = kTile.stages;
  // Teams take turns with the steps of a walk; the consumers of a team divide the rows.
  static constexpr int kTeams = kTile.teams, kTeamSize = kConsumers / kTeams;
  static constexpr int kRows = kM / kTeamSize;  // of one consumer
  static_assert(kConsumers % kTeams == 0 && kStages >= (kTeams > 1 ? 2 * kTeams : 2));
  // Consumers whose lines have a list each pass by steps that they do not need.
  static constexpr bool kOwnLists = kTile.lines > 1;
  static constexpr int kLineRows = planning::line_queries(kTile);
  static_assert(kM <= planning::SmallDivisor::kMax);
  static_assert(!kOwnLists || kTeams == 1);
  // Consumers leave a tile when their rows see no more, and join it when they see something, where
  // that saves steps.
  static constexpr bool kLeavesSooner = planning::leaves_sooner(kTile);
  static constexpr bool kJoinsLater = planning::joins_later(kTile);
  static constexpr bool kSkipsTiles = planning::skips_tiles(kTile);
  // Two consumers take turns: one's weights are computed while the other's products are summed, and
  // a look at maxima fills the wait for its own. With more the schedulers are never idle.
  static constexpr bool kByMaxima = kConsumers == 2 && kTeams == 1;
  static constexpr int kPieces = kN / planning::kKeyPiece, kRoundPieces = kPieces * kTeams;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static_assert(kRows == 64 && kN % planning::kKeyPiece == 0 && kDim % 16 == 0);
  static constexpr bool kMapped = kInstance == Instance::mapped;
  static constexpr bool kCounts = kInstance == Instance::counted;
  // What a launch gives each thread, and how the warpgroups divide it.
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kLoaderRegisters = kConsumers > 2 ? 32 : 40;
  static constexpr int kConsumerRegisters =
      (kRegisters * (kConsumers + 1) - kLoaderRegisters) / kConsumers / 8 * 8;
  // Queries that a consumer holds, as steps of 16 columns, so that scores need less of shared
  // memory: what registers have room for beside scores, sums, weights and all else. Three consumers
  // hold all or none: a quarter takes as much time as it saves.
  static constexpr int kOtherRegisters = kMapped ? 48 : kTeams > 1 && kConsumers > 2 ? 28 : 36;
  static constexpr int kFreeSteps =
      (kConsumerRegisters - kN / 2 - kDimV / 2 - kN / 4 - kOtherRegisters) / 4;
  static constexpr int kHeldSteps =
      kConsumers == 3 && kFreeSteps < kDim / 16 ? 0 : std::clamp(kFreeSteps, 0, kDim / 16);

  using Queries = RowsTile<Element, kM, (kDim > kDimV ? kDim : kDimV)>;
  using Keys = RowsTile<Element, kN, kDim>;
  using Values = RowsTile<Element, kN, kDimV>;
  // A second tile of queries arrives while the first one is multiplied, where there is room.
  static constexpr int kRingBytes = kStages * (Keys::kBytes + Values::kBytes);
  using Found = FoundSums<kDimV>;
  static constexpr int kHanded = kConsumers - kTeamSize;  // found by other teams than the first
  static constexpr int kMaxBytes =
      kRingBytes + 2 * Queries::kBytes + kHanded * static_cast<int>(sizeof(Found));
  using RingsWithOnes = CountingRings<Element, Keys, Values, kStages>;
  static constexpr bool kCanCount =
      kByMaxima && !kOwnLists && kDimV > 64 && kMaxBytes + RingsWithOnes::kOnesBytes <= 220 * 1024;
  static_assert(kCanCount || !kCounts);
  static constexpr int kQueryStages = kMaxBytes <= 224 * 1024 ? 2 : 1;
  // Where there is room for one tile, the next one's queries come as soon as this one's are read:
  // results do not lie there, but go from registers to memory.
  static constexpr bool kStoresItself = kQueryStages == 1;
  // More than 32: the scout looks up as many pieces before it shows the first of them.
  static constexpr int kStepNotes = kMaxBytes <= 220 * 1024 ? 64 : 48;
  static constexpr int kTileNotes = 3, kClearings = 3;
  static_assert(!kOwnLists || (kConsumers % kTile.lines == 0 && kPieces <= 2));
  static constexpr int kLines = kOwnLists ? kTile.lines : kTeamSize;
  static constexpr int kConsumersALine = kTeamSize / kLines;
  static_assert(!kLeavesSooner || (kTeams == 1 && !kOwnLists));
  using Step = StepNote<kPieces>;
  using Pieces = std::conditional_t<kOwnLists, LinePieces<kLines, kM / kLines>,
                                    ListPieces<kLines, kM / kLines>>;

  /// Which stage of values a helper clears, and what of it stays.
  struct Clearing {
    std::int32_t stage;
    std::uint64_t kept[kPieces];  // keys, a bit each
  };
  struct Shared {
    Queries q[kQueryStages];
    std::conditional_t<kCounts, RingsWithOnes, Rings<Element, Keys, Values, kStages>> rings;
    tile::RingBarriers<kQueryStages> q_ring;
    tile::RingBarriers<kStages> k_ring, v_ring;
    tile::RingBarriers<kTileNotes> tile_ring;
    tile::RingBarriers<kStepNotes> step_ring;
    tile::RingBarriers<kClearings> clearing_ring;
    std::uint64_t landed[kStages];        // values that are cleared before they are shown
    std::uint64_t results[kQueryStages];  // lie where the queries were
    bool joins[kQueryStages][kTeamSize];  // a divided tile's parts: the last to find one does
    HandedSums<Found, kHanded> handed;
    TileNote tiles[kTileNotes];
    Step steps[kStepNotes];
    std::uint64_t kept[kStepNotes][kPieces];  // keys that some query sees for which they are loaded
    Step notes[kStages];                      // of the stages of keys
    TileCursor cursor;                        // the scout's
    int first_step[kConsumers], last_step[kConsumers];  // of each in the tile at hand
    Pieces pieces;
    Clearing clearings[kClearings];
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
};

/// Where results go, by elements.
struct Result {
  void* out;
  float* lse;  // may be null
  DType dtype;
  std::int64_t out_batch, out_row, out_head, out_col;
  std::int64_t lse_batch, lse_row, lse_head;
  std::int64_t dim_v;
};

/// Where scores are mapped before the softmax: a softcap, or a scale of zero or less. Near zero, up
/// to `near`, cap * tanh(x * scale / cap) is x times a series of x * x.
struct ScoreMap {
  float scale, cap, near, series[3];
  float slope_log2, series_log2[3];  // the same, as exponents of two, which are below `slope` times
};

/// Scores times `scale` are exponents of two, none of which is beyond the ceiling.
struct Exponents {
  float scale, ceiling = INFINITY;
};

struct Arguments {
  CUtensorMap q, k, v, out;
  Walk walk;
  Result result;
  bool carried;  // 16-bit results that TMA can write
  Exponents exponents;
  ScoreMap map;
  const void* sinks;  // may be null
  std::int64_t sink_stride;
  DType sink_dtype;
  const std::uint8_t* bits;  // element masks of partial blocks
  bool bits_whole;           // a row of a piece is eight aligned bytes
  void* parts;               // what consumers found of divided tiles
  std::uint64_t* joined;     // how many parts of each are there
};

}  // namespace tessera::cuda::sm90::attention
