#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::core {

/// What was made of a few keys before: a value depends on its key alone, and takes longer to make
/// than to look up. Each key has one place, where the last one that came there stays.
template <class Value, std::size_t kNumbers>
class Recent {
 public:
  using Key = std::array<std::int64_t, kNumbers>;

  /// Valid until the next call. What `make()` throws leaves everything as it was.
  template <class Make>
  const Value& get(const Key& key, const Make& make) {
    Entry& entry = entries_[place_of(key)];
    if (!entry.made || entry.key != key) entry = {make(), key, true};
    return entry.value;
  }

  static constexpr std::size_t kPlaces = 32;
  static constexpr std::size_t place_of(const Key& key) {
    std::uint64_t mixed = 0;
    for (const std::int64_t number : key)
      mixed = (mixed ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15;
    return mixed / (~std::uint64_t{0} / kPlaces + 1);
  }

 private:
  struct Entry {
    Value value{};
    Key key{};
    bool made = false;
  };
  std::array<Entry, kPlaces> entries_;
};

}  // namespace tessera::core
