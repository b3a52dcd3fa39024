// Visibility and range walks against the rule for each pair, over all small cases.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/walk/walk.hpp"

namespace {

using tessera::planning::bits_between;
using tessera::planning::clip_step;
using tessera::planning::KeyRange;
using tessera::planning::KeyStep;
using tessera::planning::NarrowSight;
using tessera::planning::page_place;
using tessera::planning::RangeWalk;
using tessera::planning::Visibility;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

struct Case {
  Visibility sight;
  std::int64_t q_length, kv_length;
};

/// The rule of the public header, written out.
bool sees(const Visibility& v, std::int64_t query, std::int64_t key) {
  if (key < v.used.begin || key >= v.used.end) return false;
  const std::int64_t distance = (v.kv_position + key) - (v.q_position + query);
  if (v.window_left >= 0 && distance < 0 && -distance > v.window_left) return false;
  if (v.window_right >= 0 && distance > 0 && distance > v.window_right) return false;
  return true;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (std::int64_t q = 1; q <= 4; ++q) {
    for (std::int64_t kv : {0, 1, 4, 6}) {
      for (std::int64_t q_position : {-3, 0, 1, 2, 9}) {
        for (std::int64_t kv_position : {0, 2}) {
          for (std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, kHuge}) {
            for (std::int64_t right : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, kHuge}) {
              // Ranges that end before they begin are empty too.
              for (std::int64_t begin = 0; begin <= kv; begin += 2) {
                for (std::int64_t end = 0; end <= kv; ++end) {
                  cases.push_back({{q_position, kv_position, {begin, end}, left, right}, q, kv});
                }
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

TEST(Walk, RowSeesWhatTheRuleSays) {
  for (const Case& c : all_cases()) {
    for (std::int64_t i = 0; i < c.q_length; ++i) {
      const KeyRange seen = c.sight.of_row(i);
      for (std::int64_t j = -1; j <= c.kv_length; ++j) {
        ASSERT_EQ(seen.begin <= j && j < seen.end, sees(c.sight, i, j));
      }
    }
  }
}

TEST(Walk, NarrowSightSeesTheSame) {
  const auto check = [](const Visibility& wide, std::int64_t row) {
    const NarrowSight narrow = NarrowSight::of(wide);
    const KeyRange seen = wide.of_row(row);
    const auto at = static_cast<std::int32_t>(row);
    const KeyRange also{narrow.begin_of(at), narrow.end_of(at)};
    ASSERT_EQ(also.empty(), seen.empty());
    if (!seen.empty()) {
      ASSERT_EQ(also, seen);
    }
  };
  for (const Case& c : all_cases())
    for (std::int64_t i = 0; i < c.q_length; ++i) check(c.sight, i);
  // The largest positions, lengths and windows.
  constexpr std::int64_t kFar = std::int64_t{1} << 60, kLong = std::int64_t{1} << 29;
  for (std::int64_t q : {-2 * kFar, -kLong, std::int64_t{0}, kLong, kFar, 2 * kFar})
    for (std::int64_t kv : {-kFar, -kLong, std::int64_t{5}, kLong, kFar})
      for (std::int64_t left : {std::int64_t{-1}, std::int64_t{3}, kLong, kFar, 4 * kFar, kHuge})
        for (std::int64_t right : {std::int64_t{-1}, std::int64_t{3}, kLong, kFar, 4 * kFar, kHuge})
          for (std::int64_t row : {std::int64_t{0}, std::int64_t{77}, kLong - 1})
            check({q, kv, {3, kLong - 1}, left, right}, row);
}

TEST(Walk, RangesOfBitsAreCutOff) {
  const auto check = [](auto begin, auto end) {
    std::uint64_t expected = 0;
    for (int i = 0; i < 64; ++i)
      if (begin <= i && i < end) expected |= std::uint64_t{1} << i;
    ASSERT_EQ(bits_between(begin, end), expected) << begin << " " << end;
  };
  for (int begin = -70; begin <= 140; ++begin)
    for (int end = -70; end <= 140; ++end) {
      check(begin, end);
      check(std::int64_t{begin}, std::int64_t{end});
    }
  using Limits = std::numeric_limits<std::int32_t>;
  for (std::int32_t far : {Limits::min(), Limits::max()})
    for (int other : {Limits::min(), -1, 0, 1, 63, 64, 65, Limits::max()}) {
      check(far, other);
      check(other, far);
    }
}

TEST(Walk, BitsOfARowAreTheKeysThatItSees) {
  const auto check = [](const Visibility& sight, std::int64_t row, std::int64_t key) {
    const KeyRange seen = sight.of_row(row);
    std::uint64_t expected = 0;
    for (int i = 0; i < 64; ++i)
      if (seen.begin <= key + i && key + i < seen.end) expected |= std::uint64_t{1} << i;
    ASSERT_EQ(NarrowSight::of(sight).bits_of(static_cast<std::int32_t>(row),
                                             static_cast<std::int32_t>(key)),
              expected);
  };
  for (const Case& c : all_cases())
    for (std::int64_t i = 0; i < c.q_length; ++i)
      for (std::int64_t key : {0, 1, 4}) check(c.sight, i, key);
  constexpr std::int64_t kLong = std::int64_t{1} << 29, kNowhere = std::int64_t{1} << 30;
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  std::mt19937_64 random(7);
  const auto up_to = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  for (int trial = 0; trial < 200000; ++trial) {
    const std::int64_t lengths[] = {64, 5000, kLong - 1};
    const std::int64_t length = lengths[up_to(2)], row = up_to(length);
    const std::int64_t shifts[] = {0, up_to(length), -up_to(length), 2 * kFar, -2 * kFar};
    const std::int64_t starts[] = {0, up_to(100), -up_to(100), kFar, -kFar};
    const std::int64_t windows[] = {-1, 0, up_to(130), up_to(2 * length), kFar, 4 * kFar, kHuge};
    const std::int64_t kv_position = starts[up_to(4)];
    std::int64_t q_position = shifts[up_to(4)];
    if (q_position < kFar && q_position > -kFar) q_position += kv_position;
    const Visibility sight{q_position,
                           kv_position,
                           {up_to(length), up_to(length)},
                           windows[up_to(6)],
                           windows[up_to(6)]};
    // Keys around the range's ends and the row, random keys, and a piece that does not exist.
    const KeyRange seen = sight.of_row(row);
    for (std::int64_t edge : {seen.begin, seen.end, row, up_to(length), kNowhere})
      for (std::int64_t key : {edge - up_to(64), edge + up_to(6)})
        if (key >= 0 && key < kNowhere + 64) check(sight, row, key);
  }
}

TEST(Walk, AnyIsTheUnionAndAllTheIntersection) {
  for (const Case& c : all_cases()) {
    for (std::int64_t first = 0; first < c.q_length; ++first) {
      for (std::int64_t last = first; last < c.q_length; ++last) {
        const KeyRange any = c.sight.of_any(first, last), all = c.sight.of_all(first, last);
        for (std::int64_t j = 0; j < c.kv_length; ++j) {
          std::int64_t rows = 0;
          for (std::int64_t i = first; i <= last; ++i) rows += sees(c.sight, i, j);
          ASSERT_EQ(any.begin <= j && j<any.end, rows> 0);
          ASSERT_EQ(all.begin <= j && j < all.end, rows == last - first + 1);
        }
      }
    }
  }
}

/// Checks a step against the rule: it lies in its block, and `boundary` is exact.
void check_step(const Visibility& sight, std::int64_t first, std::int64_t last,
                const KeyStep& step) {
  bool hidden = false;
  for (std::int64_t i = first; i <= last; ++i) {
    for (std::int64_t j = step.begin; j < step.begin + step.count; ++j) {
      hidden |= !sees(sight, i, j);
    }
  }
  ASSERT_EQ(step.boundary, hidden);
  ASSERT_EQ(step.bit_tile, -1);
}

TEST(Walk, RangeWalkVisitsEachVisibleKeyOnceInOrder) {
  for (const Case& c : all_cases()) {
    for (std::int64_t tile : {1, 2, 3, 64}) {
      const std::int64_t first = c.q_length / 2, last = c.q_length - 1;
      const RangeWalk walk{c.sight, first, last, tile};
      std::vector<std::int64_t> keys, expected;
      for (std::int64_t s = 0; s < walk.steps(); ++s) {
        const KeyStep step = walk.step(s);
        ASSERT_GT(step.count, 0);
        ASSERT_EQ(step.begin / tile, (step.begin + step.count - 1) / tile);
        ASSERT_EQ(step.block_begin % tile, 0);
        check_step(c.sight, first, last, step);
        for (std::int64_t j = 0; j < step.count; ++j) keys.push_back(step.begin + j);
      }
      for (std::int64_t j = 0; j < c.kv_length; ++j) {
        bool visible = false;
        for (std::int64_t i = first; i <= last; ++i) visible |= sees(c.sight, i, j);
        if (visible) expected.push_back(j);
      }
      ASSERT_EQ(keys, expected);
    }
  }
}

TEST(Walk, ClipKeepsNothingOfABlockOutOfSight) {
  const Visibility causal{
      .q_position = 0, .kv_position = 0, .used = {0, 100}, .window_left = -1, .window_right = 0};
  EXPECT_EQ(clip_step(causal, 0, 9, {10, 20}).count, 0);
  EXPECT_EQ(clip_step(causal, 0, 10, {10, 20}).count, 1);
  EXPECT_FALSE(clip_step(causal, 30, 40, {10, 20}).boundary);
}

TEST(Walk, IsConstantArithmetic) {
  constexpr Visibility kSight{
      .q_position = 2, .kv_position = 0, .used = {0, 8}, .window_left = 2, .window_right = 0};
  constexpr RangeWalk kWalk{kSight, 0, 3, 4};
  static_assert(kWalk.steps() == 2);
  static_assert(kWalk.step(0).count == 4 && kWalk.step(1).count == 2);
  static_assert(page_place(130, 64).page == 2 && page_place(130, 64).slot == 2);
  SUCCEED();
}

}  // namespace
