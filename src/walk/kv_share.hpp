#pragma once

#include <cstdint>

#include "src/walk/walk.hpp"

// KV split across CTAs, for the output tiles that do not fill a round of all CTAs.
namespace tessera::planning {

/// The share of a tile's keys that one CTA walks: from `from / of` up to `to / of` of them. The
/// last CTA of a tile that finishes merges the partial results.
struct KvShare {
  std::int32_t from = 0, to = 1, of = 1;
  std::int32_t part = 0, parts = 1;  // index and number of the tile's parts
  std::int32_t tile = 0, slot = 0;  // index among the split tiles; workspace slot of its first part

  /// The share's range of `count` pieces, split at multiples of `unit` pieces.
  TESSERA_HD constexpr int begin(int count, int unit) const { return at(from, count, unit); }
  TESSERA_HD constexpr int end(int count, int unit) const { return at(to, count, unit); }

 private:
  TESSERA_HD constexpr int at(int mark, int count, int unit) const {
    if (mark == 0) return 0;
    if (mark == of) return count;
    const int units = unit == 1 ? count : (count + unit - 1) / unit;
    const int before = units == of ? mark : static_cast<int>(std::int64_t{units} * mark / of);
    return before * unit < count ? before * unit : count;
  }
};

/// Finds the share of a CTA. The split tiles are concatenated and divided into one equal share per
/// CTA, so that a CTA's share may continue in the next tile. `index`: the index of the tile within
/// the CTA's share. Returns false if the share has no more tiles.
TESSERA_HD constexpr bool find_kv_share(int tiles, int split_ctas, int cta, int index,
                                        KvShare& share) {
  const int begin = cta * tiles, end = begin + tiles;  // a tile has length `split_ctas`
  if (tiles == 0 || cta >= split_ctas) return false;
  const int tile = begin / split_ctas + index;
  const int tile_begin = tile * split_ctas, tile_end = tile_begin + split_ctas;
  if (tile_begin >= end) return false;
  const int first = tile_begin / tiles;  // the first CTA with a share of the tile
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
