#pragma once

#include <cstdint>

#include "src/walk/key_pieces.hpp"

// The order of keys in FP8. A lane holds the scores of two of each eight rows of K, and multiplies
// four adjacent keys of V. So that P needs no exchange between lanes, either a transposed V has its
// keys in the order of these scores, or K has its rows in the order that V's keys need.
namespace tessera::planning {

/// The key at place `at` of a piece of a transposed V: 0 1 32 33, 2 3 34 35, 4 5 36 37, 6 7 38 39,
/// then 8 9 40 41 and so on. Where V lies by keys, key `at` of a piece of K is in this row: the
/// first half of the rows are keys 0 1, 4 5, 8 9 and so on, the second half the others.
TESSERA_HD constexpr int turned_key(int at) {
  return at / 16 * 8 + at % 16 / 4 * 2 + at % 2 + at / 2 % 2 * (kKeyPiece / 2);
}

/// The bytes of `high` and `low`, 7 to 0, that the four digits of `selector` name.
TESSERA_HD constexpr std::uint32_t bytes_of(std::uint32_t low, std::uint32_t high,
                                            std::uint32_t selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(low, high, selector);
#else
  const std::uint64_t all = std::uint64_t{high} << 32 | low;
  std::uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= static_cast<std::uint32_t>(all >> (selector >> i * 4 & 7) * 8 & 0xFF) << i * 8;
  return chosen;
#endif
}

/// Where a lane finds the bits of its keys, if one bit per key of a piece is given: `first_key`
/// says where its bits begin. The other bits have any value.
struct BitsOfLane {
  std::uint32_t low = 0x3210, high = 0x7654;
  int high_shift = 0, keys = 2;

  /// `by_keys`: rows of K are in the order that V's keys need. Then of each 16 keys four are the
  /// lane's: two in each half of the rows.
  TESSERA_HD explicit constexpr BitsOfLane(bool by_keys) {
    if (by_keys) low = high = 0x6420, high_shift = 2, keys = 4;
  }
  /// The first key of a lane of a quad.
  TESSERA_HD constexpr int first_key(int lane) const { return lane * keys; }
  /// From bits that begin with the lane's first key: bits 0 and 1 of each byte are the lane's
  /// scores of eight rows of K.
  TESSERA_HD constexpr std::uint64_t operator()(std::uint64_t bits) const {
    const auto first = static_cast<std::uint32_t>(bits);
    const auto second = static_cast<std::uint32_t>(bits >> 32);
    return bytes_of(first, second, low) | std::uint64_t{bytes_of(first, second, high) >> high_shift}
                                              << 32;
  }
};

/// Where the keys of a packed sequence begin: whole pieces, one more than their rows need.
TESSERA_HD constexpr std::int64_t first_turned(std::int64_t first_row, std::int64_t sequence) {
  return (first_row / kKeyPiece + sequence) * kKeyPiece;
}

}  // namespace tessera::planning
