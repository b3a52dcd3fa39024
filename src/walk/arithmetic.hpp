#pragma once

#include <cstdint>

// Arithmetic of planners, on the host.
namespace tessera::planning {

constexpr double real(std::int64_t n) { return static_cast<double>(n); }

/// a / b, rounded up. 32-bit divisions take a fraction of the time of 64-bit ones on many hosts.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kNarrow = std::int64_t{1} << 31;
  if (a >= 0 && a < kNarrow && b > 0 && b < kNarrow) {
    const auto x = static_cast<std::uint32_t>(a), y = static_cast<std::uint32_t>(b);
    return (x + y - 1) / y;
  }
  return (a + b - 1) / b;
}

}  // namespace tessera::planning
