#pragma once

#include <cstdint>

#include "src/walk/compose_mask.hpp"
#include "src/walk/divisor.hpp"
#include "src/walk/kv_share.hpp"
#include "src/walk/list_walk.hpp"
#include "src/walk/sequence.hpp"
#include "src/walk/walk.hpp"

// The output tiles of attention on a GPU: their order, their assignment to thread blocks, and the
// tile descriptors that producers and consumers read.
namespace tessera::planning {

/// Keys per piece: the rows of a TMA box. The key blocks of a mask are multiples of it.
inline constexpr int kKeyPiece = 64;

/// The position of a piece that does not exist: outside of every tensor, so TMA fills zeros.
inline constexpr std::int32_t kOutOfBounds = 1 << 30;

/// The rows of a sequence in packed tensors, and the keys that its queries see.
struct SequenceDescriptor {
  std::int32_t q_begin = 0, q_length = 0, kv_begin = 0;
  NarrowSight sight;

  TESSERA_HD static constexpr SequenceDescriptor of(const Sequence& s) {
    return {static_cast<std::int32_t>(s.q_begin), static_cast<std::int32_t>(s.q_length),
            static_cast<std::int32_t>(s.kv_begin), NarrowSight::of(s.sight)};
  }
};

/// An output tile. Its rows are queries times packed heads (GQA packing): row r is query r / pack
/// of head `head` + r % pack. The last rows are empty if the pack does not divide the tile.
struct TileDescriptor : SequenceDescriptor {
  std::int32_t batch, head_group, head, kv_head;
  std::int32_t first_query;  // of the tile, inside its sequence
  bool no_more_tiles;        // after the last tile
  bool reversed;             // its list is walked in reverse order
  KvShare share;

  /// Whether the sequence has a query for row `row` of the tile.
  TESSERA_HD constexpr bool reaches(int row, const SmallDivisor& pack) const {
    return first_query + pack.quotient(row) < q_length;
  }
};

/// Limits for ordering tiles by length, which one thread block does.
inline constexpr std::int64_t kMaxOrderedTiles = 1 << 16;
inline constexpr int kMaxOrderedSequences = 1024;

/// The parameters of an attention kernel's walk.
struct AttentionWalk {
  SequenceView sequences;
  SequenceDescriptor uniform_sequence;  // every sequence, if all are equal (reads_sequences false)
  MaskView mask;                        // block_q 0: no mask
  std::int64_t bits_tile = 0, bits_row = 0, bits_byte = 1;
  const std::uint64_t* composed = nullptr;  // element masks of composed blocks, if any
  int words = 0;                            // per composed block
  SmallDivisor word_queries;                // queries per word of an element mask
  int batches = 0;
  Divisor head_groups;
  SmallDivisor pack;  // heads that are folded into a tile's rows
  Divisor group;      // query heads per KV head
  int queries = 0;    // per tile
  int blocks = 0;     // thread blocks
  int tiles_per_head = 0, tiles = 0;
  Divisor section, tiles_per_section;  // head groups per section
  int whole = 0, split_ctas = 0;       // unsplit tiles; CTAs that share the KV of the other tiles
  int step_pieces = 1;                 // pieces per step; KV is split at multiples of it
  bool packed_q = false;               // the device counts the tiles per sequence
  bool longest_last = false;           // later queries see more keys, so their tiles go first
  bool reverses_odd_rounds = false;    // odd rounds of tiles walk their lists in reverse
  int row_groups = 1;                  // row groups with separate lists, per tile
  // What a thread block reads from memory before its first load: the sequences (pages come with
  // lengths), or what its steps need: lists of the mask, factors of some rows of keys.
  bool reads_sequences = false, reads_for_steps = false;
  std::uint64_t tag = 0;               // tag of the launch, for its counters
  std::uint64_t* next_tile = nullptr;  // counter of dynamically scheduled tiles; null: static
  // If tiles are ordered by cost: the order, followed by the costs of the tiles, and a counter of
  // thread blocks for which all earlier grids are complete.
  int* order = nullptr;
  std::uint64_t* grids_seen = nullptr;

  /// The offset, in an element mask, of the first query of a tile or row group. It is 0 for
  /// composed blocks, which begin with that query.
  TESSERA_HD constexpr std::int64_t bits_of(int query) const {
    return composed ? 0 : query % static_cast<int>(mask.block_q) * bits_row;
  }
  /// The rows of a tile that hold queries.
  TESSERA_HD constexpr int rows() const { return queries * pack.divisor; }
  /// Tiles per head of a sequence of packed queries.
  template <class Int>
  TESSERA_HD constexpr int tiles_of(Int q_length) const {
    return static_cast<int>((q_length + queries - 1) / queries);
  }
};

/// The position of a tile.
struct TilePlace {
  int batch, head_group, tile;

