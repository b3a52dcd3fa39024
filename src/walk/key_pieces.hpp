#pragma once

#include <cstdint>

#include "src/walk/compose_mask.hpp"
#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"
#include "src/walk/tile_walk.hpp"

// The pieces of keys that an output tile visits, by number: a range of keys, the blocks of one
// list, or the union of the lists of its row groups.
namespace tessera::planning {

/// The offset that means "no element mask". Strides, and so offsets, may be negative.
inline constexpr std::int64_t kNoBits = INT64_MIN;

/// All keys of a piece, as a bitmask.
inline constexpr std::uint64_t kAllKeys = ~std::uint64_t{0};

/// The maximum number of block columns for tiles with several lists: such a tile keeps one bit per
/// block column and row group in shared memory.
inline constexpr int kMaxRowGroupBlocks = 1 << 16;

/// A piece of kKeyPiece keys.
struct Piece {
  int key = kOutOfBounds;       // the first key
  std::int64_t bits = kNoBits;  // offset of its element mask
  bool visited = false;
  std::uint8_t masked = 0;  // bitmask of the row groups for which some pairs are hidden
  // For row groups with separate lists: the bitmask of the groups that need the piece, and the
  // range of keys that their queries see.
  std::uint8_t row_groups = 0;
  int begin = kOutOfBounds, end = 0;
  // Keys inside this range that no query sees, if a middle row group does not need the piece.
  int gap_begin = 0, gap_end = 0;
};

/// The location of a piece in K and V: its first row. Masks use `Piece::key`, the key's index in
/// the sequence, instead.
struct KeyPlace {
  std::int32_t row, batch;  // for packed sequences, the batch is 0
};
TESSERA_HD constexpr KeyPlace place_of(const AttentionWalk& walk, const TileDescriptor& tile,
                                       const Piece& piece) {
  return {tile.kv_begin + piece.key, walk.sequences.kv_offsets.values ? 0 : tile.batch};
}

/// The keys of `seen` that some query attends to under the element mask of a composed block, among
/// the queries of the block row that begins with query `first`. Without such a mask, all of `seen`.
TESSERA_HD constexpr std::uint64_t met_by_composed(const AttentionWalk& walk,
                                                   const TileDescriptor& tile, const Piece& piece,
                                                   int first, std::uint64_t seen) {
  if (!walk.composed || piece.bits == kNoBits) return seen;
  const ComposedBits bits{walk.composed + piece.bits / sizeof(std::uint64_t), walk.words,
                          walk.word_queries.divisor};
  const int row_end = first + static_cast<int>(walk.mask.block_q);
  const int end = row_end < tile.q_length ? row_end : tile.q_length;
  return seen & bits.met(tile.sight, first, end, piece.key);
}

/// The pieces of a tile with one list, or without a mask: the blocks of the list, or the range of
/// keys that the queries see. A row group is the rows of one consumer. All lanes of a warp call
/// `start`, then all look up pieces.
template <int kRowGroups, int kRows>
struct ListPieces {
  struct RowGroup {
    std::int32_t all_begin, all_end;  // keys that all queries of the group see
  };
  RowGroup row_groups[kRowGroups];
  ListRow full, partial, bit_tiles;
  std::int64_t first_bits;          // offset of the tile's first query in an element mask
  std::int32_t any_begin, any_end;  // keys that some query of the tile sees
  std::int32_t per_block;           // pieces per list entry; 0: a range of keys
  std::int32_t begin, count;        // this CTA's share: first piece number, number of pieces
  bool reversed;                    // pieces are numbered in reverse order

