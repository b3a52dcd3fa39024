// Generated patterns: their counts and positions, and hashes that must never change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/pattern.hpp>

#include "src/sparse/power_law.hpp"
#include "src/sparse/random.hpp"
#include "tests/support/random.hpp"
#include "tests/unit/error_text.hpp"
#include "tests/unit/pattern_hash.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names
using tessera::testing::contains;
using tessera::testing::error_text;
using tessera::testing::hash;

std::vector<std::int64_t> lengths(const Pattern& pattern) {
  std::vector<std::int64_t> result;
  for (std::size_t i = 0; i + 1 < pattern.offsets.size(); ++i) {
    result.push_back(pattern.offsets[i + 1] - pattern.offsets[i]);
  }
  return result;
}

// Version 1 of the generators. Results measured on these patterns are compared across machines and
// years: a new value here is a new version of the generator.
TEST(Generators, AreVersionOne) {
  EXPECT_EQ(hash(patterns::random(64, 96, 0.1, 1)), 0x46b2f59fee305b6bu);
  EXPECT_EQ(hash(patterns::random(64, 96, 0.1, 2)), 0xe65afc54a88f96bdu);
  EXPECT_EQ(hash(patterns::banded(48, 64, 3)), 0x2043ea3d82074290u);
  EXPECT_EQ(hash(patterns::causal(48, 64)), 0x56d41556f5149a0fu);
  EXPECT_EQ(hash(patterns::bigbird(64, 64, 1, 2, 3, 7)), 0x09258e1e5d4cfdafu);
  EXPECT_EQ(hash(patterns::block_diagonal(64, 64, 8)), 0xd16a6502f735b2b7u);
  EXPECT_EQ(hash(patterns::block_diagonal(256, 64, 8, 1.2, 3)), 0x08b14cd691dacad7u);
  EXPECT_EQ(hash(patterns::butterfly(64, 64, 6)), 0x39e06e86cba47a47u);
  EXPECT_EQ(hash(patterns::power_law(512, 512, 0.05, 1.1, 5)), 0x97e5b80df5bf52b3u);
  EXPECT_EQ(hash(patterns::power_law(128, 64, 0.3, 0.7, 9)), 0x6f065bbbbfc2960au);
}

TEST(Generators, RandomKeepsItsCounts) {
  for (const std::int64_t cols : {0, 1, 7, 64}) {
    for (const double density : {0.0, 0.001, 0.1, 0.5, 0.99, 1.0}) {
      const Pattern pattern = patterns::random(33, cols, density, 4);
      validate(pattern);
      auto count = std::llround(density * static_cast<double>(cols));
      if (density > 0 && cols > 0 && count == 0) count = 1;
      for (const std::int64_t length : lengths(pattern)) ASSERT_EQ(length, count);
    }
  }
  EXPECT_EQ(patterns::random(9, 40, 0.2, 5), patterns::random(9, 40, 0.2, 5));
  EXPECT_NE(patterns::random(9, 40, 0.2, 5), patterns::random(9, 40, 0.2, 6));
}

TEST(Generators, RandomIsUniform) {
  // Each column is expected rows * 3 / 12 times, within 6 standard deviations.
  constexpr std::int64_t kRows = 12000;
  const Pattern pattern = patterns::random(kRows, 12, 0.25, 8);
  std::vector<std::int64_t> times(12);
  for (const std::int64_t col : pattern.indices) ++times[static_cast<std::size_t>(col)];
  for (const std::int64_t count : times) {
    EXPECT_LT(std::fabs(static_cast<double>(count) - kRows * 0.25),
              6 * std::sqrt(kRows * 0.25 * 0.75));
  }
}

TEST(Generators, BoundedDrawsCoverTheirRange) {
  sparse::Random random(3);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t x = random.below(7);
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 7);
    seen.insert(x);
  }
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(random.below(1), 0);
  // Plain remainders would give three quarters here, as 2^64 is not a multiple of the bound.
  constexpr std::int64_t kPart = std::int64_t{1} << 61;
  int low = 0;
  for (int i = 0; i < 9000; ++i) low += random.below(3 * kPart) < 2 * kPart;
  EXPECT_NEAR(low / 9000.0, 2.0 / 3.0, 0.03);
}

TEST(Generators, BandedAndCausalFollowTheirRules) {
  for (const std::int64_t rows : {0, 1, 5, 12}) {
    for (const std::int64_t cols : {0, 1, 5, 12, 24}) {
      for (const std::int64_t half : {0, 1, 4, 100}) {
        const Pattern band = patterns::banded(rows, cols, half);
        validate(band);
        for (std::int64_t i = 0; i < rows; ++i) {
          // The diagonal from corner to corner, at the middle of row i.
          const auto centre = static_cast<std::int64_t>(
              std::floor((static_cast<double>(i) + 0.5) * static_cast<double>(cols) /
                         static_cast<double>(rows)));
          for (std::int64_t j = 0; j < cols; ++j) {
            ASSERT_EQ(band.contains(i, j), std::abs(j - centre) <= half);
          }
        }
      }
      const Pattern lower = patterns::causal(rows, cols);
      validate(lower);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) {
          ASSERT_EQ(lower.contains(i, j), j <= i + cols - rows);
        }
      }
    }
  }
  EXPECT_EQ(patterns::banded(6, 6, 0), patterns::block_diagonal(6, 6, 6));
  // The band is the same from both ends.
  const Pattern band = patterns::banded(9, 9, 2);
  EXPECT_EQ(transpose(band), band);
}

