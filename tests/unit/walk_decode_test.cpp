// How decode rows divide and walk their work, CTA by CTA, against brute force: each pair that a
// query sees is computed once, and no other pair; parts and their slots fit together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "src/kernels/cuda/sm90/decode/plan.hpp"
#include "src/kernels/cuda/sm90/decode/rows.hpp"
#include "src/walk/decode_walk.hpp"
#include "src/walk/views.hpp"
#include "tests/unit/compose_rows.hpp"
#include "tests/unit/walk_problem.hpp"

namespace tessera::planning {
namespace {

using testing::WalkProblem;

constexpr int kSmCounts[] = {1, 2, 7, 58, 132};

struct Tally {
  std::int64_t pairs = 0, split = 0, empty = 0, composed = 0, masked = 0, idle = 0, many = 0,
               strands = 0, one_list = 0;
};

/// All units of a walk, as the threads of a CTA count them.
template <int kRows>
std::int64_t count_units(const DecodeTiles<kRows>& tiles, Tally& tally) {
  std::int64_t units = 0;
  for (int entry = 0; entry < tiles.walk.entries(); ++entry) {
    units += tiles.units(entry);
    if (!tiles.have_one_list()) continue;
    ++tally.one_list;
    EXPECT_EQ(tiles.units_of_list(entry), tiles.units(entry)) << "entry " << entry;
  }
  return units;
}

struct Part {
  TileDescriptor tile{};
  int pieces = 0;
};

/// The parts of tiles that a CTA takes, as the producer warp finds them.
template <int kRows>
std::vector<Part> parts_of(const DecodeTiles<kRows>& tiles, const DecodeShares& shares, int cta) {
  std::vector<Part> parts;
  const std::int64_t end = shares.begin(cta + 1);
  std::int64_t before = 0;
  int entry = 0;
  for (std::int64_t at = shares.begin(cta); at < end;) {
    while (at >= before + tiles.units(entry)) before += tiles.units(entry++);
    const DecodeTile found = tiles.find(entry, at - before, tiles.units(entry));
    TileParts of_tile(tiles.walk, shares, cta, before + found.begin, found);
    Part part;
    part.pieces = found.pieces;
    KvShare share;
    while (of_tile.next(share)) {
      tiles.walk.describe(found.place, part.tile);
      part.tile.share = share;
      parts.push_back(part);
    }
    at = before + found.begin + units_of(found.pieces);
  }
  return parts;
}

using Place = std::tuple<int, int, int>;  // sequence, head, first query
Place place_of(const TileDescriptor& tile) { return {tile.batch, tile.head, tile.first_query}; }

/// Every tile of the problem is there, its parts are consecutive and have a counter and slots of
/// their own. Fixed parts follow from the number of pieces alone.
void check_parts(const WalkProblem& p, const DecodeWalk& walk, const DecodeLayout& layout,
                 const std::vector<std::vector<Part>>& all, Tally& tally) {
  std::map<Place, std::vector<KvShare>> found;
  std::set<std::int64_t> slots;
  const bool fixed = walk.part_pieces > 0;
  std::map<int, Place> counters;
  for (int cta = 0; cta < static_cast<int>(all.size()); ++cta)
    for (const Part& part : all[static_cast<std::size_t>(cta)]) {
      const KvShare& share = part.tile.share;
      found[place_of(part.tile)].push_back(share);
      if (share.parts == 1) continue;
      ++tally.split;
      if (!fixed) {
        ASSERT_EQ(share.tile + share.part * walk.strands.divisor, cta);
      }
      ASSERT_TRUE(slots.insert(walk.slot(share, share.part)).second);
      ASSERT_LT(walk.slot(share, share.part), layout.slots());
      ASSERT_LT(share.tile, layout.counters());
      const auto [at, fresh] = counters.emplace(share.tile, place_of(part.tile));
      ASSERT_TRUE(fresh || at->second == place_of(part.tile)) << "two tiles share a counter";
    }
  for (const auto& [place, parts] : found) {
    int at = 0, number = 0;
    for (const KvShare& share : parts) {
      ASSERT_EQ(share.part, number++);
      ASSERT_EQ(share.parts, static_cast<int>(parts.size()));
      ASSERT_EQ(share.from, at);
      at = share.to;
    }
    ASSERT_TRUE(at == parts[0].of || at == 0);
    tally.empty += at == 0;
    if (!fixed || at == 0) continue;
    ASSERT_LE(parts[0].parts, walk.max_parts);
    const int each = std::max(walk.part_pieces, (at + walk.max_parts - 1) / walk.max_parts);
    for (const KvShare& share : parts) ASSERT_EQ(share.to, std::min(share.from + each, at));
  }
  std::set<Place> expected;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t head = 0; head < p.heads; head += walk.pack.divisor)
      for (std::int64_t query = 0; query < p.queries(b); query += walk.queries)
        expected.emplace(b, head, query);
  ASSERT_EQ(found.size(), expected.size());
  for (const Place& place : expected) ASSERT_TRUE(found.count(place));
}

/// Walks the pieces of a part, and counts how often each pair is computed.
template <int kRows>
void walk_part(const WalkProblem& p, const DecodeWalk& walk, const Part& part,
               const std::uint8_t* bits, std::map<std::tuple<int, int, int, int>, int>& pairs,
               Tally& tally) {
  const TileDescriptor& tile = part.tile;
  DecodePieces<kRows> pieces{};
  for (int lane = 0; lane < kWarp; ++lane) pieces.start(walk, tile, lane);
  ASSERT_EQ(pieces.count, tile.share.to - tile.share.from);
  const int last = std::min(walk.queries, tile.q_length - tile.first_query) - 1;
  for (int number = 0; number < pieces.count; ++number) {
    Piece piece;
    std::uint64_t kept = 0;
    pieces.look_up(walk, tile, number, piece, kept);
    if (!piece.visited) continue;
    std::uint64_t some = 0;
    for (int row = 0; row < walk.rows(); ++row) {
      const int within = walk.pack.quotient(row), query = tile.first_query + within;
      const int head = tile.head + row - within * walk.pack.divisor;
      if (query >= tile.q_length) continue;
      std::uint64_t seen = kept;
      if (piece.masked || kept != kAllKeys) {
        ++tally.masked;
        if (piece.bits != kNoBits) {
          const std::int64_t place =
              piece.bits + walk.word_queries.quotient(std::min(within, last)) * walk.bits_row;
          std::uint64_t word = 0;
          for (int j = 0; j < 8; ++j)
            word |= std::uint64_t{bits[place + j * walk.bits_byte]} << (8 * j);
          seen &= word;
        }
        seen &= tile.sight.bits_of(query, piece.key);
      }
      some |= tile.sight.bits_of(query, piece.key);
      for (int j = 0; j < kKeyPiece; ++j)
        if (seen >> j & 1) ++pairs[{tile.batch, head, query, piece.key + j}];
    }
    ASSERT_EQ(kept & ~some, 0u) << "values that no query sees would not be zeroed";
  }
  (void)p;
}

/// The steps of a CTA, as its teams take them: a fixed part begins with the first team, so that the
/// parts before it do not decide which team has which piece.
template <int kTeams>
void check_teams(const DecodeWalk& walk, const std::vector<Part>& parts) {
  int steps = 0;
  for (const Part& part : parts) {
    const KvShare& share = part.tile.share;
    if (walk.part_pieces > 0) {
      ASSERT_EQ(steps % kTeams, 0);
    }
    const int count = walk.steps_of<kTeams>(share);
    ASSERT_GE(count, share.to - share.from);
    ASSERT_LT(count, share.to - share.from + kTeams);
    steps += count;
  }
}

template <int kRow>
void check(std::uint64_t seed, bool fixed, Tally& tally) {
  constexpr Tile kTile = kSm90DecodeRows[kRow].tile;
  WalkProblem p(seed, kTile);
  if (p.heads == 0 || p.shape.q_total == 0) return;
  p.shape.batch_invariant = fixed;
  generate::Random random(seed + 99);
  const std::int64_t sms = kSmCounts[random.between(0, 4)];
  DecodeLayout layout = decode_layout(p.shape, kSm90DecodeRows[kRow], sms);
  // Short problems have tiles of few pieces.
  if (fixed) layout.part_pieces = random.between(1, 3);
  DecodeWalk walk = decode_walk(p.problem, p.shape, layout, kTile);
  ASSERT_LE(walk.rows(), kTile.m);
  ASSERT_EQ(walk.groups_per_strand.divisor * walk.strands.divisor * walk.sets.divisor,
            walk.head_groups.divisor);
  const auto* bits = static_cast<const std::uint8_t*>(p.problem.mask.bits.data);
  std::vector<std::byte> memory;
  if (const ComposedMask& composed = layout.tiles.composed) {
    core::Carver sizes;
    carve_composed(sizes, composed);
    memory.resize(static_cast<std::size_t>(sizes.used()) + 128);
    void* base = memory.data();
    std::size_t room = memory.size();
    core::Carver carver(std::align(128, static_cast<std::size_t>(sizes.used()), base, room));
    const ComposedLists lists = carve_composed(carver, composed);
    testing::compose_rows(composer_of(p.problem, p.shape, composed, lists), 8);
    walk_composed(walk, composed, lists);
    bits = reinterpret_cast<const std::uint8_t*>(lists.bits);
    ++tally.composed;
  }
  std::vector<std::vector<Part>> all;
  for (int cta = 0; cta < static_cast<int>(sms); ++cta) {
    const int strand = walk.strands.rest(cta);
    const DecodeTiles<kTile.m> tiles{walk, strand};
    const auto shares = DecodeShares::of_strand(walk, strand, count_units(tiles, tally));
    tally.idle += cta == 0 && shares.ctas * shares.strands < sms;
    tally.strands += cta == 0 && shares.strands > 1;
    all.push_back(parts_of(tiles, shares, walk.strands.quotient(cta)));
    tally.many += all.back().size() > 2;
    check_teams<kTile.kv_splits>(walk, all.back());
  }
  check_parts(p, walk, layout, all, tally);
  if (::testing::Test::HasFatalFailure()) return;
  std::map<std::tuple<int, int, int, int>, int> pairs;
  for (const auto& parts : all)
    for (const Part& part : parts) walk_part<kTile.m>(p, walk, part, bits, pairs, tally);
  for (const auto& [pair, times] : pairs) {
    const auto [b, head, i, j] = pair;
    ASSERT_EQ(times, 1) << b << " " << head << " " << i << " " << j;
    ASSERT_TRUE(p.sees(b, p.set_of(head), i, j)) << b << " " << head << " " << i << " " << j;
  }
  std::size_t visible = 0;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t head = 0; head < p.heads; ++head)
      for (std::int64_t i = 0; i < p.queries(b); ++i)
        for (std::int64_t j = 0; j < p.keys(b); ++j) visible += p.sees(b, p.set_of(head), i, j);
  ASSERT_EQ(pairs.size(), visible);
  tally.pairs += static_cast<std::int64_t>(visible);
}