  TESSERA_HD constexpr void start(const AttentionWalk& walk, const TileDescriptor& tile, int lane) {
    if (lane < kRowGroups) start_row_group(walk, tile, lane);
    if (lane != 0) return;
    const int last_query = min_of(tile.first_query + walk.queries, tile.q_length) - 1;
    any_begin = tile.sight.begin_of(tile.first_query);
    any_end = tile.sight.end_of(last_query);
    if (any_end <= any_begin) any_begin = any_end = 0;  // no piece
    per_block = static_cast<int>(walk.mask.block_kv) / kKeyPiece;
    int first = 0, all_pieces = 0;
    if (per_block > 0) {
      const std::int64_t row = tile.first_query / static_cast<int>(walk.mask.block_q);
      const int set = tile.head / static_cast<int>(walk.mask.group);
      full = walk.mask.full.row(tile.batch, set, row);
      partial = walk.mask.partial.row(tile.batch, set, row);
      bit_tiles = walk.mask.partial.row_of(walk.mask.bit_tile, walk.mask.bit_tile_strides,
                                           tile.batch, set, row);
      first_bits = walk.bits_of(tile.first_query);
      all_pieces = static_cast<int>(full.size + partial.size) * per_block;
    } else if (any_end > any_begin) {
      first = any_begin / kKeyPiece;
      all_pieces = (any_end + kKeyPiece - 1) / kKeyPiece - first;
    }
    const int from = tile.share.begin(all_pieces, walk.step_pieces);
    begin = first + from;
    count = tile.share.end(all_pieces, walk.step_pieces) - from;
    reversed = tile.reversed;
  }

  /// Piece `number` of this CTA's share; none from `count` on. Valid after all lanes called start.
  TESSERA_HD constexpr Piece at(const AttentionWalk& walk, int number) const {
    Piece piece;
    if (number >= count) return piece;
    number = begin + (reversed ? count - 1 - number : number);
    if (per_block == 0) {
      piece.key = number * kKeyPiece;
      piece.visited = true;
    } else {
      piece.visited = of_list(walk, number, piece);
    }
    const int end = piece.key + kKeyPiece;
    piece.visited = piece.visited && piece.key < any_end && end > any_begin;
    TESSERA_UNROLL()
    for (int g = 0; g < kRowGroups; ++g)
      if (piece.bits != kNoBits || piece.key < row_groups[g].all_begin ||
          end > row_groups[g].all_end)
        piece.masked |= 1 << g;
    return piece;
  }

  /// The keys of a visited piece that some query of the tile sees.
  TESSERA_HD constexpr std::uint64_t kept(const AttentionWalk& walk, const TileDescriptor& tile,
                                          const Piece& piece) const {
    const int key = piece.key;
    return met_by_composed(walk, tile, piece, tile.first_query,
                           bits_between(any_begin - key, any_end - key));
  }

 private:
  TESSERA_HD constexpr void start_row_group(const AttentionWalk& walk, const TileDescriptor& tile,
                                            int g) {
    const int first = tile.first_query + walk.pack.quotient(g * kRows);
    const int last =
        tile.first_query + walk.pack.quotient(min_of((g + 1) * kRows, walk.rows()) - 1);
    row_groups[g].all_begin = tile.sight.begin_of(min_of(last, tile.q_length - 1));
    row_groups[g].all_end = tile.sight.end_of(min_of(first, tile.q_length - 1));
  }

  TESSERA_HD constexpr bool of_list(const AttentionWalk& walk, int number, Piece& piece) const {
    const int entry = number / per_block, within = number % per_block;
    const auto in_full = static_cast<int>(full.size);
    const std::int64_t block = entry < in_full ? full[entry] : partial[entry - in_full];
    if (block < 0 || block >= walk.mask.kv_blocks) return false;
    piece.key = (static_cast<int>(block) * per_block + within) * kKeyPiece;
    if (entry >= in_full && bit_tiles.indices) {
      const std::int64_t tile = bit_tiles[entry - in_full];
      if (tile < 0 || tile >= walk.mask.bit_tiles) return false;
      // NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result): within a block
      piece.bits = first_bits + tile * walk.bits_tile + within * (kKeyPiece / 8) * walk.bits_byte;
    }
    return true;
  }
};

/// The pieces of a tile whose row groups (the rows of one or two consumers) have separate lists.
/// The first numbers are the range of keys that the queries see; a piece in it is visited if the
/// list of some row group contains its block. After the range, group by group, come the pieces of
/// blocks with an element mask, which groups do not share. A piece that several groups need is
/// loaded once, and each consumer skips the pieces that are not in its list.
template <int kRowGroups, int kRows>
struct RowGroupPieces {
  struct RowGroup {
    ListRow full, partial, bit_tiles;
    std::int32_t any_begin, any_end;  // keys that some query of the group sees
    std::int32_t all_begin, all_end;  // keys that all of them see
    std::int32_t masked;              // number of pieces of blocks with an element mask
    std::int64_t first_bits;          // offset of the group's first query in these masks
  };
  RowGroup row_groups[kRowGroups];
  std::int32_t per_block;        // pieces per block
  std::int32_t first, in_range;  // the range: first piece, number of pieces
  std::int32_t begin, count;     // this CTA's share: first piece number, number of pieces
  // Per row group, a bitmask of the block columns in its lists, as lists may be in any order.
  std::uint32_t named[kRowGroups][kMaxRowGroupBlocks / 32];

