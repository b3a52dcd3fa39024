#pragma once

#include <cstdint>

#include "src/walk/compose_mask.hpp"
#include "src/walk/kv_share.hpp"
#include "src/walk/list_walk.hpp"
#include "src/walk/sequence.hpp"
#include "src/walk/walk.hpp"

// The output tiles of attention on a GPU: their order, which thread block takes which, and what a
// tile tells the warps that load and multiply for it.
namespace tessera::planning {

/// Keys per piece: the rows of a TMA box, and the finest granularity of lists.
inline constexpr int kKeyPiece = 64;

/// The position of a piece that does not exist: beyond every tensor, so TMA writes zeros.
inline constexpr std::int32_t kOutOfBounds = 1 << 30;

/// Where a sequence lies in packed tensors, and which keys its queries see.
struct SequenceDescriptor {
  std::int32_t q_begin = 0, q_length = 0, kv_begin = 0;
  NarrowSight sight;

  TESSERA_HD static constexpr SequenceDescriptor of(const Sequence& s) {
    return {static_cast<std::int32_t>(s.q_begin), static_cast<std::int32_t>(s.q_length),
            static_cast<std::int32_t>(s.kv_begin), NarrowSight::of(s.sight)};
  }
};

/// One output tile. Its rows are queries times the heads that are folded into it, heads first: row
/// r is query r / pack of head `head` + r % pack.
struct TileDescriptor : SequenceDescriptor {
  std::int32_t batch, head, kv_head;
  std::int32_t first_query;  // of the tile, inside its sequence
  bool no_more_tiles;        // after the last tile
  bool reversed;             // its list is walked in reverse order
  KvShare share;

  /// Whether the tile has queries from that row on.
  TESSERA_HD constexpr bool reaches(int row, int pack_shift) const {
    return first_query + (row >> pack_shift) < q_length;
  }
};

/// What one thread block can order by length.
inline constexpr std::int64_t kMaxOrderedTiles = 1 << 16;
inline constexpr int kMaxOrderedSequences = 1024;

/// Everything that a kernel's walk depends on.
struct AttentionWalk {
  SequenceView sequences;
  SequenceDescriptor uniform_sequence;  // all sequences, where they are alike and need not be read
  MaskView mask;                        // block_q 0: none
  std::int64_t bits_tile = 0, bits_row = 0, bits_byte = 1;
  const std::uint64_t* composed = nullptr;  // element masks of composed blocks, if any
  int words = 0;                            // per composed block
  SmallDivisor word_queries;                // queries that share a row of an element mask
  int batches = 0, head_groups = 0, pack = 1, pack_shift = 0;
  int group = 1;    // query heads per KV head
  int queries = 0;  // per tile
  int blocks = 0;   // thread blocks
  int tiles_per_head = 0, tiles = 0, section = 1;
  int whole = 0, split_ctas = 0;     // unsplit tiles; CTAs that split the KV of the others
  int step_pieces = 1;               // pieces per step: KV is split at multiples of it
  bool packed_q = false;             // tiles per sequence are counted on the device
  bool longest_last = false;         // later queries see more keys: they go first
  bool reverses_odd_rounds = false;  // odd rounds of tiles walk their lists in reverse
  int row_groups = 1;                // with a list each, per tile
  // What has to be read before the first tile: sequences, or the lists of its walk.
  bool reads_sequences = false, reads_lists = false;
  std::uint64_t tag = 0;               // of the launch, in its counters
  std::uint64_t* next_tile = nullptr;  // counter of dynamic tiles; null: static
  // Where tiles are ordered: the order, followed by the tiles' costs; and a counter of thread
  // blocks that have seen all earlier grids done.
  int* order = nullptr;
  std::uint64_t* grids_seen = nullptr;

  /// Offset of the first query of a tile, or of one of its row groups, in an element mask. Composed
  /// blocks begin with that query.
  TESSERA_HD constexpr std::int64_t bits_of(int query) const {
    return composed ? 0 : query % static_cast<int>(mask.block_q) * bits_row;
  }
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
    // Head groups of a section are adjacent, so that their keys stay in L2.
    const int all = walk.batches * walk.head_groups;
    const int per_section = walk.section * walk.tiles_per_head;
    const int first = number / per_section * walk.section;
    const int wide = min_of(walk.section, all - first);
    const int within = number % per_section;
    const int tile = within / wide, flat = first + within % wide;
    return {flat / walk.head_groups, flat % walk.head_groups,
            walk.longest_last ? walk.tiles_per_head - 1 - tile : tile};
  }

