#pragma once

#include <cstdint>

#include "src/walk/kv_share.hpp"
#include "src/walk/sequence.hpp"
#include "src/walk/walk.hpp"

// Work descriptors, which the scheduler writes for the other warps: one per tile and one per step.
namespace tessera::cuda::sm90::attention {

/// Where a sequence lies in packed tensors, and which keys its queries see.
struct SequenceDescriptor {
  std::int32_t q_begin = 0, q_length = 0, kv_begin = 0;
  planning::NarrowSight sight;

  TESSERA_HD static constexpr SequenceDescriptor of(const planning::Sequence& s) {
    return {static_cast<std::int32_t>(s.q_begin), static_cast<std::int32_t>(s.q_length),
            static_cast<std::int32_t>(s.kv_begin), planning::NarrowSight::of(s.sight)};
  }
};

/// One output tile. Its rows are queries times the heads that are folded into it, heads first: row
/// r is query r / pack of head `head` + r % pack.
struct TileDescriptor : SequenceDescriptor {
  std::int32_t batch, head, kv_head;
  std::int32_t first_query;  // of the tile, inside its sequence
  bool no_more_tiles;        // after the last tile
  bool reversed;             // its list is walked in reverse order
  planning::KvShare share;

  /// Whether the tile has queries from that row on.
  __device__ bool reaches(int row, int pack_shift) const {
    return first_query + (row >> pack_shift) < q_length;
  }
};

/// The position of a piece that does not exist: beyond every tensor, so TMA writes zeros.
inline constexpr std::int32_t kOutOfBounds = 1 << 30;

/// Offset that means "no element mask". Strides, and so offsets, may be negative.
inline constexpr std::int64_t kNoBits = INT64_MIN;

/// All keys of a piece, as a bitmask.
inline constexpr std::uint64_t kAllKeys = ~std::uint64_t{0};

/// A row group of a tile: the rows that share a list where the tile walks several, else the rows of
/// one consumer. The bitmask of all of them:
inline constexpr std::uint8_t kAllRowGroups = 0xff;

/// Flags of a step, one bit per row group: needs masking; needed; last needed; last of the tile.
struct alignas(4) RowGroupFlags {
  std::uint8_t masked = 0, needed = 0, last_needed = 0, last_of_tile = 0;
};
/// The same flags for one row group.
inline constexpr unsigned kMasked = 1, kNeeded = 1 << 8, kLastNeeded = 1 << 16,
                          kLastOfTile = 1 << 24;

/// One step: pieces of 64 keys each, which need not be adjacent.
template <int kPieces>
struct StepDescriptor {
  std::int64_t bits[kPieces];    // offset of each piece's element mask; kNoBits: none
  std::int32_t key[kPieces];     // first key of each piece inside the sequence
  RowGroupFlags flags[kPieces];  // `masked` per piece, all else with the first

  /// The flags of one row group.
  __device__ unsigned flags_of(int row_group) const {
    std::uint32_t found = 0;
#pragma unroll
    for (const RowGroupFlags& of_piece : flags)
      found |= reinterpret_cast<const std::uint32_t&>(of_piece);
    return found >> row_group & (kMasked | kNeeded | kLastNeeded | kLastOfTile);
  }
};

}  // namespace tessera::cuda::sm90::attention
