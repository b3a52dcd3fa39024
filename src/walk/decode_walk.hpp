#pragma once

#include <cstdint>

#include "src/walk/key_pieces.hpp"
#include "src/walk/tile_walk.hpp"

// How attention with few queries per sequence divides its work. Every CTA computes its share from
// the real lengths and lists: the pieces of all tiles, one tile after the other, are cut into equal
// shares, so that a CTA's share may begin and end inside of tiles. CTAs with parts of the same tile
// merge their results. If results may not depend on the batch, the length of a tile alone says
// where it is cut, and a CTA takes the parts that begin in its share.
//
// Keys of different heads are neighbours in memory, which gives more if they are read together. So
// the head groups of each sequence are dealt to strands: CTAs next to each other are of different
// strands, and reach the same keys at about the same time. Each strand divides its own tiles.

// What is seldom needed is kept out of the code around its calls, so that the usual case has few
// instructions: most of them are fetched for the first time, as each kernel begins.
#if defined(__CUDACC__)
#define TESSERA_SELDOM __noinline__
#else
#define TESSERA_SELDOM
#endif

namespace tessera::planning {

/// The keys of a sequence that its last query sees.
struct UsedKeys {
  std::int32_t begin = 0, end = 0;

  TESSERA_HD constexpr int pieces() const {
    return end > begin ? (end + kKeyPiece - 1) / kKeyPiece - begin / kKeyPiece : 0;
  }
};

/// The walk, and how its head groups share lists.
struct DecodeWalk : AttentionWalk {
  Divisor sets{};               // of lists per sequence; without a mask 1
  Divisor groups_per_strand{};  // head groups that share a set, and a strand
  Divisor min_units{};          // per CTA
  Divisor strands{};
  Divisor page{};  // keys per page
  int ctas_per_strand = 1, tiles_per_strand = 0;
  // The usual case, in which a kernel begins soonest: each sequence's queries are one tile per head
  // group, and its last query is aligned with the last used key and sees all of them.
  // `uniform_sequence` is then one that uses all of its keys, and `reads_sequences` false.
  bool sees_all_used = false;
  // Results that do not depend on the batch: the minimum of pieces per part, and the maximum of
  // parts per tile. 0: tiles are cut where the shares of CTAs end.
  int part_pieces = 0, max_parts = 1;

  /// The used keys of a sequence, if `sees_all_used`.
  TESSERA_HD constexpr UsedKeys used_keys(int batch) const {
    const std::int64_t all = sequences.kv_length;
    return {static_cast<std::int32_t>(clamp_to(sequences.kv_begin.at(batch, 0), 0, all)),
            static_cast<std::int32_t>(clamp_to(sequences.kv_end.at(batch, all), 0, all))};
  }
  /// Fills a tile's descriptor from its position, except for its KV share.
  TESSERA_HD constexpr void describe(const TilePlace& place, TileDescriptor& descriptor) const {
    if (reads_sequences) return describe_seldom(place, descriptor);
    describe_tile(*this, place, 0, descriptor);
    if (!sees_all_used) return;
    const UsedKeys used = used_keys(place.batch);
    descriptor.sight.right += used.end - descriptor.sight.end;
    descriptor.sight.begin = used.begin;
    descriptor.sight.end = used.end;
  }
  TESSERA_SELDOM
  TESSERA_HD constexpr void describe_seldom(const TilePlace& place,
                                            TileDescriptor& descriptor) const {
    describe_tile(*this, place, 0, descriptor);
  }

  /// The first head group of a set that a strand has.
  TESSERA_HD constexpr int first_group(int set, int strand) const {
    return (set * strands.divisor + strand) * groups_per_strand.divisor;
  }
  /// One entry per sequence and set of lists: its head groups have tiles with equal walks.
  TESSERA_HD constexpr int entries() const { return batches * sets.divisor; }

