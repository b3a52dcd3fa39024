#pragma once

#include <cstdint>

#include "src/walk/key_pieces.hpp"
#include "src/walk/lanes.hpp"
#include "src/walk/tile_walk.hpp"

// How the pieces of an output tile become steps, and what a step says to each consumer. A step has
// kPieces pieces, which need not be adjacent.
namespace tessera::planning {

/// A row group of a tile: the rows that share a list where the tile walks several, else the rows of
/// one consumer. The bitmask of all of them:
inline constexpr std::uint8_t kAllRowGroups = 0xff;

/// Flags of a step, one bit per row group: needs masking; needed; last needed; last of the tile.
struct alignas(4) RowGroupFlags {
  std::uint8_t masked = 0, needed = 0, last_needed = 0, last_of_tile = 0;
};

/// The flags of a step that one of its pieces decides. A piece that does not exist is masked: its
/// scores are hidden.
TESSERA_HD constexpr RowGroupFlags flags_of(const Piece& piece) {
  return {.masked = piece.visited ? piece.masked : kAllRowGroups, .needed = piece.row_groups};
}

/// Steps in the order of the tile's visited pieces. KV splits inside a CTA take the steps in
/// rotation; all get equally many, so the last steps may have no pieces, like the only step of a
/// tile that sees no keys.
template <int kPieces, int kKvSplits>
struct OrderedSteps {
  static constexpr int kRoundPieces = kPieces * kKvSplits;  // of one step of each split

  /// The number of steps that another step of the same KV split is known to follow, after so many
  /// pieces.
  TESSERA_HD static constexpr int followed(int placed) {
    return max_of((placed + kRoundPieces - 1) / kRoundPieces - 1, 0) * kKvSplits;
  }
  /// Steps of a tile with so many pieces.
  TESSERA_HD static constexpr int count(int placed) { return followed(placed) + kKvSplits; }
};

/// Steps of two pieces that the same row groups need, each group with a list of its own. Steps are
/// numbered in the order of their first pieces. A step without its second piece delays the steps
/// after it; before too many wait, it is published with one piece.
///
/// A warp looks up 32 pieces at a time, one per lane. Each lane also keeps one set of row groups,
/// the set of the lane's number: `lacking` is the set's step that lacks a piece, or -1.
struct PairedSteps {
  int lacking = -1, begun = 0;  // begun: steps so far, the same in all lanes

  /// Whether this lane's piece begins a step. `before`: the lanes below this one whose pieces are
  /// for the same row groups as this lane's, of which there are some; `open`: `lacking` of their
  /// set.
  TESSERA_HD static bool begins(std::uint32_t before, int open) {
    return (count_lanes(before) + (open >= 0)) % 2 == 0;
  }
  /// The step that a lane's piece begins. `beginning`: all lanes whose pieces begin one.
  TESSERA_HD int step_of(int lane, std::uint32_t beginning) const {
    return begun + count_lanes(beginning & lanes_below(lane));
  }
  /// The place of this lane's piece: two per step.
  TESSERA_HD int place(int lane, std::uint32_t before, int open, bool begins_step,
                       std::uint32_t beginning) const {
    const int step = begins_step ? step_of(lane, beginning)
                     : before    ? step_of(last_lane(before), beginning)
                                 : open;
    return step * 2 + !begins_step;
  }
  /// After 32 pieces. `own`: lanes whose pieces are for the set that this lane keeps.
  TESSERA_HD void advance(std::uint32_t own, std::uint32_t beginning) {
    if (own != 0) {
      const int last = last_lane(own);
      lacking = (beginning >> last & 1) != 0 ? step_of(last, beginning) : -1;
    }
    begun += count_lanes(beginning);
  }
  /// Whether the step of this lane's set may no longer wait for its second piece.
  TESSERA_HD constexpr bool waits_too_long(int max_waiting) const {
    return lacking >= 0 && begun - lacking > max_waiting;
  }
  /// Fills the step of this lane's set with a piece that does not exist; returns its place.
  TESSERA_HD constexpr int pad() {
    const int place = lacking * 2 + 1;
    lacking = -1;
    return place;
  }
  /// Steps that may be published, as another step follows them. `first_lacking`: the least
  /// `lacking` of all lanes, as an unsigned number.
  TESSERA_HD constexpr int complete(std::uint32_t first_lacking) const {
    return static_cast<int>(min_of(first_lacking, static_cast<std::uint32_t>(begun - 1)));
  }
};

/// Where all keys of a range are walked: the first and the last step in which a consumer's rows see
/// a key. A consumer that sees no key gets the step nearest to what it would see. Without
/// kJoinsLater the first is 0.
template <int kKeys, bool kJoinsLater, int kRowGroups, int kRows>
TESSERA_HD constexpr void find_own_steps(const AttentionWalk& walk, const TileDescriptor& tile,
                                         const ListPieces<kRowGroups, kRows>& pieces, int consumer,
                                         int& first_needed, int& last_needed) {
  first_needed = 0;
  last_needed = kOutOfBounds;
  const int first = tile.first_query + ((consumer * kRows) >> walk.pack_shift);
  const int last = tile.first_query + (((consumer + 1) * kRows - 1) >> walk.pack_shift);
  if (pieces.per_block == 0 && tile.share.parts == 1 && first < tile.q_length) {
    const int walked = pieces.begin * kKeyPiece;
    if constexpr (kJoinsLater) {
      const int final = max_of(pieces.count - 1, 0) / (kKeys / kKeyPiece);
      first_needed = min_of(max_of(tile.sight.begin_of(first) - walked, 0) / kKeys, final);
    }
    const int end = tile.sight.end_of(min_of(last, tile.q_length - 1)) - walked;
    last_needed = max_of((end - 1) / kKeys, first_needed);
  }
}

/// Which consumers need a step, and for which it is the last: sets the flags of the step's first
/// piece. `last_of_tile`: no step follows.
template <int kConsumers>
TESSERA_HD constexpr void set_needed(RowGroupFlags& flags, int step, bool last_of_tile,
                                     const int (&first_step)[kConsumers],
                                     const int (&last_step)[kConsumers]) {
  unsigned needed = 0, last_needed = 0;
  TESSERA_UNROLL()
  for (int c = 0; c < kConsumers; ++c) {
    const int last = last_step[c];
    if (first_step[c] <= step) needed |= 1u << c;
    if (last == step || (last_of_tile && last > step)) last_needed |= 1u << c;
  }
  flags.needed = static_cast<std::uint8_t>(needed);
  flags.last_needed = static_cast<std::uint8_t>(last_needed);
}

}  // namespace tessera::planning
