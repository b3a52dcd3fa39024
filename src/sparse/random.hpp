#pragma once

#include <cstdint>
#include <utility>
#include <vector>

// The generator behind seeded patterns: the same numbers on every machine, for ever.
namespace tessera::sparse {

/// SplitMix64: a counter, mixed.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  /// Uniform in [0, bound), bound > 0. The lowest 2^64 mod bound numbers are drawn again.
  std::int64_t below(std::int64_t bound) {
    const auto n = static_cast<std::uint64_t>(bound);
    const std::uint64_t surplus = (0 - n) % n;
    std::uint64_t x = next();
    while (x < surplus) x = next();
    return static_cast<std::int64_t>(x % n);
  }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace tessera::sparse
