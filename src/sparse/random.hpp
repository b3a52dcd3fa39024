#pragma once

#include <cstdint>
#include <utility>
#include <vector>

// The random number generator of seeded patterns. It is frozen: it gives the same numbers on every
// machine and in every version.
namespace tessera::sparse {

/// SplitMix64: a mixed counter.
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

  /// A uniform number in [0, bound), for bound > 0. To avoid bias, it rejects the lowest 2^64 mod
  /// bound numbers.
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
