#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::core {

/// A small direct-mapped cache for values that depend on their key alone. A key is kNumbers
/// integers and maps to one slot; a new key replaces the one in its slot.
template <class Value, std::size_t kNumbers>
class Recent {
 public:
  using Key = std::array<std::int64_t, kNumbers>;

  /// The value of `key`, from the cache or from `make()`. The reference is valid until the next
  /// call. If `make()` throws, the cache is unchanged.
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
