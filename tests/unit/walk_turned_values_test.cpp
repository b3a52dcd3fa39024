#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "src/walk/turned_values.hpp"
#include "tests/support/random.hpp"

namespace tessera::planning {
namespace {

/// A quad holds the scores of a row as 0 1, 2 3, 4 5, 6 7 and eight keys on; each lane has four of
/// 16, which become one word of the left operand.
TEST(TurnedValues, AGroupHasEachKeyOnceInTheOrderOfTheRegisters) {
  std::set<int> keys;
  for (int at = 0; at < kTurnedGroup; ++at) {
    keys.insert(turned_key(at));
    const int lane = at / 4, of_lane = at % 4;
    EXPECT_EQ(turned_key(at), of_lane / 2 * 8 + lane * 2 + of_lane % 2) << at;
  }
  EXPECT_EQ(keys.size(), std::size_t{kTurnedGroup});
  EXPECT_EQ(*keys.rbegin(), kTurnedGroup - 1);
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
