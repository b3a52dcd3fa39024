#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "src/walk/walk.hpp"

// Counts that no kernel has to set to zero first. A word holds a launch's tag above its count, so
// whatever lay there before, the leftovers of another launch too, is seen to be no count of this
// one. The last who counts clears the word: a graph replays its launches with the tags that they
// have.
namespace tessera::planning {

struct LaunchCount {
  static constexpr int kBits = 24;
  /// Counts end here: a word that counts to its limit is still told from all others.
  static constexpr std::int64_t kMax = std::int64_t{1} << kBits;

  /// Whether a word holds a count of that tag. `limit`: how often it is counted up in all.
  TESSERA_HD static constexpr bool holds(std::uint64_t word, std::uint64_t tag, int limit) {
    return count_of(word, tag) < static_cast<std::uint64_t>(limit);
  }
  TESSERA_HD static constexpr std::uint64_t count_of(std::uint64_t word, std::uint64_t tag) {
    return word ^ tag;
  }

  /// One that none of the 2^40 launches before had, never zero. Tags look random, and begin
  /// anywhere: what memory happens to hold is not one of them.
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
