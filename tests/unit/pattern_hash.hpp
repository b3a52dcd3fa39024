#pragma once

#include <cstdint>

#include <tessera/pattern.hpp>

namespace tessera::testing {

/// FNV-1a over all numbers of a pattern.
inline std::uint64_t hash(const Pattern& pattern) {
  std::uint64_t state = 0xcbf29ce484222325u;
  const auto add = [&](std::int64_t value) {
    state = (state ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u;
  };
  add(pattern.rows);
  add(pattern.cols);
  for (const std::int64_t offset : pattern.offsets) add(offset);
  for (const std::int64_t index : pattern.indices) add(index);
  return state;
}

}  // namespace tessera::testing
