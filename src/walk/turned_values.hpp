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

/// A lane of a warp that transposes half of the keys of a piece, 16 columns at a time:
/// ldmatrix.trans loads four blocks of eight keys, stmatrix stores four of eight columns and 16
/// keys. Lanes 8 i to 8 i + 7 pass the addresses of block i.
struct LaneOfTurn {
  static constexpr int kColumns = 16;

  unsigned lane, half;

  /// The keys of this half, a bit each.
  TESSERA_HD constexpr std::uint64_t keys() const { return 0x0000FFFF0000FFFF << half * 16; }
  /// The key whose address the lane passes to ldmatrix.
  TESSERA_HD constexpr unsigned row() const {
    const unsigned block = lane / 8;
    return (block % 2 * 4 + block / 2 + half * 2) * 8 + lane % 8;
  }
  /// The column, and the first place of 16, whose address it passes to stmatrix. Four of a block's
  /// columns are even and four odd, as then they lie in different banks.
  TESSERA_HD constexpr unsigned column() const {
    return lane % 8 * 2 + (lane % 8 / 4 ^ lane / 8 % 2);
  }
  TESSERA_HD constexpr unsigned place() const { return (half * 2 + lane / 16) * 16; }
  /// From the words that it has loaded, each of two columns of two keys, to those that it stores,
  /// of one column and four keys.
  TESSERA_HD constexpr void arrange(const std::uint32_t (&loaded)[4],
                                    std::uint32_t (&stored)[4]) const {
    constexpr std::uint32_t kEven = 0x6420, kToOdd = 0x1111;
    const std::uint32_t first = kEven ^ lane / 16 * kToOdd;
    for (int i = 0; i < 4; i += 2) {
      stored[i] = bytes_of(loaded[i], loaded[i + 1], first);
      stored[i + 1] = bytes_of(loaded[i], loaded[i + 1], first ^ kToOdd);
    }
  }
};

}  // namespace tessera::planning
