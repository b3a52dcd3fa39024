#pragma once

#include <cstdint>

#include "src/walk/key_pieces.hpp"
#include "src/walk/lanes.hpp"
#include "src/walk/tile_walk.hpp"

// Groups the pieces of keys that an output tile visits into steps of the main loop, and sets the
// flags of each step for the consumers. A step has kPieces pieces, which need not be adjacent.
namespace tessera::planning {

/// The bitmask of all row groups of a tile. A row group is the rows that share a list if the tile
/// walks several lists, else the rows of one consumer.
inline constexpr std::uint8_t kAllRowGroups = 0xff;

/// Flags of a step, one bit per row group: the step needs masking; it is needed; it is the last
/// needed step; it is the last step of the tile.
struct alignas(4) RowGroupFlags {
  std::uint8_t masked = 0, needed = 0, last_needed = 0, last_of_tile = 0;
};

/// The flags that one piece contributes to its step. A piece that does not exist is masked, so that
/// its scores are hidden.
TESSERA_HD constexpr RowGroupFlags flags_of(const Piece& piece) {
  return {.masked = piece.visited ? piece.masked : kAllRowGroups, .needed = piece.row_groups};
}

/// Steps in the order of the tile's visited pieces. The KV splits inside a CTA take the steps in
/// turn. All splits get the same number of steps, so the last steps may have no pieces; a tile that
/// sees no keys has one such step per split.
template <int kPieces, int kKvSplits>
struct OrderedSteps {
  static constexpr int kRoundPieces = kPieces * kKvSplits;  // pieces of one step of every split

  /// After `placed` pieces: the number of steps that are known not to be the last of their KV
  /// split.
  TESSERA_HD static constexpr int followed(int placed) {
    return max_of((placed + kRoundPieces - 1) / kRoundPieces - 1, 0) * kKvSplits;
  }
  /// The number of steps of a tile with `placed` pieces.
  TESSERA_HD static constexpr int count(int placed) { return followed(placed) + kKvSplits; }
};

/// Steps for row groups that have separate lists: a step pairs two pieces that the same set of row
/// groups needs. Steps are numbered in the order of their first pieces. A step that waits for its
/// second piece holds up the steps after it; before too many are held up, it is published with one
/// piece.
///
/// A warp looks up 32 pieces at a time, one per lane. Each lane also keeps the state of one set of
/// row groups, the set whose bitmask is the lane's number: `lacking` is the step of that set that
/// waits for a second piece, or -1.
struct PairedSteps {
  int lacking = -1, begun = 0;  // begun: the number of steps so far, equal in all lanes

  /// Whether this lane's piece begins a step. `before`: the lower lanes whose pieces have the same
  /// set of row groups as this lane's piece. `open`: `lacking` of that set.
  TESSERA_HD static bool begins(std::uint32_t before, int open) {
    return (count_lanes(before) + (open >= 0)) % 2 == 0;
  }
  /// The step that a lane's piece begins. `beginning`: the lanes whose pieces begin a step.
  TESSERA_HD int step_of(int lane, std::uint32_t beginning) const {
    return begun + count_lanes(beginning & lanes_below(lane));
  }
  /// The slot of this lane's piece; a step has two slots.
  TESSERA_HD int place(int lane, std::uint32_t before, int open, bool begins_step,
                       std::uint32_t beginning) const {
    const int step = begins_step ? step_of(lane, beginning)
                     : before    ? step_of(last_lane(before), beginning)
                                 : open;
    return step * 2 + !begins_step;
  }
  /// Updates the state after 32 pieces. `own`: the lanes whose pieces have this lane's set.
  TESSERA_HD void advance(std::uint32_t own, std::uint32_t beginning) {
    if (own != 0) {
      const int last = last_lane(own);
      lacking = (beginning >> last & 1) != 0 ? step_of(last, beginning) : -1;
    }
    begun += count_lanes(beginning);
  }
  /// Whether the step of this lane's set must not wait for its second piece any longer.
  TESSERA_HD constexpr bool waits_too_long(int max_waiting) const {
    return lacking >= 0 && begun - lacking > max_waiting;
  }
  /// Completes the step of this lane's set with a piece that does not exist; returns its slot.
  TESSERA_HD constexpr int pad() {
    const int place = lacking * 2 + 1;
    lacking = -1;
    return place;
  }
  /// The number of steps that can be published: complete, and not the last so far. `first_lacking`:
  /// the minimum of `lacking` over all lanes as an unsigned number.
  TESSERA_HD constexpr int complete(std::uint32_t first_lacking) const {
    return static_cast<int>(min_of(first_lacking, static_cast<std::uint32_t>(begun - 1)));
  }
};

/// In a walk over a range of keys: the first and the last step in which a consumer's rows see a
/// key. A consumer that sees no key gets the nearest step. Without kJoinsLater, the first is 0. In
/// other walks the first is 0 and the last kOutOfBounds: every step is needed.
template <int kKeys, bool kJoinsLater, int kRowGroups, int kRows>
TESSERA_HD constexpr void find_own_steps(const AttentionWalk& walk, const TileDescriptor& tile,
                                         const ListPieces<kRowGroups, kRows>& pieces, int consumer,
                                         int& first_needed, int& last_needed) {
  first_needed = 0;
  last_needed = kOutOfBounds;
  const int first = tile.first_query + walk.pack.quotient(consumer * kRows);
  const int last =
      tile.first_query + walk.pack.quotient(min_of((consumer + 1) * kRows, walk.rows()) - 1);
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

/// Sets, in the flags of a step's first piece, which consumers need the step, and for which of them
/// it is the last. `last_of_tile`: whether the step is the last one of the tile.
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
