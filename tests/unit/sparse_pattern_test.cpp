// Patterns: validation, transposes, coarser and finer blocks, against boolean matrices.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "tests/support/random.hpp"
#include "tests/unit/error_text.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;

struct Grid {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint8_t> set;
  std::uint8_t& at(std::int64_t i, std::int64_t j) {
    return set[static_cast<std::size_t>(i * cols + j)];
  }
};

Grid random_grid(generate::Random& random, std::int64_t rows, std::int64_t cols) {
  Grid grid{rows, cols, std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols))};
  const double density = random.pick({0.0, 0.1, 0.5, 1.0});
  for (auto& set : grid.set) set = random.chance(density) ? 1 : 0;
  return grid;
}

Pattern pattern_from(const Grid& grid) {
  return pattern_from_bool(tensor(grid.set.data(), DType::u8, {grid.rows, grid.cols}));
}

void expect_equal(const Pattern& pattern, Grid grid) {
  validate(pattern);
  ASSERT_EQ(pattern.rows, grid.rows);
  ASSERT_EQ(pattern.cols, grid.cols);
  std::int64_t stored = 0;
  for (std::int64_t i = 0; i < grid.rows; ++i) {
    for (std::int64_t j = 0; j < grid.cols; ++j) {
      ASSERT_EQ(pattern.contains(i, j), grid.at(i, j) != 0) << i << ", " << j;
      stored += grid.at(i, j);
    }
  }
  EXPECT_EQ(pattern.stored(), stored);
}

TEST(Pattern, FromBoolHoldsWhatIsSet) {
  generate::Random random(1);
  for (int round = 0; round < 200; ++round) {
    const Grid grid = random_grid(random, random.between(0, 7), random.between(0, 9));
    expect_equal(pattern_from(grid), grid);
  }
}

TEST(Pattern, FromBoolReadsAnyStrides) {
  const std::uint8_t data[] = {1, 9, 0, 9, 1, 9,  //
                               0, 9, 7, 9, 0, 9};
  const Pattern across = pattern_from_bool(tensor(data, DType::u8, {2, 3}, {6, 2}));
  EXPECT_EQ(across, (Pattern{2, 3, {0, 2, 3}, {0, 2, 1}}));
  const Pattern down = pattern_from_bool(tensor(data, DType::u8, {3, 2}, {2, 6}));
  EXPECT_EQ(down, (Pattern{3, 2, {0, 1, 2, 3}, {0, 1, 0}}));
  const Pattern backwards = pattern_from_bool(tensor(data + 4, DType::u8, {1, 3}, {6, -2}));
  EXPECT_EQ(backwards, (Pattern{1, 3, {0, 2}, {0, 2}}));
  EXPECT_PRED2(contains, error_text([&] {
                 pattern_from_bool(tensor(data, DType::i32, {1, 2}));
               }),
               "u8");
  EXPECT_PRED2(contains, error_text([&] { pattern_from_bool(tensor(data, DType::u8, {6})); }),
               "2 dimensions");
  EXPECT_PRED2(contains, error_text([] {
                 pattern_from_bool(tensor(nullptr, DType::u8, {1, 1}));
               }),
               "null");
}

TEST(Pattern, ContainsNothingOutside) {
  const Pattern pattern{1, 2, {0, 2}, {0, 1}};
  EXPECT_TRUE(pattern.contains(0, 1));
  EXPECT_FALSE(pattern.contains(-1, 0));
  EXPECT_FALSE(pattern.contains(1, 0));
  EXPECT_FALSE(pattern.contains(0, 2));
  EXPECT_FALSE(pattern.contains(0, -1));
}

TEST(Pattern, TransposesLikeAMatrix) {
  generate::Random random(2);
  for (int round = 0; round < 200; ++round) {
    Grid grid = random_grid(random, random.between(0, 8), random.between(0, 8));
    const Pattern pattern = pattern_from(grid);
    Grid turned{grid.cols, grid.rows, std::vector<std::uint8_t>(grid.set.size())};
    for (std::int64_t i = 0; i < grid.rows; ++i) {
      for (std::int64_t j = 0; j < grid.cols; ++j) turned.at(j, i) = grid.at(i, j);
    }
    expect_equal(transpose(pattern), turned);
    EXPECT_EQ(transpose(transpose(pattern)), pattern);

    const TransposedLists lists = transposed_lists(pattern);
    ASSERT_EQ(lists.offsets.size(), static_cast<std::size_t>(grid.cols) + 1);
    std::vector<int> visits(static_cast<std::size_t>(pattern.stored()));
    for (std::int64_t j = 0; j < grid.cols; ++j) {
      const auto col = static_cast<std::size_t>(j);
      for (std::int64_t t = lists.offsets[col]; t < lists.offsets[col + 1]; ++t) {
        const auto row = static_cast<std::size_t>(lists.row_indices[static_cast<std::size_t>(t)]);
        const std::int64_t position = lists.positions[static_cast<std::size_t>(t)];
        EXPECT_LE(pattern.offsets[row], position);
        EXPECT_LT(position, pattern.offsets[row + 1]);
        EXPECT_EQ(pattern.indices[static_cast<std::size_t>(position)], j);
        ++visits[static_cast<std::size_t>(position)];
      }
    }
    for (const int count : visits) EXPECT_EQ(count, 1);
  }
}

