#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/attention/factors.cuh"
#include "src/kernels/cuda/attention/masks.cuh"
#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/attention/results.cuh"
#include "src/kernels/cuda/attention/scores.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/sm90/decode/plan.hpp"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/rows_tile.cuh"
#include "src/kernels/row.hpp"

// The sizes of a kernel row, its shared memory, and the kernel's parameters.
namespace tessera::cuda::sm90::decode {

using namespace cuda::attention;  // parts shared by all architectures

/// A step: one piece of keys, in a stage.
struct Step {
  std::int64_t bits;   // offset of its element mask; kNoBits: none
  std::uint64_t kept;  // keys in memory that some query of the tile sees, a bit each
  std::int32_t key;    // the first key inside the sequence
  bool visited;        // false: no query needs the piece, and nothing is loaded
  bool masked;         // some query does not see all of its keys
};

/// A step of keys and values in e4m3: a factor for each eight of them.
struct NarrowStep : Step {
  static constexpr int kKeys = 8, kCount = planning::kKeyPiece / kKeys;
  alignas(16) float k_factors[kCount], v_factors[kCount];
};

/// Q as the kernel reads it; strides in elements.
struct Queries {
  const void* data;
  std::int64_t batch, row, head;
  int dim;
};

struct Arguments {
  CUtensorMap k, v;
  planning::DecodeWalk walk;
  planning::PageView pages;  // without a table: contiguous keys
  int box_rows;              // keys per TMA box
  std::uint64_t policy;      // L2 hint for keys and values
  Queries q;
  Result result;
  bool transforms_scores;
  ScoreTransform transform;
  Exponents exponents;
  Sinks sinks;
  ElementMasks masks;
  void* partials;               // partial results of split tiles
  std::uint64_t* merge_counts;  // finished parts of tiles, at KvShare::tile
  FactorsOf<false> k_factors, v_factors;
  FactorsOf<false> q_factors;  // of queries in e4m3
  bool narrow_queries;         // which the kernel for bf16 queries reads
};

/// `ElementType`: of Q, or bf16 where Q is e4m3 too. Keys and values have that type, or e4m3, which
/// becomes f16 before it is multiplied: exactly, and so does Q, times a power of two per row (bf16
/// elements below 2^-28 of the largest of their row lose bits).
template <planning::Tile kOfRow, class ElementType, class KeyType>
struct Traits {
  using Element = ElementType;
  static constexpr bool kNarrow = !std::is_same_v<KeyType, ElementType>;
  using Multiplied = std::conditional_t<kNarrow, __half, Element>;
  static constexpr bool kScalesQueries = !std::is_same_v<Multiplied, Element>;
  static constexpr planning::Tile kTile = kOfRow;
  static constexpr int kKeys = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  // The row's stages, of 16-bit keys and values; of narrow ones as many as have these bytes.
  static constexpr int kStages = kTile.stages * sizeof(Element) / sizeof(KeyType);
  static_assert(kKeys == planning::kKeyPiece, "a step is one piece");
  static_assert(kDim % 64 == 0 && kDimV % 64 == 0, "panels have 64 columns");
  /// Teams of warps take pieces in turn; the warps of a team have 16 rows each.
  static constexpr int kTeams = kTile.kv_splits, kRowWarps = kTile.m / 16;
  static constexpr int kWarps = kTeams * kRowWarps, kThreads = (kWarps + 2) * 32;
  static_assert(kWarps == planning::decode_warps(kTile) && kStages % kTeams == 0);
  static_assert(kTeams > 1, "results are merged through shared memory");
  static constexpr int kTiles = 8;       // tile descriptors
  static constexpr int kBatches = 2;     // of 32 pieces that the finder is ahead of the loader
  static constexpr int kCounted = 1024;  // entries whose units are kept
  /// Results are exchanged by chunks of columns: in each round, every team merges one chunk.
  static constexpr int kChunk = planning::kDecodeChunk, kChunks = kDimV / kChunk;
  static constexpr int kPerRound = kChunks < kTeams ? kChunks : kTeams;
  static constexpr int kRounds = (kChunks + kPerRound - 1) / kPerRound;
  /// Parts of a tile that are loaded at once when they are merged: as many as registers hold.
  static constexpr int kPartsAtOnce = kThreads <= 256 ? 8 : 4;

  using Keys = tile::RowsTile<KeyType, kKeys, kDim>;
  using Values = tile::RowsTile<KeyType, kKeys, kDimV>;
  using StepDescriptor = std::conditional_t<kNarrow, NarrowStep, Step>;
  using Partial = PartialResult<kChunk, 32>;
  using Pieces = planning::DecodePieces<kTile.m>;
  using Tiles = planning::DecodeTiles<kTile.m>;

  /// A step, and the boxes of its keys and values: the row of the first, and their pages.
  struct FoundPiece {
    StepDescriptor step;
    std::int32_t row, batch[planning::kMaxBoxes];
  };
  struct Batch {
    FoundPiece pieces[kLanes];
    std::int32_t count, kv_head;  // count 0: there are no more
  };

  struct Shared {
    Keys keys[kStages];
    Values values[kStages];
    float row_factors[kRowWarps][kScalesQueries ? 16 : 1];  // of scores, as Q was divided by them
    uint4 q[kRowWarps][kDim / 16][32];                      // A operands of QK, as lanes hold them
    Partial exchange[kTeams][kRowWarps][kPerRound];
    std::uint64_t k_full[kStages], v_full[kStages], empty[kStages];
    tile::RingBarriers<kTiles> tile_ring;
    tile::RingBarriers<kBatches> batch_ring;
    Batch batches[kBatches];
    TileDescriptor tiles[kTiles];
    StepDescriptor steps[kStages];
    // For the finder: pieces of the current tile; of more entries than lanes the units of all,
    // and where this CTA's share begins.
    Pieces pieces;
    std::int64_t first_units;  // before `first_entry`
    int first_entry;
    std::int64_t units[kCounted];  // of each entry, if there are no more
    bool merges;                   // this CTA finished last and merges the parts of a tile
  };
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
  static_assert(kSharedBytes <= 226 * 1024);
};

}  // namespace tessera::cuda::sm90::decode
