#include "src/walk/launch_count.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace tessera::planning {
namespace {

/// Counts as kernels do. The word may hold any value before the first count.
int count_up(std::atomic<std::uint64_t>& word, std::uint64_t tag, int limit) {
  std::uint64_t seen = word.load();
  int count = 0;
  if (LaunchCount::holds(seen, tag, limit) || !word.compare_exchange_strong(seen, tag + 1))
    count = static_cast<int>(LaunchCount::count_of(word.fetch_add(1), tag));
  if (count == limit - 1) word = 0;
  return count;
}

TEST(LaunchCount, TagsDifferAndLeaveRoomForCounts) {
  std::set<std::uint64_t> tags;
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t tag = LaunchCount::new_tag();
    EXPECT_NE(tag, 0u);
    EXPECT_EQ(tag % LaunchCount::kMax, 0u);
    EXPECT_TRUE(tags.insert(tag).second);
  }
}

TEST(LaunchCount, OldValuesAreNotCounts) {
  const std::uint64_t tag = LaunchCount::new_tag();
  constexpr int kLimit = 5;
  for (std::uint64_t word : {std::uint64_t{0}, ~std::uint64_t{0}, tag + kLimit,
                             LaunchCount::new_tag(), LaunchCount::new_tag() + 1})
    EXPECT_FALSE(LaunchCount::holds(word, tag, kLimit)) << word;
  for (int count = 1; count < kLimit; ++count) {
    const std::uint64_t word = tag + static_cast<std::uint64_t>(count);
    EXPECT_TRUE(LaunchCount::holds(word, tag, kLimit));
    EXPECT_EQ(LaunchCount::count_of(word, tag), static_cast<std::uint64_t>(count));
  }
  const auto most = static_cast<int>(LaunchCount::kMax - 1);
  EXPECT_TRUE(LaunchCount::holds(tag + LaunchCount::kMax - 2, tag, most));
}

/// Threads get distinct numbers, whatever the word held. The last count clears the word, so a
/// replay with the same tag counts from zero again.
TEST(LaunchCount, ManyCountAtOnce) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t tag = LaunchCount::new_tag();
    constexpr int kThreads = 8, kEach = 40, kLimit = kThreads * kEach;
    std::atomic<std::uint64_t> word{round % 3 == 0 ? 0 : random()};
    for (int replay = 0; replay < 2; ++replay) {
      std::vector<std::vector<int>> got(kThreads);
      std::vector<std::thread> threads;
      for (std::vector<int>& mine : got)
        threads.emplace_back([&] {
          for (int i = 0; i < kEach; ++i) mine.push_back(count_up(word, tag, kLimit));
        });
      for (std::thread& thread : threads) thread.join();
      std::set<int> all;
      for (const std::vector<int>& mine : got) all.insert(mine.begin(), mine.end());
      ASSERT_EQ(all.size(), static_cast<std::size_t>(kLimit));
      EXPECT_EQ(*all.begin(), 0);
      EXPECT_EQ(*all.rbegin(), kLimit - 1);
      EXPECT_EQ(word.load(), 0u);
    }
  }
}

}  // namespace
}  // namespace tessera::planning