  /// Tile `number` of sequences that are not packed.
  TESSERA_HD static constexpr TilePlace of(const AttentionWalk& walk, int number) {
    // Tiles of a section of head groups are adjacent, so that their keys stay in L2.
    const int section = walk.tiles_per_section.quotient(number);
    const int within = number - section * walk.tiles_per_section.divisor;
    const int first = section * walk.section.divisor;
    const int left = walk.batches * walk.head_groups.divisor - first;  // the last section may be
    const bool last = left < walk.section.divisor;                     // narrower
    const int tile = last ? within / left : walk.section.quotient(within);
    const int flat = first + within - tile * (last ? left : walk.section.divisor);
    return {walk.head_groups.quotient(flat), walk.head_groups.rest(flat),
            walk.longest_last ? walk.tiles_per_head - 1 - tile : tile};
  }

  /// Tile `number` of one packed sequence.
  TESSERA_HD static constexpr TilePlace of_sequence(const AttentionWalk& walk, int batch,
                                                    int tiles_per_head, int number) {
    const int tile = number % tiles_per_head;
    return {batch, number / tiles_per_head, walk.longest_last ? tiles_per_head - 1 - tile : tile};
  }

  /// A position after the end of the last sequence, for numbers without a tile.
  TESSERA_HD static constexpr TilePlace beyond(const AttentionWalk& walk, int last_batch) {
    return {last_batch, 0, kOutOfBounds / walk.queries};
  }
};

/// Fills a tile's descriptor from its position and number, except for its KV share.
TESSERA_HD constexpr void describe_tile(const AttentionWalk& walk, const TilePlace& place,
                                        int number, TileDescriptor& descriptor) {
  SequenceDescriptor& sequence = descriptor;
  if (walk.reads_sequences) {
    sequence = SequenceDescriptor::of(walk.sequences.at(place.batch));
  } else {
    sequence = walk.uniform_sequence;
  }
  descriptor.batch = place.batch;
  descriptor.head_group = place.head_group;
  descriptor.head = place.head_group * walk.pack.divisor;
  descriptor.kv_head = walk.group.quotient(descriptor.head);
  descriptor.first_query = place.tile * walk.queries;
  // A reversed walk starts with the keys that the previous round read last: they are still in L2.
  descriptor.reversed = walk.reverses_odd_rounds && number / walk.blocks % 2 != 0;
}

/// Assigns tiles to one thread block: unsplit tiles first, then its shares of split tiles.
struct TileCursor {
  std::uint32_t numbers_taken, tiles, steps;  // numbers taken; tiles and steps so far
  std::int32_t number;                        // number of the current tile
  std::int32_t split_cta, share_index;        // which share of split tiles; tiles of it so far

  TESSERA_HD constexpr void start() { numbers_taken = tiles = steps = split_cta = share_index = 0; }

  /// Returns the number of the next tile and writes its KV share; returns -1 after the last one.
  /// `source` provides what depends on the thread block:
  ///   block()                    its index
  ///   wait()                     waits for earlier grids that use the counter or order tiles;
  ///                              called before the first count
  ///   count(walk, limit, begun)  increments the counter of tiles and returns the previous count;
  ///                              `limit`: the final count of all blocks; `begun`: whether this
  ///                              block has counted before
  ///   ordered(walk, next)        the number of the tile at index `next` of the order; walk.order
  ///                              has no entries for the first round
  TESSERA_EITHER_SIDE
  template <class Source>
  TESSERA_HD constexpr int take(const AttentionWalk& walk, const Source& source, KvShare& share) {
    share = {};
    if (share_index > 0 && next_share(walk, share)) return walk.whole + share.tile;
    if (share_index > 0 && !walk.next_tile) return -1;  // static: one share per thread block
    const int next = take_number(walk, source);
    if (next < walk.whole) return next;
    split_cta = next - walk.whole;
    share_index = 0;
    return next_share(walk, share) ? walk.whole + share.tile : -1;
  }

 private:
  /// Numbers below `whole` are unsplit tiles; the rest are shares of split tiles.
  TESSERA_EITHER_SIDE
  template <class Source>
  TESSERA_HD constexpr int take_number(const AttentionWalk& walk, const Source& source) {
    const int mine = source.block() + static_cast<int>(numbers_taken++) * walk.blocks;
    if (!walk.next_tile || numbers_taken == 1) return mine;
    // The previous grid may still use the counter, or be the one that orders the tiles.
    if (numbers_taken == 2) source.wait();
    // The limit: every block counts until no number is left.
    const int numbers = walk.whole + walk.split_ctas;
    const int next = source.count(walk, numbers, numbers_taken > 2) + walk.blocks;
    return walk.order && next < walk.whole ? source.ordered(walk, next) : next;
  }

  TESSERA_HD constexpr bool next_share(const AttentionWalk& walk, KvShare& share) {
    return find_kv_share(walk.tiles - walk.whole, walk.split_ctas, split_cta, share_index++, share);
  }
};

}  // namespace tessera::planning
