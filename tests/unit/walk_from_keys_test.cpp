// Walks over the queries that see a tile of keys, as the gradients of K and V need them: lists by
// column, walked by the functions that walk over keys.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "src/walk/key_pieces.hpp"
#include "src/walk/views.hpp"
#include "tests/unit/walk_problem.hpp"

namespace tessera::planning {
namespace {

using testing::Bits;
using testing::WalkProblem;

constexpr int kGroupRows = 64;

/// Walks the pieces of queries that tiles of keys visit, through lists by column of blocks.
template <class Pieces, int kRowGroups>
class KeyTiles {
 public:
  static constexpr int kRows = kRowGroups * kGroupRows;
  static constexpr bool kOwnLists = std::is_same_v<Pieces, RowGroupPieces<kRowGroups, kGroupRows>>;

  KeyTiles(WalkProblem& p, const BlockMask& columns) : p_(p) {
    walk_.sequences = sequences_of(p.problem, p.shape);
    if (columns) {
      walk_.mask = view_of(columns, p.q_length, p.shape.heads_per_list());
      walk_.bits_tile = 1;  // the offset of an element mask is the number of its bit tile
      walk_.bits_byte = 0;
    }
    walk_.queries = kRows;
  }

  /// Walks the tiles of one head, each in `parts` shares.
  void run(std::int64_t batch, std::int64_t set, int parts) {
    const Sequence sequence = walk_.sequences.at(batch).from_keys();
    std::vector<Bits> seen(static_cast<std::size_t>(p_.keys(batch)), Bits(p_.queries(batch)));
    for (std::int64_t first = 0; first < sequence.q_length; first += kRows)
      for (int part = 0; part < parts; ++part) {
        TileDescriptor tile{};
        static_cast<SequenceDescriptor&>(tile) = SequenceDescriptor::of(sequence);
        tile.batch = static_cast<int>(batch);
        tile.head = static_cast<int>(set * (p_.heads / p_.sets()));
        tile.first_query = static_cast<int>(first);
        tile.reversed = p_.random.chance(0.5);
        tile.share = {.from = part, .to = part + 1, .of = parts, .part = part, .parts = parts};
        visit(tile, sequence.sight, seen);
        if (::testing::Test::HasFatalFailure()) return;
      }
    for (std::int64_t j = 0; j < p_.keys(batch); ++j)
      for (std::int64_t i = 0; i < p_.queries(batch); ++i)
        ASSERT_EQ(seen[static_cast<std::size_t>(j)][i], p_.sees(batch, set, i, j))
            << "key " << j << ", query " << i;
  }

 private:
  void visit(const TileDescriptor& tile, const Visibility& sight, std::vector<Bits>& seen) {
    static const auto memory = std::make_unique<Pieces>();
    Pieces& pieces = *memory;
    start(pieces, tile);
    const KeyRange used = walk_.sequences.at(tile.batch).sight.used;
    for (int number = 0; number < pieces.count; ++number) {
      const Piece piece = pieces.at(walk_, number);
      if (!piece.visited) continue;
      for (int group = 0; group < kRowGroups; ++group) {
        if (kOwnLists && (piece.row_groups >> group & 1) == 0) continue;
        const bool masked = (piece.masked >> group & 1) != 0;
        bool hides = false, has_rows = false;
        for (int row = group * kGroupRows; row < (group + 1) * kGroupRows; ++row) {
          const int key = tile.first_query + row;
          if (key >= tile.q_length) break;
          const std::uint64_t in_sight = tile.sight.bits_of(key, piece.key);
          has_rows = true;
          hides |= in_sight != kAllKeys;
          if (key < used.begin) continue;
          std::uint64_t bits = masked ? in_sight : kAllKeys;
          if (piece.bits != kNoBits) bits &= element_mask(piece, key);
          ASSERT_TRUE(seen[static_cast<std::size_t>(key)].add(piece.key, bits))
              << "key " << key << ": queries from " << piece.key << " on";
          const KeyRange row_sees = sight.of_row(key);
          ASSERT_EQ(in_sight, bits_between(row_sees.begin - piece.key, row_sees.end - piece.key));
        }
        ASSERT_TRUE(!has_rows || masked == (hides || piece.bits != kNoBits));
      }
    }
  }

  void start(Pieces& pieces, const TileDescriptor& tile) {
    if constexpr (kOwnLists) {
      int columns = 0;
      for (int lane = 0; lane < kWarp; ++lane) columns = pieces.start_row_groups(walk_, tile, lane);
      for (int lane = 0; lane < kWarp; ++lane)
        pieces.name_columns(walk_, tile, columns, lane,
                            [](std::uint32_t& word, std::uint32_t bits) { word |= bits; });
    } else {
      for (int lane = 0; lane < kWarp; ++lane) pieces.start(walk_, tile, lane);
    }
  }

  /// The queries of a piece that a bit tile shows a key to.
  std::uint64_t element_mask(const Piece& piece, int key) const {
    const BlockMask& mask = p_.problem.mask;
    std::uint64_t bits = 0;
    for (int i = 0; i < kKeyPiece; ++i)
      if (p_.in_tile(piece.bits, (piece.key + i) % mask.block_q, key % mask.block_kv))
        bits |= std::uint64_t{1} << i;
    return bits;
  }

  WalkProblem& p_;
  AttentionWalk walk_;
};

/// A walk over the queries that see a tile of keys has the same pairs as the walk over keys.
TEST(WalkFromKeys, SeesTheSamePairs) {
  constexpr Tile kAnyRow{.m = 128, .n = 64, .k = 64, .v = 64};
  constexpr Tile kListRow{.m = 128, .n = 64, .k = 64, .v = 64, .row_groups = 2};
  int listed = 0, own_lists = 0, ranges = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(seed);
    WalkProblem p(seed, seed % 2 == 0 ? kAnyRow : kListRow);
    const BlockMask& mask = p.problem.mask;
    if (mask && (mask.block_q % 64 != 0 || mask.block_kv % 64 != 0)) continue;
    WalkProblem::Columns columns;
    if (mask) columns = p.columns();
    const int parts = static_cast<int>(p.random.pick({1, 1, 2, 3}));
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t set = 0; set < p.sets(); ++set) {
        if (mask && seed % 2 != 0) {
          KeyTiles<RowGroupPieces<2, 64>, 2>(p, columns.mask).run(b, set, parts);
          ++own_lists;
        } else if (mask && mask.block_kv % 128 != 0) {
          KeyTiles<ListPieces<1, 64>, 1>(p, columns.mask).run(b, set, parts);
          ++listed;
        } else {
          KeyTiles<ListPieces<2, 64>, 2>(p, columns.mask).run(b, set, parts);
          ++(mask ? listed : ranges);
        }
        if (HasFatalFailure()) return;
      }
  }
  EXPECT_GT(listed, 500);
  EXPECT_GT(own_lists, 500);
  EXPECT_GT(ranges, 500);
}

}  // namespace
}  // namespace tessera::planning
