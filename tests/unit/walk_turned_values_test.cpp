#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "src/walk/turned_values.hpp"
#include "tests/support/random.hpp"

namespace tessera::planning {
namespace {

/// A quad holds the scores of a row as 0 1, 2 3, 4 5, 6 7 and eight keys on. Two of them and two
/// that lie half a piece further are a word of a lane's left operand.
TEST(TurnedValues, APieceHasEachKeyOnceInTheOrderOfTheRegisters) {
  std::set<int> keys;
  for (int at = 0; at < kKeyPiece; ++at) {
    keys.insert(turned_key(at));
    const int word = at / 16, lane = at % 16 / 4, of_lane = at % 4;
    EXPECT_EQ(turned_key(at), of_lane / 2 * 32 + word * 8 + lane * 2 + of_lane % 2) << at;
  }
  EXPECT_EQ(keys.size(), std::size_t{kKeyPiece});
  EXPECT_EQ(*keys.rbegin(), kKeyPiece - 1);
}

/// Where V lies by keys, TMA loads K in two boxes of 16 pairs of rows.
TEST(TurnedValues, RowsOfAPieceOfKeysAreTwoBoxesOfPairs) {
  for (int half = 0; half < 2; ++half)
    for (int pair = 0; pair < 16; ++pair)
      for (int of_pair = 0; of_pair < 2; ++of_pair)
        EXPECT_EQ(turned_key(pair * 4 + half * 2 + of_pair), half * 32 + pair * 2 + of_pair);
}

/// Bits 0 and 1 of byte i are the keys of the scores that a lane holds of rows 8 i to 8 i + 7.
TEST(TurnedValues, BitsOfKeysMoveToTheScoresOfALane) {
  for (const bool by_keys : {false, true})
    for (int lane = 0; lane < 4; ++lane)
      for (int key = 0; key < kKeyPiece; ++key) {
        const BitsOfLane lane_bits(by_keys);
        const int first = lane_bits.first_key(lane);
        const std::uint64_t bits = lane_bits(std::uint64_t{1} << key >> first);
        const int row = by_keys ? turned_key(key) : key;
        for (int column = 0; column < 16; ++column) {
          const int of_lane = column / 2 * 8 + lane * 2 + column % 2;
          EXPECT_EQ(bits >> (column / 2 * 8 + column % 2) & 1, key >= first && of_lane == row)
              << "by keys " << by_keys << ", lane " << lane << ", key " << key;
        }
      }
}

/// Pieces of a packed sequence end before the next one begins, and the last one inside of the rows
/// that are planned.
TEST(TurnedValues, PackedSequencesDoNotOverlap) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    generate::Random random(seed);
    const std::int64_t sequences = random.between(1, 9);
    std::int64_t row = 0;
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::int64_t length = random.chance(0.2) ? 0 : random.between(1, 300);
      const std::int64_t begin = first_turned(row, i);
      const std::int64_t end = begin + (length + kKeyPiece - 1) / kKeyPiece * kKeyPiece;
      EXPECT_EQ(begin % kKeyPiece, 0);
      EXPECT_LE(end, first_turned(row + length, i + 1)) << "seed " << seed << ", sequence " << i;
      row += length;
    }
    EXPECT_LE(first_turned(row, sequences), first_turned(row, sequences + 1));
  }
}

}  // namespace
}  // namespace tessera::planning