  /// All lanes call this, then `name_columns`. Returns the number of block columns.
  TESSERA_HD constexpr int start_row_groups(const AttentionWalk& walk, const TileDescriptor& tile,
                                            int lane) {
    if (lane < kRowGroups) start_row_group(walk, tile, lane);
    const auto columns = static_cast<int>(walk.mask.kv_blocks);
    TESSERA_UNROLL()
    for (int g = 0; g < kRowGroups; ++g)
      for (int word = lane; word * 32 < columns; word += kWarp) named[g][word] = 0;
    return columns;
  }

  /// All lanes call this. It sets the bits of the columns in the lists; `set(word, bits)` sets bits
  /// of a word atomically, as other lanes may set bits of the same word.
  TESSERA_EITHER_SIDE
  template <class SetBits>
  TESSERA_HD constexpr void name_columns(const AttentionWalk& walk, const TileDescriptor& tile,
                                         int columns, int lane, const SetBits& set) {
    if (lane == 0) number_pieces(walk, tile);
    TESSERA_UNROLL()
    for (int g = 0; g < kRowGroups; ++g) {
      name_columns(g, row_groups[g].full, columns, lane, set);
      if (!row_groups[g].bit_tiles.indices)
        name_columns(g, row_groups[g].partial, columns, lane, set);
    }
  }

  /// Piece `number` of this CTA's share; none from `count` on. Valid after all lanes called
  /// name_columns.
  TESSERA_HD constexpr Piece at(const AttentionWalk& walk, int number) const {
    Piece piece;
    if (number >= count) return piece;
    number += begin;
    if (number < in_range) {
      const int place = first + number, block = place / per_block;
      piece.key = place * kKeyPiece;
      TESSERA_UNROLL()
      for (int g = 0; g < kRowGroups; ++g)
        if (named[g][block / 32] >> block % 32 & 1) add(piece, g);
    } else {
      number -= in_range;
      int group = 0;
      while (group < kRowGroups - 1 && number >= row_groups[group].masked)
        number -= row_groups[group++].masked;
      if (find_masked(walk, group, number, piece)) add(piece, group);
    }
    piece.visited = piece.row_groups != 0;
    return piece;
  }

  /// Drops the first `pieces` pieces of the share.
  TESSERA_HD constexpr void skip(int pieces) { begin += pieces, count -= pieces; }

  /// The keys of a visited piece that some query of its row groups sees.
  TESSERA_HD constexpr std::uint64_t kept(const AttentionWalk& walk, const TileDescriptor& tile,
                                          const Piece& piece) const {
    const int key = piece.key, first_query = tile.first_query;
    const std::uint64_t seen = bits_between(piece.begin - key, piece.end - key) &
                               ~bits_between(piece.gap_begin - key, piece.gap_end - key);
    // A piece with an element mask belongs to one row group, whose queries are one block row.
    const int group = first_lane(piece.row_groups);
    return met_by_composed(walk, tile, piece,
                           first_query + group * static_cast<int>(walk.mask.block_q), seen);
  }

 private:
  TESSERA_HD constexpr void start_row_group(const AttentionWalk& walk, const TileDescriptor& tile,
                                            int g) {
    RowGroup& group = row_groups[g];
    const int query = tile.first_query + g * kRows;
    const int last_query = min_of(query + kRows, tile.q_length) - 1;
    group = {};
    if (query > last_query) return;
    const int any_begin = tile.sight.begin_of(query), any_end = tile.sight.end_of(last_query);
    if (any_end <= any_begin) return;
    group.any_begin = any_begin;
    group.any_end = any_end;
    group.all_begin = tile.sight.begin_of(last_query);
    group.all_end = tile.sight.end_of(query);
    const std::int64_t row = query / static_cast<int>(walk.mask.block_q);
    const int set = tile.head / static_cast<int>(walk.mask.group);
    group.full = walk.mask.full.row(tile.batch, set, row);
    group.partial = walk.mask.partial.row(tile.batch, set, row);
    group.bit_tiles = walk.mask.partial.row_of(walk.mask.bit_tile, walk.mask.bit_tile_strides,
                                               tile.batch, set, row);
    group.first_bits = walk.bits_of(query);
    if (group.bit_tiles.indices)
      group.masked =
          static_cast<int>(group.partial.size) * static_cast<int>(walk.mask.block_kv / kKeyPiece);
  }

