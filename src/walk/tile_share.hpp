#pragma once

#include <cstdint>

#include "src/walk/walk.hpp"

// How blocks of threads divide tiles that do not fill a round.
namespace tessera::planning {

/// The share of a tile's keys that a block of threads walks: from / of up to to / of. The last of a
/// tile's sharers to be done joins what all of them found.
struct TileShare {
  std::int32_t from = 0, to = 1, of = 1;
  std::int32_t part = 0, parts = 1;  // which of how many
  std::int32_t tile = 0, slot = 0;   // number among the divided tiles; where its first part is put

  /// The same of a count that is divided at multiples of `unit`.
  TESSERA_HD constexpr int begin(int count, int unit) const { return at(from, count, unit); }
  TESSERA_HD constexpr int end(int count, int unit) const { return at(to, count, unit); }

 private:
  TESSERA_HD constexpr int at(int mark, int count, int unit) const {
    const std::int64_t units = (count + unit - 1) / unit;
    const auto place = static_cast<int>(units * mark / of) * unit;
    return place < count ? place : count;
  }
};

/// Tiles lie end to end, in as many equal shares as there are sharers: a block's share may end in
/// the next tile. `turn`: how many tiles of its share the block has had. False: no more.
TESSERA_HD constexpr bool find_share(int tiles, int sharers, int block, int turn,
                                     TileShare& share) {
  const int begin = block * tiles, end = begin + tiles;  // a tile is as long as `sharers`
  if (tiles == 0 || block >= sharers) return false;
  const int tile = begin / sharers + turn;
  const int tile_begin = tile * sharers, tile_end = tile_begin + sharers;
  if (tile_begin >= end) return false;
  const int first = tile_begin / tiles;  // of its blocks
  share.from = (begin > tile_begin ? begin : tile_begin) - tile_begin;
  share.to = (end < tile_end ? end : tile_end) - tile_begin;
  share.of = sharers;
  share.part = block - first;
  share.parts = (tile_end - 1) / tiles - first + 1;
  share.tile = tile;
  share.slot = first + tile;  // tiles and sharers are enough slots, as neighbours share one block
  return true;
}

}  // namespace tessera::planning