  /// The pieces of each part of a tile, except the last one. For fixed parts only.
  TESSERA_HD constexpr int pieces_per_part(int pieces) const {
    return max_of(part_pieces, (pieces + max_parts - 1) / max_parts);
  }
  /// The steps of a part. The teams of a CTA take steps in turn; a fixed part begins with the first
  /// team, so parts before it are filled up with steps without keys.
  template <int kTeams>
  TESSERA_HD constexpr int steps_of(const KvShare& share) const {
    const int steps = share.to - share.from;
    return part_pieces > 0 ? (steps + kTeams - 1) / kTeams * kTeams : steps;
  }
  /// The number of a tile, below `tiles`, even if offsets are not valid.
  TESSERA_HD constexpr int number_of(const TilePlace& place) const {
    if (!packed_q)
      return (place.batch * head_groups.divisor + place.head_group) * tiles_per_head + place.tile;
    const auto first = static_cast<int>(sequences.at(place.batch).q_begin) / queries;
    return place.head_group * tiles_per_head + first + place.batch + place.tile;
  }
  /// The place of a part's partial result.
  TESSERA_HD constexpr std::int64_t slot(const KvShare& share, int part) const;
};

/// The unit of work is one piece of keys. What a tile takes besides its pieces is one unit more,
/// which lies behind them. So a tile without keys belongs to a share too.
TESSERA_HD constexpr int units_of(int pieces) { return pieces + 1; }

/// A tile, found by one of its units.
struct DecodeTile {
  TilePlace place{};
  int pieces = 0;
  std::int64_t begin = 0;  // its first unit, counted from the first unit of its entry
};

/// The tiles of a strand in the order in which they are divided: by sequence, set of lists, head
/// group, and place in the sequence. `kRows`: rows of a tile.
template <int kRows>
struct DecodeTiles {
  const DecodeWalk& walk;
  int strand = 0;

  TESSERA_HD constexpr int per_head(int batch) const {
    return walk.packed_q ? walk.tiles_of(walk.sequences.at(batch).q_length) : walk.tiles_per_head;
  }
  TESSERA_HD constexpr int pieces(const TilePlace& place) const {
    if (walk.sees_all_used) return walk.used_keys(place.batch).pieces();
    TileDescriptor descriptor{};
    describe_tile(walk, place, 0, descriptor);
    ListPieces<1, kRows> pieces{};
    pieces.start(walk, descriptor, 0);
    return pieces.count;
  }
  /// Whether every entry's tiles have one list, whose size alone says how many pieces they have.
  TESSERA_HD constexpr bool have_one_list() const {
    return walk.mask.block_q != 0 && !walk.packed_q && walk.tiles_per_head == 1;
  }
  /// The units of an entry, if tiles have one list. It is short, so that a thread reads the sizes
  /// of several lists at once.
  TESSERA_HD constexpr std::int64_t units_of_list(int entry) const {
    const int batch = walk.sets.quotient(entry), set = walk.sets.rest(entry);
    const auto blocks = static_cast<int>(walk.mask.full.row(batch, set, 0).size +
                                         walk.mask.partial.row(batch, set, 0).size);
    const int pieces = blocks * (static_cast<int>(walk.mask.block_kv) / kKeyPiece);
    return std::int64_t{units_of(pieces)} * walk.groups_per_strand.divisor;
  }
  /// The units of an entry.
  TESSERA_HD constexpr std::int64_t units(int entry) const {
    if (!walk.sees_all_used) return units_seldom(entry);
    return std::int64_t{units_of(walk.used_keys(entry).pieces())} * walk.groups_per_strand.divisor;
  }
  /// The tile that contains unit `unit` of an entry, which has `units`.
  TESSERA_HD constexpr DecodeTile find(int entry, std::int64_t unit, std::int64_t units) const {
    const std::int64_t of_head = walk.groups_per_strand.quotient(units);
    const std::int64_t group = of_head > 0 ? unit / of_head : 0;
    DecodeTile found;
    found.begin = group * of_head;
    if (walk.packed_q || walk.tiles_per_head > 1) {
      find_seldom(entry, static_cast<int>(group), unit, found);
      return found;
    }
    const int set = walk.sets.rest(entry);
    found.place = {walk.sets.quotient(entry),
                   walk.first_group(set, strand) + static_cast<int>(group), 0};
    found.pieces = static_cast<int>(of_head - units_of(0));
    return found;
  }

