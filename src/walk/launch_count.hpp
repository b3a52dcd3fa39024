#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "src/walk/walk.hpp"

// Counters that no kernel has to reset. A word holds a launch's tag above its count, so earlier
// contents, also the leftovers of another launch, are not mistaken for a count of this launch. The
// last thread to count clears the word: a graph replays its launches with the same tags.
namespace tessera::planning {

struct LaunchCount {
  static constexpr int kBits = 24;
  /// Upper bound of counts: a word that has reached its limit still differs from all other tags.
  static constexpr std::int64_t kMax = std::int64_t{1} << kBits;

  /// Whether a word holds a count of that tag. `limit`: how often it is counted up in all.
  TESSERA_HD static constexpr bool holds(std::uint64_t word, std::uint64_t tag, int limit) {
    return count_of(word, tag) < static_cast<std::uint64_t>(limit);
  }
  TESSERA_HD static constexpr std::uint64_t count_of(std::uint64_t word, std::uint64_t tag) {
    return word ^ tag;
  }

  /// A tag that none of the last 2^40 launches had, never zero. Tags look random and begin
  /// anywhere, so that stale memory is unlikely to hold one.
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
