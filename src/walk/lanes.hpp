#pragma once

#include <bit>
#include <cstdint>

#include "src/walk/walk.hpp"

// Bitmasks with one bit per lane of a warp, as ballots return them. The functions also work on the
// host, where tests simulate the lanes of a warp one after the other.
namespace tessera::planning {

inline constexpr int kWarp = 32;

TESSERA_HD inline int count_lanes(std::uint32_t lanes) {
#ifdef __CUDA_ARCH__
  return __popc(lanes);
#else
  return std::popcount(lanes);
#endif
}
/// The lowest lane; -1 if there is none.
TESSERA_HD inline int first_lane(std::uint32_t lanes) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(lanes)) - 1;
#else
  return lanes != 0 ? std::countr_zero(lanes) : -1;
#endif
}
/// The highest lane; -1 if there is none.
TESSERA_HD inline int last_lane(std::uint32_t lanes) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(static_cast<int>(lanes));
#else
  return 31 - std::countl_zero(lanes);
#endif
}
TESSERA_HD constexpr std::uint32_t lanes_below(int lane) { return (1u << lane) - 1; }

}  // namespace tessera::planning
