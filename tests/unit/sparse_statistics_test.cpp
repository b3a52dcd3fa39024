// Statistics of patterns, against values by hand and brute force.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "tests/unit/error_text.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;

TEST(Statistics, ByHand) {
  // x x . . .
  // . . . . .
  // x . x x .
  // x . . x .
  const Pattern pattern{4, 5, {0, 2, 2, 5, 7}, {0, 1, 0, 2, 3, 0, 3}};
  const PatternStatistics figures = statistics(pattern, 2);
  EXPECT_EQ(figures.rows, 4);
  EXPECT_EQ(figures.cols, 5);
  EXPECT_EQ(figures.stored, 7);
  EXPECT_DOUBLE_EQ(figures.density, 0.35);
  EXPECT_EQ(figures.shortest_row, 0);
  EXPECT_EQ(figures.longest_row, 3);
  EXPECT_EQ(figures.empty_rows, 1);
  EXPECT_EQ(figures.empty_cols, 1);
  EXPECT_DOUBLE_EQ(figures.mean_row, 1.75);
  EXPECT_DOUBLE_EQ(figures.imbalance, 3 / 1.75);
  // Row 0 shares nothing with row 1, row 1 is empty, row 2 shares 2 of 3 with row 3.
  EXPECT_DOUBLE_EQ(figures.neighbour_overlap, (0.0 + 2.0 / 3.0) / 2);
  EXPECT_EQ(figures.histogram_edges, (std::vector<std::int64_t>{0, 2, 4}));
  EXPECT_EQ(figures.histogram_counts, (std::vector<std::int64_t>{1, 3}));
}

TEST(Statistics, EmptyAndEvenPatterns) {
  const PatternStatistics none = statistics(Pattern{0, 0, {0}, {}});
  EXPECT_EQ(none.density, 0.0);
  EXPECT_EQ(none.mean_row, 0.0);
  EXPECT_EQ(none.imbalance, 1.0);
  EXPECT_EQ(none.histogram_counts, (std::vector<std::int64_t>{0}));

  const PatternStatistics blank = statistics(Pattern{3, 4, {0, 0, 0, 0}, {}});
  EXPECT_EQ(blank.empty_rows, 3);
  EXPECT_EQ(blank.empty_cols, 4);
  EXPECT_EQ(blank.imbalance, 1.0);
  EXPECT_EQ(blank.neighbour_overlap, 0.0);

  const PatternStatistics full = statistics(patterns::random(5, 6, 1.0, 0));
  EXPECT_EQ(full.density, 1.0);
  EXPECT_EQ(full.imbalance, 1.0);
  EXPECT_EQ(full.neighbour_overlap, 1.0);
  EXPECT_EQ(full.histogram_edges, (std::vector<std::int64_t>{6, 7}));
  EXPECT_EQ(full.histogram_counts, (std::vector<std::int64_t>{5}));
}

TEST(Statistics, HistogramCountsEveryRowInItsBin) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Pattern pattern = patterns::power_law(60, 50, 0.2, 1.1, seed);
    for (const int bins : {1, 2, 7, 16, 1000}) {
      const PatternStatistics figures = statistics(pattern, bins);
      const auto& edges = figures.histogram_edges;
      ASSERT_LE(figures.histogram_counts.size(), static_cast<std::size_t>(bins));
      ASSERT_EQ(edges.size(), figures.histogram_counts.size() + 1);
      EXPECT_EQ(edges.front(), figures.shortest_row);
      EXPECT_GT(edges.back(), figures.longest_row);
      for (std::size_t b = 0; b + 1 < edges.size(); ++b) {
        std::int64_t rows = 0;
        for (std::size_t i = 0; i + 1 < pattern.offsets.size(); ++i) {
          const std::int64_t length = pattern.offsets[i + 1] - pattern.offsets[i];
          rows += edges[b] <= length && length < edges[b + 1];
        }
        EXPECT_EQ(figures.histogram_counts[b], rows);
      }
    }
  }
}

TEST(Statistics, ArgumentsAreChecked) {
  EXPECT_PRED2(contains, error_text([] { statistics(Pattern{1, 1, {0, 1}, {0}}, 0); }), "bins");
  EXPECT_PRED2(contains, error_text([] {
                 statistics(Pattern{1, 1, {0, 1}, {7}});
               }),
               "got 7 in row 0");
}

}  // namespace
