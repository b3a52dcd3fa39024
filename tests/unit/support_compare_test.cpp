#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/compare.hpp"
#include "tests/support/memory.hpp"

// Comparators must see each kind of mistake, and accept a correctly rounded result.
namespace tessera::oracle {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A result and its truth, both [rows, heads, dim] of one dtype.
struct Fixture {
  explicit Fixture(DType dtype, std::vector<std::int64_t> shape = {130, 2, 16})
      : tensor(dtype, shape), truth(shape), emulated(shape), slack(shape) {
    generate::Random random(7);
    for (std::size_t n = 0; n < truth.values.size(); ++n) {
      truth.values[n] = random.normal();
      emulated.values[n] = round_to(dtype, truth.values[n]);
      slack.values[n] = 1e-7;
    }
    write(tensor, truth);
  }

  /// Writes the truth with one element replaced.
  void put(std::size_t at, double value) {
    DenseArray wrong = truth;
    wrong.values[at] = value;
    write(tensor, wrong);
  }
  Comparison product() const { return compare_product(tensor, {truth, slack}, "x"); }
  Comparison tiles() const { return compare_tiles(tensor, truth, emulated, slack, "x"); }

  HostTensor tensor;
  DenseArray truth, emulated, slack;
};

class Comparators : public ::testing::TestWithParam<DType> {};

TEST_P(Comparators, AcceptTheRoundedTruth) {
  const Fixture f(GetParam());
  EXPECT_TRUE(f.product().ok) << f.product().message;
  EXPECT_TRUE(f.tiles().ok) << f.tiles().message;
  EXPECT_LE(f.product().worst_ratio, 1.0);
  EXPECT_GT(f.product().budget, 0.0);
}

TEST_P(Comparators, SeeOneWrongElement) {
  Fixture f(GetParam());
  for (std::size_t at : {std::size_t{0}, std::size_t{1234}, f.truth.values.size() - 1}) {
    f.put(at, f.truth.values[at] + 0.25);
    EXPECT_FALSE(f.product().ok);
    EXPECT_FALSE(f.tiles().ok);
    EXPECT_NEAR(f.product().max_error, 0.25, 0.02);
  }
}

TEST_P(Comparators, NameThePosition) {
  Fixture f(GetParam());
  f.put((77 * 2 + 1) * 16 + 5, 100.0);
  EXPECT_NE(f.product().message.find("x[77, 1, 5]"), std::string::npos) << f.product().message;
  EXPECT_NE(f.tiles().message.find("x[77, 1, 5]"), std::string::npos) << f.tiles().message;
  EXPECT_NE(f.tiles().message.find("1 of 4160"), std::string::npos) << f.tiles().message;
}

TEST_P(Comparators, SeeNaNAndInfinity) {
  Fixture f(GetParam());
  for (double wrong : {kNaN, kInfinity, -kInfinity}) {
    f.put(9, wrong);
    EXPECT_FALSE(f.product().ok);
    EXPECT_FALSE(f.tiles().ok);
  }
}

TEST_P(Comparators, SeeANumberWhereNaNOrInfinityBelongs) {
  for (double special : {kNaN, kInfinity, -kInfinity}) {
    Fixture f(GetParam());
    f.truth.values[9] = special;
    f.emulated.values[9] = special;
    EXPECT_FALSE(f.product().ok);
    EXPECT_FALSE(f.tiles().ok);
    f.put(9, special);
    EXPECT_TRUE(f.product().ok) << f.product().message;
    EXPECT_TRUE(f.tiles().ok) << f.tiles().message;
    f.put(9, special == kInfinity ? -kInfinity : kInfinity);
    EXPECT_FALSE(f.product().ok);
    EXPECT_FALSE(f.tiles().ok);
  }
}

TEST_P(Comparators, SeeAZeroedTile) {
  Fixture f(GetParam());
  DenseArray wrong = f.truth;
  for (std::int64_t i = 64; i < 128; ++i) {
    for (std::int64_t d = 0; d < 16; ++d) wrong({i, 1, d}) = 0;
  }
  write(f.tensor, wrong);
  EXPECT_FALSE(f.product().ok);
  EXPECT_FALSE(f.tiles().ok);
}

TEST_P(Comparators, SeeSwappedRows) {
  Fixture f(GetParam());
  DenseArray wrong = f.truth;
  for (std::int64_t d = 0; d < 16; ++d) std::swap(wrong({3, 0, d}), wrong({4, 0, d}));
  write(f.tensor, wrong);
  EXPECT_FALSE(f.product().ok);
  EXPECT_FALSE(f.tiles().ok);
}

TEST_P(Comparators, SeeAnErrorOfAFewUlps) {
  Fixture f(GetParam());
  f.truth.values[0] = f.emulated.values[0] = 1.5;
  f.put(0, 1.5 + 20 * ulp(GetParam(), 1.5));
  EXPECT_FALSE(f.product().ok);
  EXPECT_FALSE(f.tiles().ok);
}

TEST_P(Comparators, AcceptNothingInEmptyTensors) {
  const Fixture f(GetParam(), {0, 2, 16});
  EXPECT_TRUE(f.product().ok);
  EXPECT_TRUE(f.tiles().ok);
}

INSTANTIATE_TEST_SUITE_P(Types, Comparators, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& param) { return to_string(param.param); });

TEST(Comparators, TilesHaveTheirOwnBudgets) {
  // A tile whose emulation is far off does not excuse another tile.
  Fixture f(DType::bf16);
  f.emulated.values[0] += 1.0;
  f.put(1, f.truth.values[1] + 0.5);
  EXPECT_TRUE(f.tiles().ok) << f.tiles().message;
  f.put((100 * 2) * 16, f.truth.values[(100 * 2) * 16] + 0.5);
  EXPECT_FALSE(f.tiles().ok);
}

TEST(Comparators, SeeAMissingInfinityInLse) {
  HostTensor lse(DType::f32, {1, 1, 2});
  Product truth{DenseArray({1, 1, 2}), DenseArray({1, 1, 2})};
  truth.value.values = {-kInfinity, 0.0};
  write(lse, truth.value);
  EXPECT_TRUE(compare_product(lse, truth, "lse").ok);
  lse.data<float>()[0] = -1e30f;
  EXPECT_FALSE(compare_product(lse, truth, "lse").ok);
}

TEST(Comparators, OverflowMayRoundEitherWay) {
  HostTensor out(DType::f16, {3});
  Product truth{DenseArray({3}), DenseArray({3})};
  truth.value.values = {65519.0, 70000.0, 100.0};
  DenseArray actual = truth.value;
  write(out, actual);
  EXPECT_TRUE(compare_product(out, truth, "x").ok) << compare_product(out, truth, "x").message;
  actual.values[2] = kInfinity;
  write(out, actual);
  EXPECT_FALSE(compare_product(out, truth, "x").ok);
}

TEST(Comparators, WrongShapesAreAnError) {
  const HostTensor out(DType::f32, {2, 3});
  EXPECT_FALSE(compare_product(out, {DenseArray({3, 2}), DenseArray({3, 2})}, "x").ok);
}

TEST(Comparators, WorstKeepsBothMessages) {
  const Comparison both = worst({false, "a", 1, 2, 0.5}, {false, "b", 4, 2, 2.0});
  EXPECT_FALSE(both.ok);
  EXPECT_EQ(both.message, "a; b");
  EXPECT_EQ(both.max_error, 4);
}

}  // namespace
}  // namespace tessera::oracle