 private:
  TESSERA_SELDOM
  TESSERA_HD constexpr std::int64_t units_seldom(int entry) const {
    const int batch = walk.sets.quotient(entry),
              group = walk.first_group(walk.sets.rest(entry), strand);
    const int tiles = per_head(batch);
    std::int64_t units = 0;
    for (int tile = 0; tile < tiles; ++tile) units += units_of(pieces({batch, group, tile}));
    return units * walk.groups_per_strand.divisor;
  }
  /// `found.begin`: the first unit of the head group.
  TESSERA_SELDOM
  TESSERA_HD constexpr void find_seldom(int entry, int group, std::int64_t unit,
                                        DecodeTile& found) const {
    const int batch = walk.sets.quotient(entry);
    const int tiles = per_head(batch);
    found.place = {batch, walk.first_group(walk.sets.rest(entry), strand) + group, 0};
    while (true) {
      found.pieces = pieces(found.place);
      const std::int64_t end = found.begin + units_of(found.pieces);
      if (unit < end || found.place.tile + 1 >= tiles) return;
      found.begin = end;
      ++found.place.tile;
    }
  }
};

/// The pieces of a part of a tile. All lanes of a warp call `start`, then all look up pieces.
template <int kRows>
struct DecodePieces : ListPieces<1, kRows> {
  TESSERA_HD constexpr void start(const DecodeWalk& walk, const TileDescriptor& tile, int lane) {
    if (walk.mask.block_q != 0) return start_lists(walk, tile, lane);
    if (lane != 0) return;
    const int last_query = min_of(tile.first_query + walk.queries, tile.q_length) - 1;
    this->any_begin = tile.sight.begin_of(tile.first_query);
    this->any_end = max_of(tile.sight.end_of(last_query), this->any_begin);
    this->row_groups[0] = {tile.sight.begin_of(last_query), tile.sight.end_of(tile.first_query)};
    this->begin = this->any_begin / kKeyPiece + tile.share.from;
    this->count = tile.share.to - tile.share.from;
  }
  /// Looks up a piece of the part, and which of its keys some query of the tile sees.
  TESSERA_HD constexpr void look_up(const DecodeWalk& walk, const TileDescriptor& tile, int number,
                                    Piece& piece, std::uint64_t& kept) const {
    if (walk.mask.block_q != 0) return look_up_list(walk, tile, number, piece, kept);
    if (number >= this->count) return;
    const int key = (this->begin + number) * kKeyPiece;
    piece.key = key;
    piece.visited = true;
    kept = bits_between(this->any_begin - key, this->any_end - key);
    piece.masked =
        key < this->row_groups[0].all_begin || key + kKeyPiece > this->row_groups[0].all_end;
  }

 private:
  TESSERA_SELDOM
  TESSERA_HD constexpr void start_lists(const DecodeWalk& walk, const TileDescriptor& tile,
                                        int lane) {
    ListPieces<1, kRows>::start(walk, tile, lane);
  }
  TESSERA_SELDOM
  TESSERA_HD constexpr void look_up_list(const DecodeWalk& walk, const TileDescriptor& tile,
                                         int number, Piece& piece, std::uint64_t& kept) const {
    piece = this->at(walk, number);
    if (piece.visited) kept = this->kept(walk, tile, piece);
  }
};

/// Equal shares of all units of a strand: share i begins at unit i * units / ctas. It belongs to
/// CTA i of the strand, which is CTA i * strands + strand of all.
struct DecodeShares {
  std::int64_t units = 0, each = 0;  // each: units / ctas
  std::uint32_t rest = 0;            // units % ctas
  int ctas = 1;                      // CTAs with a share; the other ones have nothing to do
  int strands = 1, strand = 0;

  /// A share that ends one tile and begins another takes longer than its units. So if few CTAs are
  /// left over, all of `tiles` have the same number of CTAs: shares end where equal tiles do.
  TESSERA_HD static constexpr DecodeShares of(std::int64_t units, int blocks,
                                              const Divisor& min_units, int tiles) {
    constexpr int kLeftOver = 8;  // one of so many CTAs
    const std::int64_t most = min_units.quotient(units);
    int ctas = most < 1 ? 1 : most < blocks ? static_cast<int>(most) : blocks;
    if (tiles > 0 && tiles <= ctas && ctas % tiles * kLeftOver <= ctas) ctas -= ctas % tiles;
    const std::int64_t each = units / ctas;
    return {units, each, static_cast<std::uint32_t>(units - each * ctas), ctas};
  }
  TESSERA_HD constexpr std::int64_t begin(int cta) const {
    if (cta >= ctas) return units;
    return each * cta + rest * static_cast<std::uint32_t>(cta) / static_cast<std::uint32_t>(ctas);
  }
  TESSERA_HD constexpr int cta_of(std::int64_t unit) const {
    return static_cast<int>(((unit + 1) * ctas - 1) / units);
  }

  /// The shares of a strand with this many units.
  TESSERA_HD static constexpr DecodeShares of_strand(const DecodeWalk& walk, int strand,
                                                     std::int64_t units) {
    DecodeShares shares = of(units, walk.ctas_per_strand, walk.min_units, walk.tiles_per_strand);
    shares.strands = walk.strands.divisor;
    shares.strand = strand;
    return shares;
  }

  /// The share of a CTA of the strand in a tile whose first unit is `begins`; false if it has none.
  /// A part of a tile is counted at `share.tile`, the CTA of all with the tile's first part.
  TESSERA_HD constexpr bool find(int cta, std::int64_t begins, int pieces, KvShare& share) const {
    const std::int64_t from = max_of(begin(cta), begins);
    const std::int64_t to = min_of(begin(cta + 1), begins + max_of(pieces, 1));
    if (from >= to) return false;
    share = {};
    if (pieces == 0) {
      share.to = 0;
      return true;
    }
    share.from = static_cast<std::int32_t>(from - begins);
    share.to = static_cast<std::int32_t>(to - begins);
    share.of = pieces;
    const int first = cta_of(begins);
    share.tile = first * strands + strand;
    share.part = cta - first;
    share.parts = cta_of(begins + pieces - 1) - first + 1;
    return true;
  }

