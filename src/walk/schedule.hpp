#pragma once

#include <cstdint>
#include <span>
#include <vector>

// Order and splitting of uneven lists, so that all units end at about the same time. Pure functions
// of the lengths: the same lengths give the same schedule.
namespace tessera::planning {

/// Rows by falling length; equal ones keep their order.
std::vector<std::int64_t> longest_first(std::span<const std::int64_t> lengths);

/// Entries [begin, end) of a row's list. A row that is cut leaves partial results in `slot`s, which
/// follow one another within the row; -1: the row is whole and writes its result itself.
struct Piece {
  std::int64_t row = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t slot = -1;
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct Split {
  std::int64_t chunk = 0;     // no piece is longer
  std::vector<Piece> pieces;  // by row, then begin; an empty row has one empty piece
  std::int64_t slots = 0;     // partial results in all
};

/// Cuts rows longer than one unit's fair share, into pieces of nearly equal length. `smallest` is
/// the shortest share worth a partial result.
Split split_rows(std::span<const std::int64_t> lengths, std::int64_t units,
                 std::int64_t smallest = 1);

/// The time of the slowest unit over the mean, when each unit takes the next length as it gets
/// free: 1 is perfect, 2 means that half of the machine waits.
double imbalance(std::span<const std::int64_t> lengths, std::int64_t units);

}  // namespace tessera::planning
