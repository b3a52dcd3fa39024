#pragma once

#include <cstdint>

#include "src/walk/walk.hpp"

// Division by numbers that are known before a kernel starts, by multiplication: on a GPU a division
// takes some 25 dependent instructions.
namespace tessera::planning {

/// Divides numbers from 0 to 2^31 - 1 by a positive divisor, and larger ones as usual.
struct Divisor {
  std::int32_t divisor = 1;
  std::uint32_t factor = 0;  // ceil(2^(32 + shift) / divisor); 0: the divisor is 1
  std::uint32_t shift = 0;

  static constexpr Divisor of(std::int32_t divisor) {
    if (divisor <= 1) return {divisor};
    std::uint32_t shift = 0;
    while (std::int64_t{2} << shift < divisor) ++shift;
    const auto by = static_cast<std::uint64_t>(divisor);
    return {divisor, static_cast<std::uint32_t>(((std::uint64_t{1} << (32 + shift)) + by - 1) / by),
            shift};
  }
  TESSERA_HD constexpr std::int32_t quotient(std::int32_t number) const {
    if (factor == 0) return number;
    const std::uint64_t product = std::uint64_t{static_cast<std::uint32_t>(number)} * factor;
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(product >> 32) >> shift);
  }
  TESSERA_HD constexpr std::int64_t quotient(std::int64_t number) const {
    return number >> 31 == 0 ? quotient(static_cast<std::int32_t>(number)) : number / divisor;
  }
  TESSERA_HD constexpr std::int32_t rest(std::int32_t number) const {
    return number - quotient(number) * divisor;
  }
};

/// Divides numbers below kMax by a divisor of at most kMax, by multiplication.
struct SmallDivisor {
  static constexpr std::int32_t kMax = 256;
  std::int32_t divisor = 1;
  std::uint32_t share = 1 << 16;  // ceil(2^16 / divisor)

  static constexpr SmallDivisor of(std::int32_t divisor) {
    return {divisor, static_cast<std::uint32_t>(((1 << 16) + divisor - 1) / divisor)};
  }
  TESSERA_HD constexpr std::int32_t quotient(std::int32_t number) const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(number) * share >> 16);
  }
};

}  // namespace tessera::planning
