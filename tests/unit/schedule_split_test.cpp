// Orders and splits keep their promises on random lengths and on the awkward ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "src/walk/schedule.hpp"

namespace {

using tessera::planning::imbalance;
using tessera::planning::longest_first;
using tessera::planning::Piece;
using tessera::planning::Split;
using tessera::planning::split_rows;

using Lengths = std::vector<std::int64_t>;

std::vector<Lengths> samples() {
  std::vector<Lengths> all = {{}, {0}, {0, 0, 0}, {1}, {1000}, {0, 1000, 0}, {7, 7, 7, 7}};
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    Lengths lengths(random() % 40);
    for (auto& length : lengths) {
      length = static_cast<std::int64_t>(random() % (random() % 10 == 0 ? 500 : 8));
    }
    all.push_back(lengths);
  }
  return all;
}

TEST(Schedule, LongestFirstIsAStableSortedPermutation) {
  for (const Lengths& lengths : samples()) {
    const auto order = longest_first(lengths);
    Lengths sorted(order);
    std::sort(sorted.begin(), sorted.end());
    Lengths every(lengths.size());
    std::iota(every.begin(), every.end(), 0);
    ASSERT_EQ(sorted, every);
    for (std::size_t i = 1; i < order.size(); ++i) {
      const std::int64_t before = lengths[static_cast<std::size_t>(order[i - 1])];
      const std::int64_t after = lengths[static_cast<std::size_t>(order[i])];
      ASSERT_TRUE(before > after || (before == after && order[i - 1] < order[i]));
    }
  }
}

TEST(Schedule, SplitCoversEveryEntryOnceWithinTheChunk) {
  for (const Lengths& lengths : samples()) {
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    for (std::int64_t units : {1, 2, 7, 132}) {
      for (std::int64_t smallest : {1, 4, 100}) {
        const Split split = split_rows(lengths, units, smallest);
        ASSERT_EQ(split.chunk, std::max({(total + units - 1) / units, smallest, std::int64_t{1}}));
        std::size_t at = 0;
        std::int64_t slots = 0;
        for (std::size_t row = 0; row < lengths.size(); ++row) {
          const std::size_t first = at;
          std::int64_t covered = 0;
          while (at < split.pieces.size() &&
                 split.pieces[at].row == static_cast<std::int64_t>(row)) {
            const Piece& piece = split.pieces[at++];
            ASSERT_EQ(piece.begin, covered);
            ASSERT_LE(piece.end - piece.begin, split.chunk);
            ASSERT_TRUE(piece.end > piece.begin || lengths[row] == 0);
            covered = piece.end;
          }
          ASSERT_EQ(covered, lengths[row]);
          ASSERT_GE(at - first, 1u);  // an empty row is still written
          ASSERT_EQ(at - first > 1, lengths[row] > split.chunk);
          for (std::size_t i = first; i < at; ++i) {
            ASSERT_EQ(split.pieces[i].slot, at - first > 1 ? slots++ : -1);
          }
        }
        ASSERT_EQ(at, split.pieces.size());
        ASSERT_EQ(slots, split.slots);
      }
    }
  }
}

TEST(Schedule, PiecesOfARowDifferByAtMostOne) {
  const Split split = split_rows(Lengths{10, 1}, 4, 1);
  EXPECT_EQ(split.chunk, 3);
  const std::vector<Piece> expected = {
      {0, 0, 3, 0}, {0, 3, 6, 1}, {0, 6, 8, 2}, {0, 8, 10, 3}, {1, 0, 1, -1}};
  EXPECT_EQ(split.pieces, expected);
}

TEST(Schedule, ImbalanceIsTheSlowestUnitOverTheMean) {
  EXPECT_DOUBLE_EQ(imbalance(Lengths{4, 4, 4, 4}, 4), 1.0);
  EXPECT_DOUBLE_EQ(imbalance(Lengths{8}, 4), 4.0);
  EXPECT_DOUBLE_EQ(imbalance(Lengths{1, 1, 2}, 2), 1.5);  // in this order the long one comes last
  EXPECT_DOUBLE_EQ(imbalance(Lengths{2, 1, 1}, 2), 1.0);
  EXPECT_DOUBLE_EQ(imbalance(Lengths{}, 4), 1.0);
  EXPECT_DOUBLE_EQ(imbalance(Lengths{0, 0}, 4), 1.0);
}

TEST(Schedule, SplittingAndSortingNeverUnbalanceByMoreThanOneChunk) {
  for (const Lengths& lengths : samples()) {
    for (std::int64_t units : {2, 7}) {
      const Split split = split_rows(lengths, units, 1);
      Lengths pieces;
      for (const Piece& piece : split.pieces) pieces.push_back(piece.end - piece.begin);
      Lengths sorted;
      for (std::int64_t i : longest_first(pieces)) {
        sorted.push_back(pieces[static_cast<std::size_t>(i)]);
      }
      // List scheduling: the last unit ends at most one longest job after the mean, and no job is
      // longer than a fair share (rounded up).
      const double total =
          static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
      if (total == 0) continue;
      const double mean = total / static_cast<double>(units);
      ASSERT_LE(imbalance(sorted, units) * mean, mean + static_cast<double>(split.chunk));
    }
  }
}

}  // namespace
