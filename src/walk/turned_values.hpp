#pragma once

#include <cstdint>

#include "src/walk/key_pieces.hpp"

// The order of keys in a transposed V in FP8: that in which the scores of a row lie in the
// registers of a quad, so that P needs no exchange between lanes.
namespace tessera::planning {

/// Keys that change places with one another.
inline constexpr int kTurnedGroup = 16;

/// The key at place `at` of a group: 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15.
TESSERA_HD constexpr int turned_key(int at) { return at / 4 * 2 + at % 2 + at / 2 % 2 * 8; }

/// Where the keys of a packed sequence begin: whole pieces, one more than their rows need.
TESSERA_HD constexpr std::int64_t first_turned(std::int64_t first_row, std::int64_t sequence) {
  return (first_row / kKeyPiece + sequence) * kKeyPiece;
}

}  // namespace tessera::planning