TEST(Generators, BigbirdIsWindowGlobalAndRandom) {
  for (const std::int64_t cols : {0, 3, 20}) {
    for (const std::int64_t random : {0, 2, 50}) {
      const Pattern pattern = patterns::bigbird(20, cols, 1, 2, random, 6);
      validate(pattern);
      for (std::int64_t i = 0; i < 20; ++i) {
        std::int64_t always = 0, stored = 0;
        const std::int64_t centre = (2 * i + 1) * cols / 40;
        for (std::int64_t j = 0; j < cols; ++j) {
          const bool rule = i < 2 || j < 2 || std::abs(j - centre) <= 1;
          always += rule;
          stored += pattern.contains(i, j);
          if (rule) {
            ASSERT_TRUE(pattern.contains(i, j));
          }
        }
        ASSERT_EQ(stored, std::min(cols, always + random));
      }
    }
  }
}

TEST(Generators, BlockDiagonalSharesRowsAndColumns) {
  const Pattern even = patterns::block_diagonal(10, 7, 3);
  validate(even);
  EXPECT_EQ(lengths(even), (std::vector<std::int64_t>{2, 2, 2, 2, 2, 2, 3, 3, 3, 3}));
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Pattern uneven = patterns::block_diagonal(1000, 16, 16, 1.0, seed);
    validate(uneven);
    EXPECT_EQ(uneven.stored(), 1000);  // one column per row
    EXPECT_TRUE(std::is_sorted(uneven.indices.begin(), uneven.indices.end()));
    std::vector<std::int64_t> heights(16);
    for (const std::int64_t col : uneven.indices) ++heights[static_cast<std::size_t>(col)];
    std::sort(heights.rbegin(), heights.rend());
    EXPECT_EQ(heights, sparse::zipf_shares(16, 1.0, 1000, 1000));
  }
  EXPECT_EQ(patterns::block_diagonal(2, 2, 5).rows, 2);
}

TEST(Generators, ButterflyIsTheXorRule) {
  for (const std::int64_t side : {0, 1, 6, 16}) {
    for (const std::int64_t levels : {0, 1, 3, 62}) {
      const Pattern pattern = patterns::butterfly(side, side, levels);
      validate(pattern);
      for (std::int64_t i = 0; i < side; ++i) {
        for (std::int64_t j = 0; j < side; ++j) {
          const std::int64_t distance = i ^ j;
          bool stored = distance == 0;
          for (std::int64_t k = 0; k < levels; ++k) {
            stored = stored || distance == (std::int64_t{1} << k);
          }
          ASSERT_EQ(pattern.contains(i, j), stored);
        }
      }
    }
  }
  // A longer side stretches the square pattern.
  EXPECT_EQ(patterns::butterfly(16, 8, 2), refine(patterns::butterfly(8, 8, 2), 2, 1));
  EXPECT_EQ(patterns::butterfly(8, 24, 3), refine(patterns::butterfly(8, 8, 3), 1, 3));
  const Pattern odd = patterns::butterfly(5, 7, 2);
  validate(odd);
  EXPECT_EQ(statistics(odd).empty_cols, 0);
  EXPECT_EQ(statistics(patterns::butterfly(7, 5, 2)).empty_rows, 0);
  EXPECT_EQ(patterns::butterfly(5, 0, 2).stored(), 0);
}

TEST(Generators, ZipfSharesAddUpAndFollowTheLaw) {
  generate::Random random(51);
  for (int round = 0; round < 5000; ++round) {
    const std::int64_t parts = random.between(1, 60), cap = random.between(0, 40);
    const std::int64_t total = random.between(0, parts * cap);
    const double exponent = random.uniform() * 3;
    const auto shares = sparse::zipf_shares(parts, exponent, total, cap);
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), total);
    for (const std::int64_t share : shares) {
      ASSERT_GE(share, 0);
      ASSERT_LE(share, cap);
    }
  }
  // Without a cap in the way, each share is the law's to within the rounding carried along.
  const auto shares = sparse::zipf_shares(100, 1.3, 100000, 100000);
  double sum = 0;
  for (int r = 1; r <= 100; ++r) sum += std::pow(r, -1.3);
  for (int r = 1; r <= 100; ++r) {
    EXPECT_NEAR(static_cast<double>(shares[static_cast<std::size_t>(r - 1)]),
                100000 * std::pow(r, -1.3) / sum, 1.5);
  }
  EXPECT_EQ(sparse::zipf_shares(3, 1e300, 7, 3), (std::vector<std::int64_t>{3, 2, 2}));
  EXPECT_TRUE(sparse::zipf_shares(0, 1.0, 0, 0).empty());
}

