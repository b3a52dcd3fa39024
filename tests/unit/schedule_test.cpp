// The order of lists by length, for random lengths and edge cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "src/walk/schedule.hpp"

namespace {

using tessera::planning::longest_first;

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

}  // namespace
