#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>

#include "src/walk/turned_values.hpp"

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

/// What ldmatrix.trans and stmatrix do with the addresses and words of two warps' lanes. Each byte
/// of a piece's first 16 columns is `of(key, column)`; returns the bytes by column and place.
using Columns = std::array<std::array<int, kKeyPiece>, LaneOfTurn::kColumns>;
Columns transposed(int (*of)(int key, int column)) {
  Columns columns{};
  for (std::array<int, kKeyPiece>& column : columns) column.fill(-1);
  for (unsigned half = 0; half < 2; ++half)
    for (unsigned lane = 0; lane < 32; ++lane) {
      std::uint32_t words[4] = {};
      for (unsigned block = 0; block < 4; ++block)
        for (unsigned byte = 0; byte < 4; ++byte) {
          const LaneOfTurn addressing{block * 8 + lane % 4 * 2 + byte / 2, half};
          const int value =
              of(static_cast<int>(addressing.row()), static_cast<int>(lane / 4 * 2 + byte % 2));
          words[block] |= static_cast<std::uint32_t>(value) << byte * 8;
        }
      std::uint32_t stored[4];
      LaneOfTurn{lane, half}.arrange(words, stored);
      for (unsigned block = 0; block < 4; ++block)
        for (unsigned byte = 0; byte < 4; ++byte) {
          const LaneOfTurn addressing{block * 8 + lane / 4, half};
          const unsigned place = addressing.place() + lane % 4 * 4 + byte;
          columns[addressing.column()][place] = static_cast<int>(stored[block] >> byte * 8 & 0xFF);
        }
    }
  return columns;
}

TEST(TurnedValues, TwoWarpsTransposeAPiece) {
  const Columns keys = transposed([](int key, int) { return key; });
  const Columns columns = transposed([](int, int column) { return column; });
  for (int column = 0; column < LaneOfTurn::kColumns; ++column)
    for (int place = 0; place < kKeyPiece; ++place) {
      const auto at = static_cast<std::size_t>(column), of = static_cast<std::size_t>(place);
      EXPECT_EQ(keys[at][of], turned_key(place)) << "column " << column << ", place " << place;
      EXPECT_EQ(columns[at][of], column) << "place " << place;
    }
}

TEST(TurnedValues, EachWarpReadsItsHalfOfTheKeys) {
  for (unsigned half = 0; half < 2; ++half) {
    std::uint64_t read = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      read |= std::uint64_t{1} << LaneOfTurn{lane, half}.row();
    EXPECT_EQ(read, (LaneOfTurn{0, half}.keys()));
  }
}

/// The eight lines of a block that stmatrix stores lie in different 16 bytes modulo 128: lines of
/// 64 bytes, with the swizzle of that width.
TEST(TurnedValues, StoresMeetNoBankTwice) {
  for (unsigned half = 0; half < 2; ++half)
    for (unsigned block = 0; block < 4; ++block) {
      std::set<unsigned> places;
      for (unsigned line = 0; line < 8; ++line) {
        const LaneOfTurn lane{block * 8 + line, half};
        const unsigned chunk = lane.place() / 16 ^ lane.column() / 2 % 4;
        places.insert(lane.column() % 2 * 4 + chunk);
      }
      EXPECT_EQ(places.size(), 8u) << "half " << half << ", block " << block;
    }
}

}  // namespace
}  // namespace tessera::planning