template <int kRow>
void check_many(std::uint64_t seeds, bool fixed = false) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check<kRow>(seed, fixed, tally);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(tally.pairs, 10000);
  EXPECT_GT(tally.split, 20);
  EXPECT_GT(tally.empty, 20);
  EXPECT_GT(tally.composed, 3);
  EXPECT_GT(tally.masked, 100);
  EXPECT_GT(tally.idle, 3);
  EXPECT_GT(tally.many, 3);
  EXPECT_GT(tally.strands, 3);
  EXPECT_GT(tally.one_list, 20);
}

TEST(DecodeWalk, SixteenRowsComputeEachVisiblePairOnce) { check_many<2>(60); }
TEST(DecodeWalk, SixtyFourRowsComputeEachVisiblePairOnce) { check_many<3>(60); }

TEST(DecodeWalk, FixedPartsComputeEachVisiblePairOnce) {
  check_many<2>(60, true);
  check_many<3>(60, true);
}

/// Where the last query sees all used keys, these alone give the pieces that a walk of the tile
/// counts.
TEST(DecodeWalk, UsedKeysGiveThePieces) {
  constexpr Tile kTile = kSm90DecodeRows[2].tile;
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const WalkProblem p(seed, kTile);
    if (p.heads == 0 || p.shape.q_total == 0) continue;
    DecodeWalk walk =
        decode_walk(p.problem, p.shape, decode_layout(p.shape, kSm90DecodeRows[2], 132), kTile);
    if (!walk.sees_all_used) continue;
    ++compared;
    const DecodeTiles<kTile.m> tiles{walk};
    for (int batch = 0; batch < walk.batches; ++batch) {
      walk.sees_all_used = true;
      walk.reads_sequences = false;
      const int used = tiles.pieces({batch, 0, 0});
      walk.sees_all_used = false;
      walk.reads_sequences = true;
      ASSERT_EQ(used, tiles.pieces({batch, 0, 0})) << "seed " << seed << ", sequence " << batch;
      if (used == 0) continue;
      TileDescriptor described{}, usual{};
      walk.describe({batch, 0, 0}, described);
      walk.reads_sequences = false;
      walk.sees_all_used = true;
      walk.describe({batch, 0, 0}, usual);
      for (int row = 0; row < usual.q_length; ++row) {
        ASSERT_EQ(usual.sight.begin_of(row), described.sight.begin_of(row)) << "seed " << seed;
        ASSERT_EQ(usual.sight.end_of(row), described.sight.end_of(row)) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(compared, 5);
}

/// The parts of a tile: which pieces they have, whatever begins before the tile and however many
/// CTAs there are.
TEST(DecodeWalk, FixedPartsDoNotDependOnWhatIsBeforeTheTile) {
  DecodeWalk walk;
  walk.tiles_per_head = 1;
  for (const int part_pieces : {1, 8})
    for (const int max_parts : {1, 2, 32})
      for (const int pieces : {0, 1, 7, 8, 9, 64, 255, 256, 257, 1000}) {
        walk.part_pieces = part_pieces;
        walk.max_parts = max_parts;
        std::set<std::vector<std::tuple<int, int, int, int>>> found;
        for (const std::int64_t before : {0, 1, 5, 100, 12345})
          for (const std::int64_t after : {0, 3, 777})
            for (const int blocks : {1, 2, 7, 132}) {
              DecodeTile tile;
              tile.pieces = pieces;
              const auto shares =
                  DecodeShares::of(before + units_of(pieces) + after, blocks, Divisor::of(4), 0);
              std::vector<std::tuple<int, int, int, int>> parts;
              for (int cta = 0; cta < blocks; ++cta) {
                TileParts of_cta(walk, shares, cta, before, tile);
                KvShare share;
                while (of_cta.next(share)) {
                  EXPECT_LT(walk.slot(share, share.part), max_parts);
                  parts.emplace_back(share.from, share.to, share.part, share.parts);
                }
              }
              found.insert(parts);
            }
        EXPECT_EQ(found.size(), 1u) << pieces << " pieces in parts of " << part_pieces;
      }
}

/// Tiles of packed sequences have different numbers, below the number of counters.
TEST(DecodeWalk, TilesHaveNumbersOfTheirOwn) {
  const std::vector<std::int32_t> good{0, 5, 5, 12, 13, 40}, bad{7, 3, 1 << 30, -5, 39, 2};
  for (const auto& offsets : {good, bad})
    for (const int queries : {1, 3, 4, 16}) {
      DecodeWalk walk;
      walk.packed_q = true;
      walk.sequences.q_offsets = {{offsets.data(), nullptr}, 1};
      walk.sequences.q_total = 40;
      walk.batches = 5, walk.head_groups = Divisor::of(2), walk.queries = queries;
      walk.tiles_per_head = 40 / queries + walk.batches;
      std::set<int> numbers;
      int tiles = 0;
      for (int batch = 0; batch < 5; ++batch)
        for (int group = 0; group < 2; ++group)
          for (int tile = 0; tile < walk.tiles_of(walk.sequences.at(batch).q_length); ++tile) {
            const int number = walk.number_of({batch, group, tile});
            ASSERT_TRUE(number >= 0 && number < 2 * walk.tiles_per_head);
            numbers.insert(number);
            ++tiles;
          }
      if (offsets == good) {
        EXPECT_EQ(static_cast<int>(numbers.size()), tiles);
      }
    }
}

TEST(DecodeShares, AreEqualAndNeverEmpty) {
  for (const std::int64_t units : {1, 2, 3, 7, 131, 132, 133, 1000, 4097})
    for (const int blocks : {1, 2, 66, 132})
      for (const int min_units : {1, 2, 4}) {
        const auto shares = DecodeShares::of(units, blocks, Divisor::of(min_units), 0);
        ASSERT_TRUE(shares.ctas >= 1 && shares.ctas <= blocks);
        EXPECT_EQ(shares.begin(0), 0);
        EXPECT_EQ(shares.begin(shares.ctas), units);
        EXPECT_EQ(shares.begin(blocks + 1), units);
        for (int cta = 0; cta < shares.ctas; ++cta) {
          const std::int64_t size = shares.begin(cta + 1) - shares.begin(cta);
          EXPECT_GE(size, 1);
          EXPECT_LE(size, units / shares.ctas + 1);
          if (shares.ctas > 1) {
            EXPECT_GE(size, min_units);
          }
          for (std::int64_t unit = shares.begin(cta); unit < shares.begin(cta + 1); ++unit)
            ASSERT_EQ(shares.cta_of(unit), cta);
        }
      }
}

TEST(DecodeShares, EndWhereEqualTilesDo) {
  const Divisor one = Divisor::of(1);
  for (const int tiles : {1, 2, 8, 64, 120, 132}) {
    const auto shares = DecodeShares::of(std::int64_t{129} * tiles, 132, one, tiles);
    EXPECT_EQ(shares.ctas % tiles, 0);
    EXPECT_GE(shares.ctas, 116);
    for (int tile = 0; tile < tiles; ++tile)
      EXPECT_EQ(shares.begin(shares.ctas / tiles * tile), 129 * tile);
  }
  EXPECT_EQ(DecodeShares::of(129 * 100, 132, one, 100).ctas, 132);  // too many would be left over
  EXPECT_EQ(DecodeShares::of(129 * 500, 132, one, 500).ctas, 132);
}

/// Boxes of a piece over pages, with entries outside of the pool and beyond the table.
TEST(PieceBoxes, FollowTheTableAndSkipWhatDoesNotExist) {
  DecodeWalk walk;
  TileDescriptor tile{};
  tile.batch = 1;
  const std::vector<std::int32_t> table{0, 0, 0, 0, 5, -1, 7, 100};  // two sequences of four pages
  for (const int page : {8, 16, 32, 64, 128, 256}) {
    const PageView pages{.table = table.data(),
                         .batch_stride = 4,
                         .entry_stride = 1,
                         .max_pages = 4,
                         .pages = 100,
                         .page_size = page};
    walk.page = Divisor::of(page);
    const int box_rows = std::min(page, kKeyPiece);
    for (int key = 0; key < 6 * 256; key += kKeyPiece) {
      Piece piece;
      piece.key = key;
      const PieceBoxes boxes = PieceBoxes::of(walk, pages, tile, piece, box_rows, kAllKeys);
      for (int j = 0; j < kKeyPiece; ++j) {
        const int entry = (key + j) / page;
        const int wanted = entry < 4 ? table[static_cast<std::size_t>(4 + entry)] : -1;
        const bool exists = wanted >= 0 && wanted < 100;
        ASSERT_EQ((boxes.present >> j & 1) != 0, exists) << page << " " << key + j;
        ASSERT_EQ(boxes.batch[j / box_rows], exists ? wanted : -1);
        if (exists) {
          ASSERT_EQ(boxes.row + j % box_rows, (key + j) % page);
        }
      }
    }
    // Pages without a key that some query sees are not loaded.
    Piece piece;
    const PieceBoxes boxes = PieceBoxes::of(walk, pages, tile, piece, box_rows, 0);
    for (int box = 0; box * box_rows < kKeyPiece; ++box) EXPECT_EQ(boxes.batch[box], -1);
  }
}

TEST(PieceBoxes, ContiguousKeysHaveOneBox) {
  DecodeWalk walk;
  TileDescriptor tile{};
  tile.batch = 3, tile.kv_begin = 100;
  Piece piece;
  piece.key = 128;
  const PieceBoxes dense = PieceBoxes::of(walk, {}, tile, piece, kKeyPiece, kAllKeys);
  EXPECT_EQ(dense.row, 228);
  EXPECT_EQ(dense.batch[0], 3);
  EXPECT_EQ(dense.present, kAllKeys);
}

}  // namespace
}  // namespace tessera::planning
