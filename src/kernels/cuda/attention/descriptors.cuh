#pragma once

#include <cstdint>

#include "src/walk/step_walk.hpp"
#include "src/walk/tile_walk.hpp"

// Work descriptors, which the scheduler writes for the other warps: one per tile and one per step.
namespace tessera::cuda::attention {

using planning::kAllKeys;
using planning::kAllRowGroups;
using planning::kNoBits;
using planning::kOutOfBounds;
using planning::RowGroupFlags;
using planning::SequenceDescriptor;
using planning::TileDescriptor;
using Walk = planning::AttentionWalk;

/// The flags of a step for one row group, as bits of a word: bit 0 of each byte of RowGroupFlags.
inline constexpr unsigned kMasked = 1, kNeeded = 1 << 8, kLastNeeded = 1 << 16,
                          kLastOfTile = 1 << 24;

/// Descriptor of one step: pieces of 64 keys each, which need not be adjacent.
template <int kPieces>
struct StepDescriptor {
  std::int64_t bits[kPieces];    // offset of each piece's element mask; kNoBits: no mask
  std::int32_t key[kPieces];     // first key of each piece inside the sequence
  RowGroupFlags flags[kPieces];  // `masked` per piece, the other flags in the first one

  /// The flags of one row group.
  __device__ unsigned flags_of(int row_group) const {
    std::uint32_t found = 0;
#pragma unroll
    for (const RowGroupFlags& of_piece : flags)
      found |= reinterpret_cast<const std::uint32_t&>(of_piece);
    return found >> row_group & (kMasked | kNeeded | kLastNeeded | kLastOfTile);
  }
};

/// The same with the factors of keys and values in FP8, where those of a tile have several.
template <int kPieces>
struct FactorStep : StepDescriptor<kPieces> {
  float k_factor[kPieces], v_factor[kPieces];
};

}  // namespace tessera::cuda::attention
