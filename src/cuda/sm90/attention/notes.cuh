#pragma once

#include <cstdint>

#include "src/plan/sequence.hpp"
#include "src/plan/tile_share.hpp"
#include "src/plan/walk.hpp"

// What the scout tells the others: tile by tile, and step by step of a tile's walk.
namespace tessera::cuda::sm90::attention {

/// Where a sequence lies in packed tensors, and what its queries see.
struct SequenceNote {
  std::int32_t q_begin = 0, q_length = 0, kv_begin = 0;
  planning::NarrowSight sight;

  TESSERA_HD static constexpr SequenceNote of(const planning::Sequence& s) {
    return {static_cast<std::int32_t>(s.q_begin), static_cast<std::int32_t>(s.q_length),
            static_cast<std::int32_t>(s.kv_begin), planning::NarrowSight::of(s.sight)};
  }
};

/// One output tile. Rows of a tile are queries times the heads that are folded into it, heads
/// first: row r is query r / pack of head `head` + r % pack.
struct TileNote : SequenceNote {
  std::int32_t batch, head, kv_head;
  std::int32_t first_query;  // of the tile, inside its sequence
  bool ends_all;             // there is no such tile
  bool turned;               // its list is walked from the end
  planning::TileShare share;

  /// Whether the tile has queries from that row on.
  __device__ bool reaches(int row, int pack_shift) const {
    return first_query + (row >> pack_shift) < q_length;
  }
};

/// Where a piece is that does not exist: beyond every tensor, so TMA writes zeros.
inline constexpr std::int32_t kNowhere = 1 << 30;

/// In place of where an element mask begins. Strides may be negative, and so may that be.
inline constexpr std::int64_t kNoBits = INT64_MIN;

/// The keys of a piece, a bit each.
inline constexpr std::uint64_t kAllKeys = ~std::uint64_t{0};

/// A line of a tile is the rows of one list, where it walks several, and else those that one
/// consumer has. Bits of all of them:
inline constexpr std::uint8_t kAllLines = 0xff;

/// One step: pieces of 64 keys each, which need not be neighbours.
template <int kPieces>
struct StepNote {
  std::int64_t bits[kPieces];    // where the tile's, or its line's, element mask of each piece
                                 // begins; kNoBits: none
  std::int32_t key[kPieces];     // first key of each piece inside the sequence
  std::uint8_t masked[kPieces];  // lines with hidden pairs in it, a bit each
  std::uint8_t last;             // of its tile
  std::uint8_t joined, leaves;   // consumers whose first step it is or was, whose last, a bit each

  /// Whether there are any.
  __device__ bool hides_from(int line) const {
    int found = 0;
#pragma unroll
    for (const std::uint8_t lines : masked) found |= lines;
    return (found >> line & 1) != 0;
  }
};

/// One step of a tile whose lines have a list each: one piece, which not all of them need.
struct LineStepNote : StepNote<1> {
  std::uint8_t lines;  // that need it, a bit each
};

}  // namespace tessera::cuda::sm90::attention
