#pragma once

#include <cstdint>

#include "src/walk/key_pieces.hpp"

// The order of keys in a transposed V in FP8: that in which the scores of a row lie in the
// registers of a quad, so that P needs no exchange between lanes.
namespace tessera::planning {

/// The key at place `at` of a piece: 0 1 32 33, 2 3 34 35, 4 5 36 37, 6 7 38 39, then 8 9 40 41 and
/// so on.
TESSERA_HD constexpr int turned_key(int at) {
  return at / 16 * 8 + at % 16 / 4 * 2 + at % 2 + at / 2 % 2 * (kKeyPiece / 2);
}

/// Where the keys of a packed sequence begin: whole pieces, one more than their rows need.
TESSERA_HD constexpr std::int64_t first_turned(std::int64_t first_row, std::int64_t sequence) {
  return (first_row / kKeyPiece + sequence) * kKeyPiece;
}

}  // namespace tessera::planning
