#pragma once

#include <cstdint>

#include "src/walk/walk.hpp"

// How the KV of tiles that do not fill a round is split across CTAs.
namespace tessera::planning {

/// The share of a tile's keys that one CTA walks: from `from / of` up to `to / of`. The last of a
/// tile's CTAs to finish merges the partial results of all of them.
struct KvShare {
  std::int32_t from = 0, to = 1, of = 1;
  std::int32_t part = 0, parts = 1;  // index and number of the tile's parts
  std::int32_t tile = 0, slot = 0;   // index among the split tiles; slot of its first part

  /// The share's range of `count` things, split at multiples of `unit`.
  TESSERA_HD constexpr int begin(int count, int unit) const { return at(from, count, unit); }
  TESSERA_HD constexpr int end(int count, int unit) const { return at(to, count, unit); }

 private:
  TESSERA_HD constexpr int at(int mark, int count, int unit) const {
    const std::int64_t units = (count + unit - 1) / unit;
    const auto place = static_cast<int>(units * mark / of) * unit;
    return place < count ? place : count;
  }
};

/// Split tiles lie end to end, cut into one equal share per CTA: a CTA's share may end in the next
/// tile. `index`: which of the tiles of its share. False: there are no more.
TESSERA_HD constexpr bool find_kv_share(int tiles, int split_ctas, int cta, int index,
                                        KvShare& share) {
  const int begin = cta * tiles, end = begin + tiles;  // a tile is `split_ctas` long
  if (tiles == 0 || cta >= split_ctas) return false;
  const int tile = begin / split_ctas + index;
  const int tile_begin = tile * split_ctas, tile_end = tile_begin + split_ctas;
  if (tile_begin >= end) return false;
  const int first = tile_begin / tiles;  // of its CTAs
  share.from = (begin > tile_begin ? begin : tile_begin) - tile_begin;
  share.to = (end < tile_end ? end : tile_end) - tile_begin;
  share.of = split_ctas;
  share.part = cta - first;
  share.parts = (tile_end - 1) / tiles - first + 1;
  share.tile = tile;
  share.slot = first + tile;  // tiles + split_ctas slots suffice, as adjacent tiles share one CTA
  return true;
}

}  // namespace tessera::planning
