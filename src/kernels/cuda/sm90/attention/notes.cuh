#pragma once

#include <cstdint>

#include "src/walk/sequence.hpp"
#include "src/walk/tile_share.hpp"
#include "src/walk/walk.hpp"

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

/// What a step is to lines, a bit each: some of its pairs are hidden from them; they have joined
/// its tile, and need it; it is the last that they need; it is the tile's last.
struct alignas(4) LineBits {
  std::uint8_t masked = 0, needed = 0, leaves = 0, ends = 0;
};
/// The same of one line.
inline constexpr unsigned kMasked = 1, kNeeded = 1 << 8, kLast = 1 << 16, kEnds = 1 << 24;

/// One step: pieces of 64 keys each, which need not be neighbours.
template <int kPieces>
struct StepNote {
  std::int64_t bits[kPieces];  // where the tile's, or its line's, element mask of each piece
                               // begins; kNoBits: none
  std::int32_t key[kPieces];   // first key of each piece inside the sequence
  LineBits lines[kPieces];     // `masked` for each piece, all else with the first

  /// What it is to a line.
  __device__ unsigned known_to(int line) const {
    std::uint32_t found = 0;
#pragma unroll
    for (const LineBits& of_piece : lines)
      found |= reinterpret_cast<const std::uint32_t&>(of_piece);
    return found >> line & (kMasked | kNeeded | kLast | kEnds);
  }
};

}  // namespace tessera::cuda::sm90::attention