TEST(Pattern, CoarsensAndRefines) {
  generate::Random random(3);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t fr = random.between(1, 3), fc = random.between(1, 3);
    Grid coarse = random_grid(random, random.between(0, 4), random.between(0, 4));
    Grid fine{coarse.rows * fr, coarse.cols * fc, {}};
    fine.set.resize(static_cast<std::size_t>(fine.rows * fine.cols));
    for (std::int64_t i = 0; i < fine.rows; ++i) {
      for (std::int64_t j = 0; j < fine.cols; ++j) fine.at(i, j) = coarse.at(i / fr, j / fc);
    }
    expect_equal(refine(pattern_from(coarse), fr, fc), fine);

    Grid sparse = random_grid(random, fine.rows, fine.cols);
    Grid any{coarse.rows, coarse.cols, std::vector<std::uint8_t>(coarse.set.size())};
    for (std::int64_t i = 0; i < fine.rows; ++i) {
      for (std::int64_t j = 0; j < fine.cols; ++j) any.at(i / fr, j / fc) |= sparse.at(i, j);
    }
    expect_equal(coarsen(pattern_from(sparse), fr, fc), any);
  }
}

TEST(Pattern, FactorsAreChecked) {
  const Pattern pattern{4, 6, {0, 0, 0, 0, 1}, {5}};
  constexpr auto kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_PRED2(contains, error_text([&] { coarsen(pattern, 3, 1); }), "row_factor");
  EXPECT_PRED2(contains, error_text([&] { coarsen(pattern, 1, 4); }), "col_factor");
  EXPECT_PRED2(contains, error_text([&] { coarsen(pattern, 0, 1); }), "row_factor");
  EXPECT_PRED2(contains, error_text([&] { refine(pattern, -1, 1); }), "row_factor");
  EXPECT_PRED2(contains, error_text([&] { refine(pattern, 1, kHuge); }), "col_factor");
  EXPECT_PRED2(contains,
               error_text([&] { refine(pattern, kHuge / 4, 1); }, ErrorCode::out_of_memory),
               "rows");
}

TEST(Pattern, ValidationNamesTheError) {
  const auto text = [](const Pattern& pattern) { return error_text([&] { validate(pattern); }); };
  EXPECT_NO_THROW(validate(Pattern{0, 0, {0}, {}}));
  EXPECT_NO_THROW(validate(Pattern{2, 3, {0, 2, 3}, {0, 2, 1}}));
  EXPECT_PRED2(contains, text({}), "offsets");
  EXPECT_PRED2(contains, text({-1, 3, {}, {}}), "rows");
  EXPECT_PRED2(contains, text({2, -3, {0, 0, 0}, {}}), "cols");
  EXPECT_PRED2(contains, text({2, 3, {0, 1}, {0}}), "one more than the 2 rows");
  EXPECT_PRED2(contains, text({1, 3, {1, 2}, {0, 1}}), "got 1 to 2");
  EXPECT_PRED2(contains, text({1, 3, {0, 3}, {0, 1}}), "got 0 to 3");
  EXPECT_PRED2(contains, text({2, 3, {0, 9, 2}, {0, 1}}), "got 2 after 9 in row 1");
  EXPECT_PRED2(contains, text({2, 3, {0, -4, 2}, {0, 1}}), "got -4 after 0 in row 0");
  EXPECT_PRED2(contains, text({1, 3, {0, 1}, {3}}), "got 3 in row 0");
  EXPECT_PRED2(contains, text({1, 3, {0, 1}, {-1}}), "got -1 in row 0");
  EXPECT_PRED2(contains, text({1, 3, {0, 2}, {1, 1}}), "got 1 after 1 in row 0");
  EXPECT_PRED2(contains, text({1, 3, {0, 2}, {2, 0}}), "got 0 after 2 in row 0");
}

TEST(Pattern, Density) {
  EXPECT_EQ((Pattern{2, 4, {0, 1, 2}, {0, 1}}).density(), 0.25);
  EXPECT_EQ((Pattern{0, 4, {0}, {}}).density(), 0.0);
}

}  // namespace