  /// The place of a part's partial result. A CTA has at most one part of a tile that begins in an
  /// earlier share, and one of a tile that ends in a later share.
  TESSERA_HD static constexpr int slot(const KvShare& share, int part, int strands) {
    return 2 * (share.tile + part * strands) + (part == 0 ? 1 : 0);
  }
  static constexpr std::int64_t slots(std::int64_t blocks) { return 2 * blocks; }
};

TESSERA_HD constexpr std::int64_t DecodeWalk::slot(const KvShare& share, int part) const {
  if (part_pieces == 0) return DecodeShares::slot(share, part, strands.divisor);
  return static_cast<std::int64_t>(share.tile) * max_parts + part;
}

/// The parts of a tile that a CTA computes, in order.
class TileParts {
 public:
  /// `begins`: the tile's first unit, of all units of the strand. `cta`: of the strand.
  TESSERA_HD constexpr TileParts(const DecodeWalk& walk, const DecodeShares& shares, int cta,
                                 std::int64_t begins, const DecodeTile& tile)
      : walk_(walk), tile_(tile) {
    fixed_ = walk.part_pieces > 0 && tile.pieces > 0;
    if (!fixed_) {
      end_ = shares.find(cta, begins, tile.pieces, found_) ? 1 : 0;
      return;
    }
    per_part_ = walk.pieces_per_part(tile.pieces);
    // Part p begins at piece p * per_part.
    const auto parts_before = [&](std::int64_t piece) {
      const std::int64_t within = clamp_to(piece, 0, tile.pieces);
      return static_cast<int>((within + per_part_ - 1) / per_part_);
    };
    at_ = parts_before(shares.begin(cta) - begins);
    end_ = parts_before(shares.begin(cta + 1) - begins);
    found_.of = tile.pieces;
    found_.parts = parts_before(tile.pieces);
    found_.tile = walk.number_of(tile.place);
  }

  /// Stores the next part in `share`; returns false after the last one.
  TESSERA_HD constexpr bool next(KvShare& share) {
    if (at_ >= end_) return false;
    share = found_;
    if (fixed_) {
      share.part = at_;
      share.from = at_ * per_part_;
      share.to = min_of(share.from + per_part_, tile_.pieces);
    }
    ++at_;
    return true;
  }

 private:
  const DecodeWalk& walk_;
  const DecodeTile& tile_;
  KvShare found_{};
  bool fixed_ = false;
  int per_part_ = 0, at_ = 0, end_ = 0;
};

/// The boxes of a piece in memory: one for contiguous keys and in pages of 64 keys or more, else
/// one per page.
inline constexpr int kMaxBoxes = 8;
struct PieceBoxes {
  int row = 0;                       // in the sequences' rows, or in the page
  int batch[kMaxBoxes] = {};         // or page; -1: none, so the copy gives zeros
  std::uint64_t present = kAllKeys;  // keys that are in memory, a bit each

  /// `seen`: the keys of the piece that some query sees. Pages without any are not loaded.
  TESSERA_HD static constexpr PieceBoxes of(const DecodeWalk& walk, const PageView& pages,
                                            const TileDescriptor& tile, const Piece& piece,
                                            int box_rows, std::uint64_t seen) {
    PieceBoxes boxes;
    if (!pages.table) {
      const KeyPlace place = place_of(walk, tile, piece);
      boxes.row = place.row;
      boxes.batch[0] = place.batch;
      return boxes;
    }
    // The piece is inside one page, or consists of whole pages.
    const int page = walk.page.quotient(piece.key);
    boxes.row = piece.key - page * walk.page.divisor;
    const std::int64_t row = tile.batch * pages.batch_stride + page * pages.entry_stride;
    const auto keys_of = [&](int box) {
      return bits_between(box * box_rows, (box + 1) * box_rows);
    };
    // Reads all entries before the first is used, so that their latencies overlap.
    TESSERA_UNROLL()
    for (int box = 0; box < kMaxBoxes; ++box) {
      if (box * box_rows >= kKeyPiece) break;
      const bool wanted = (seen & keys_of(box)) != 0 && page + box < pages.max_pages;
      boxes.batch[box] = wanted ? pages.table[row + box * pages.entry_stride] : -1;
    }
    TESSERA_UNROLL()
    for (int box = 0; box < kMaxBoxes; ++box) {
      if (box * box_rows >= kKeyPiece) break;
      if (boxes.batch[box] >= 0 && boxes.batch[box] < pages.pages) continue;
      boxes.batch[box] = -1;
      boxes.present &= ~keys_of(box);
    }
    return boxes;
  }
};

}  // namespace tessera::planning
