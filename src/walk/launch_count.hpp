#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "src/walk/walk.hpp"

// Counters that need no reset before a launch. A word holds the launch's tag above its count, so
// that old contents, even of another launch, are not mistaken for a count of this launch. The last
// thread that counts clears the word, because a graph replays its launches with the same tags.
namespace tessera::planning {

struct LaunchCount {
  static constexpr int kBits = 24;
  /// Upper bound of limits: counts must stay below the bits of the tag.
  static constexpr std::int64_t kMax = std::int64_t{1} << kBits;

  /// Whether a word holds a count with that tag. `limit`: the final count.
  TESSERA_HD static constexpr bool holds(std::uint64_t word, std::uint64_t tag, int limit) {
    return count_of(word, tag) < static_cast<std::uint64_t>(limit);
  }
  TESSERA_HD static constexpr std::uint64_t count_of(std::uint64_t word, std::uint64_t tag) {
    return word ^ tag;
  }

  /// A nonzero tag that differs from those of the last 2^40 launches. Tags look random and start at
  /// a random value, so that uninitialized memory is unlikely to hold one.
  static std::uint64_t new_tag() {
    static std::atomic<std::uint64_t> launches{
        static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
    constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15, kTags = std::uint64_t{1} << (64 - kBits);
    std::uint64_t tag = 0;
    while (tag == 0) tag = (launches.fetch_add(1, std::memory_order_relaxed) * kOdd) % kTags;
    return tag << kBits;
  }
};

}  // namespace tessera::planning
