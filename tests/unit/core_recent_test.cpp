#include "src/core/recent.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace tessera::core {
namespace {

using Pairs = Recent<std::int64_t, 2>;

/// Makes a value from its key, and counts how often it does.
struct Maker {
  Pairs recent;
  int made = 0;
  std::int64_t operator()(std::int64_t a, std::int64_t b) {
    return recent.get({a, b}, [&] {
      ++made;
      return a * 1000 + b;
    });
  }
};

TEST(Recent, AKeyIsMadeOnce) {
  Maker maker;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(maker(7, 3), 7003);
  EXPECT_EQ(maker.made, 1);
}

TEST(Recent, EachNumberOfAKeyCounts) {
  Maker maker;
  EXPECT_EQ(maker(7, 3), 7003);
  EXPECT_EQ(maker(7, 4), 7004);
  EXPECT_EQ(maker(8, 3), 8003);
  EXPECT_EQ(maker(3, 7), 3007);
}

TEST(Recent, AKeyOfZerosIsMadeToo) {
  Maker maker;
  EXPECT_EQ(maker(0, 0), 0);
  EXPECT_EQ(maker.made, 1);
}

TEST(Recent, KeysOfOnePlaceReplaceEachOther) {
  std::vector<std::int64_t> together;
  for (std::int64_t a = 0; together.size() < 3; ++a)
    if (Pairs::place_of({a, 1}) == Pairs::place_of({0, 1})) together.push_back(a);
  Maker maker;
  for (int round = 0; round < 2; ++round)
    for (const std::int64_t a : together) EXPECT_EQ(maker(a, 1), a * 1000 + 1);
  EXPECT_EQ(maker.made, 6);
}

TEST(Recent, AnExceptionStoresNothing) {
  Pairs recent;
  const auto fail = []() -> std::int64_t { throw std::runtime_error("no"); };
  EXPECT_THROW(recent.get({1, 2}, fail), std::runtime_error);
  EXPECT_EQ(recent.get({1, 2}, [] { return std::int64_t{5}; }), 5);
  EXPECT_EQ(recent.get({1, 2}, fail), 5);
}

TEST(Recent, NeighbouringBuffersSpread) {
  std::vector<int> used(Pairs::kPlaces);
  for (std::int64_t i = 0; i < 64; ++i) ++used[Pairs::place_of({0x7f0000000000 + (i << 21), 64})];
  for (const int count : used) EXPECT_LE(count, 8);
}

}  // namespace
}  // namespace tessera::core