  TESSERA_HD constexpr void number_pieces(const AttentionWalk& walk, const TileDescriptor& tile) {
    per_block = static_cast<int>(walk.mask.block_kv) / kKeyPiece;
    int from = kOutOfBounds, to = 0, all_pieces = 0;
    TESSERA_UNROLL()
    for (int g = 0; g < kRowGroups; ++g) {
      if (row_groups[g].any_end <= row_groups[g].any_begin) continue;
      from = min_of(from, row_groups[g].any_begin / kKeyPiece);
      to = max_of(to, (row_groups[g].any_end + kKeyPiece - 1) / kKeyPiece);
      all_pieces += row_groups[g].masked;
    }
    to = min_of(to, static_cast<int>(walk.mask.kv_blocks) * per_block);
    first = from;
    in_range = max_of(to - from, 0);
    all_pieces += in_range;
    begin = tile.share.begin(all_pieces, walk.step_pieces);
    count = tile.share.end(all_pieces, walk.step_pieces) - begin;
  }

  TESSERA_EITHER_SIDE
  template <class SetBits>
  TESSERA_HD constexpr void name_columns(int g, const ListRow& list, int columns, int lane,
                                         const SetBits& set) {
    const auto size = static_cast<int>(list.size);
    TESSERA_UNROLL(4)
    for (int entry = lane; entry < size; entry += kWarp) {
      const std::int64_t block = list[entry];
      if (block >= 0 && block < columns)
        set(named[g][block / 32], 1u << static_cast<int>(block % 32));
    }
  }

  /// Adds a row group to a piece if any query of the group sees a key of the piece.
  TESSERA_HD constexpr void add(Piece& piece, int g) const {
    const RowGroup& group = row_groups[g];
    const int end = piece.key + kKeyPiece;
    if (piece.key >= group.any_end || end <= group.any_begin) return;
    piece.row_groups |= 1 << g;
    if (piece.bits != kNoBits || piece.key < group.all_begin || end > group.all_end)
      piece.masked |= 1 << g;
    // Row groups are added in ascending order of the keys they see, each range at least a piece
    // wide, so there is at most one gap.
    if (group.any_begin > piece.end && piece.end > 0) {
      piece.gap_begin = piece.end;
      piece.gap_end = group.any_begin;
    }
    piece.begin = min_of(piece.begin, group.any_begin);
    piece.end = max_of(piece.end, group.any_end);
  }

  /// Finds piece `number` among those with an element mask. Returns false if the list's block or
  /// element mask does not exist.
  TESSERA_HD constexpr bool find_masked(const AttentionWalk& walk, int g, int number,
                                        Piece& piece) const {
    const int entry = number / per_block, within = number % per_block;
    const std::int64_t block = row_groups[g].partial[entry];
    std::int64_t bits = 0;
    if constexpr (kRowGroups == 3) {  // FP8: no registers to read both at once
      if (block < 0 || block >= walk.mask.kv_blocks) return false;
      piece.key = (static_cast<int>(block) * per_block + within) * kKeyPiece;
      bits = row_groups[g].bit_tiles[entry];
      if (bits < 0 || bits >= walk.mask.bit_tiles) return false;
    } else {
      bits = row_groups[g].bit_tiles[entry];
      if (block < 0 || block >= walk.mask.kv_blocks || bits < 0 || bits >= walk.mask.bit_tiles)
        return false;
      piece.key = (static_cast<int>(block) * per_block + within) * kKeyPiece;
    }
    // NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result): within a block
    piece.bits = row_groups[g].first_bits + bits * walk.bits_tile +
                 within * (kKeyPiece / 8) * walk.bits_byte;
    // NOLINTEND(bugprone-implicit-widening-of-multiplication-result)
    return true;
  }
};

}  // namespace tessera::planning