TEST(Generators, PowerLawKeepsItsTotal) {
  for (const double density : {0.0, 0.01, 0.3, 0.9, 1.0}) {
    for (const double exponent : {0.0, 0.8, 2.0}) {
      const Pattern pattern = patterns::power_law(50, 30, density, exponent, 2);
      validate(pattern);
      EXPECT_EQ(pattern.stored(), std::llround(density * 1500));
    }
  }
  // Exponent zero is even; the order of the lengths follows the seed.
  EXPECT_EQ(statistics(patterns::power_law(50, 30, 0.1, 0.0, 2)).longest_row, 3);
  const auto one = lengths(patterns::power_law(50, 30, 0.3, 1.0, 1));
  const auto two = lengths(patterns::power_law(50, 30, 0.3, 1.0, 2));
  EXPECT_NE(one, two);
  EXPECT_TRUE(std::is_permutation(one.begin(), one.end(), two.begin()));
  EXPECT_EQ(patterns::power_law(0, 30, 0.3, 1.0, 1).stored(), 0);
}

TEST(Generators, TopKTakesTheLargest) {
  generate::Random random(52);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    for (int round = 0; round < 60; ++round) {
      const std::int64_t rows = random.between(0, 5), cols = random.between(0, 9);
      const std::int64_t k = random.between(0, cols), pitch = cols + 2;
      HostTensor storage(dtype, {rows, pitch});
      for (std::int64_t e = 0; e < storage.numel(); ++e) {
        store_from_float(storage.data<std::byte>(), dtype, e,
                         static_cast<float>(random.between(-3, 3)));  // many ties
      }
      const Tensor scores = tensor(storage.view().data, dtype, {rows, cols}, {pitch, 1});
      const Pattern pattern = patterns::top_k(scores, k);
      validate(pattern);
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto score = [&](std::int64_t j) {
          return load_as_float(scores.data, dtype, i * pitch + j);
        };
        for (std::int64_t j = 0; j < cols; ++j) {
          std::int64_t better = 0;
          for (std::int64_t other = 0; other < cols; ++other) {
            better += score(other) > score(j) || (score(other) == score(j) && other < j);
          }
          ASSERT_EQ(pattern.contains(i, j), better < k);
        }
      }
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const float row[] = {infinity, -infinity, nan, 1.0f};
  EXPECT_EQ(patterns::top_k(tensor(row, DType::f32, {1, 4}), 2).indices,
            (std::vector<std::int64_t>{0, 2}));
}

TEST(Generators, ArgumentsAreChecked) {
  const double nan = std::nan("");
  constexpr auto kHuge = std::numeric_limits<std::int64_t>::max() / 4;
  const float score = 0;
  const auto text = [](auto&& call, ErrorCode code = ErrorCode::invalid_argument) {
    return error_text(call, code);
  };
  EXPECT_PRED2(contains, text([&] { patterns::random(2, 2, nan, 0); }), "density");
  EXPECT_PRED2(contains, text([&] { patterns::random(2, 2, -0.1, 0); }), "density");
  EXPECT_PRED2(contains, text([&] { patterns::random(-2, 2, 0.1, 0); }), "random: rows");
  EXPECT_PRED2(contains, text([&] { patterns::random(2, -2, 0.1, 0); }), "random: cols");
  EXPECT_PRED2(contains, text([&] { patterns::banded(2, 2, -1); }), "half_width");
  EXPECT_PRED2(contains, text([&] { patterns::bigbird(2, 2, 0, -1, 0, 0); }), "global");
  EXPECT_PRED2(contains, text([&] { patterns::bigbird(2, 2, 0, 0, -1, 0); }), "bigbird: random");
  EXPECT_PRED2(contains, text([&] { patterns::block_diagonal(2, 2, 0); }), "groups");
  EXPECT_PRED2(contains, text([&] { patterns::block_diagonal(2, 2, 1, nan); }), "zipf");
  EXPECT_PRED2(contains, text([&] { patterns::butterfly(2, 2, 63); }), "levels");
  EXPECT_PRED2(contains, text([&] { patterns::power_law(2, 2, 0.5, -1.0, 0); }), "exponent");
  EXPECT_PRED2(contains, text([&] { patterns::power_law(2, 2, 2.0, 1.0, 0); }), "density");
  EXPECT_PRED2(contains, text([&] {
                 patterns::top_k(tensor(&score, DType::f32, {1, 1}), 2);
               }),
               "k: expected 0 to the 1 columns, got 2");
  EXPECT_PRED2(contains, text([&] {
                 patterns::top_k(tensor(&score, DType::i32, {1, 1}), 1);
               }),
               "float");
  EXPECT_PRED2(contains, text([&] { patterns::causal(kHuge, 1); }, ErrorCode::out_of_memory),
               "causal");
}

}  // namespace