  /// Tile `number` of one packed sequence.
  TESSERA_HD static constexpr TilePlace of_sequence(const AttentionWalk& walk, int batch,
                                                    int tiles_per_head, int number) {
    const int tile = number % tiles_per_head;
    return {batch, number / tiles_per_head, walk.longest_last ? tiles_per_head - 1 - tile : tile};
  }

  /// Beyond the end of the last sequence: of a number that no tile has.
  TESSERA_HD static constexpr TilePlace beyond(const AttentionWalk& walk, int last_batch) {
    return {last_batch, 0, kOutOfBounds / walk.queries};
  }
};

/// Writes what follows from a tile's position and number; its share of keys is there already.
TESSERA_HD constexpr void describe_tile(const AttentionWalk& walk, const TilePlace& place,
                                        int number, TileDescriptor& descriptor) {
  SequenceDescriptor& sequence = descriptor;
  if (walk.reads_sequences) {
    sequence = SequenceDescriptor::of(walk.sequences.at(place.batch));
  } else {
    sequence = walk.uniform_sequence;
  }
  descriptor.batch = place.batch;
  descriptor.head = place.head_group * walk.pack;
  descriptor.kv_head = descriptor.head / walk.group;
  descriptor.first_query = place.tile * walk.queries;
  // What one round of tiles read last is still in L2; what it read first is not.
  descriptor.reversed = walk.reverses_odd_rounds && number / walk.blocks % 2 != 0;
}

/// Hands tiles to one thread block, and then the shares of split tiles.
struct TileCursor {
  std::uint32_t numbers_taken, tiles, steps;  // numbers taken; tiles and steps so far
  std::int32_t number;                        // of the current tile
  std::int32_t split_cta, share_index;        // of split tiles; tiles of its share so far

  TESSERA_HD constexpr void start() { numbers_taken = tiles = steps = split_cta = share_index = 0; }

  /// Returns the next tile's number and writes its share, or returns -1 after the last. `source` is
  /// what only the thread block knows:
  ///   block()                    its index
  ///   wait()                     comes before its first count
  ///   count(walk, limit, begun)  counts dynamic tiles up and returns the count before; `limit`:
  ///                              counts of all blocks; `begun`: this block has counted before
  ///   ordered(walk, next)        the number of the tile that the order puts in the place of
  ///   `next`:
  ///                              walk.order has no entries for the first round
  TESSERA_EITHER_SIDE
  template <class Source>
  TESSERA_HD constexpr int take(const AttentionWalk& walk, const Source& source, KvShare& share) {
    share = {};
    if (share_index > 0 && next_share(walk, share)) return walk.whole + share.tile;
    if (share_index > 0 && !walk.next_tile) return -1;  // static: each block has one share
    const int next = take_number(walk, source);
    if (next < walk.whole) return next;
    split_cta = next - walk.whole;
    share_index = 0;
    return next_share(walk, share) ? walk.whole + share.tile : -1;
  }

 private:
  /// Unsplit tiles come first, then the shares of split tiles.
  TESSERA_EITHER_SIDE
  template <class Source>
  TESSERA_HD constexpr int take_number(const AttentionWalk& walk, const Source& source) {
    const int mine = source.block() + static_cast<int>(numbers_taken++) * walk.blocks;
    if (!walk.next_tile || numbers_taken == 1) return mine;
    // The grid before may use the counter too, or order the tiles.
    if (numbers_taken == 2) source.wait();
    // Each block takes numbers until there is none left, so together they take as many as there
    // are.
    const int numbers = walk.whole + walk.split_ctas;
    const int next = source.count(walk, numbers, numbers_taken > 2) + walk.blocks;
    return walk.order && next < walk.whole ? source.ordered(walk, next) : next;
  }

  TESSERA_HD constexpr bool next_share(const AttentionWalk& walk, KvShare& share) {
    return find_kv_share(walk.tiles - walk.whole, walk.split_ctas, split_cta, share_index++, share);
  }
};

}  // namespace tessera::planning
