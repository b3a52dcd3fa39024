#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "src/core/carver.hpp"
#include "src/problem/shape.hpp"
#include "src/walk/divisor.hpp"
#include "src/walk/list_walk.hpp"

// Composed masks. If the blocks of a mask do not fit an attention kernel's tiles, another kernel
// first composes an equivalent mask with blocks that do. A composed block is full if the given
// blocks cover all of its pairs, else partial, with an element mask of its own. The planner, the
// kernel that composes and the kernel that walks the composed lists share this arithmetic.
namespace tessera::planning {

/// Keys per composed block: one word of an element mask.
inline constexpr int kComposedKeys = 64;

/// A word with the bits below `end` set.
template <class Int>
TESSERA_HD constexpr std::uint64_t bits_below(Int end) {
  return bits_between(Int{0}, end);
}

/// The sizes of a composed mask.
struct ComposedMask {
  std::int64_t queries = 0;  // per block; a block has kComposedKeys keys
  std::int64_t words = 0;    // per element mask, each for the same number of queries; 0: the mask
                             // is not composed
  std::int64_t batch = 1, heads = 1, rows = 0, columns = 0;
  std::int64_t group = 1;     // heads that share a set of lists
  std::int64_t capacity = 0;  // maximum blocks per row of lists

  TESSERA_HD constexpr explicit operator bool() const { return words > 0; }
  TESSERA_HD constexpr std::int64_t list_rows() const { return batch * heads * rows; }
  TESSERA_HD constexpr std::int64_t word_queries() const { return queries / words; }
  /// Words in memory per block: its words, followed by their union.
  TESSERA_HD constexpr std::int64_t block_words() const { return words + 1; }
};

/// The sizes of a mask composed into blocks of `queries` queries. It does not overflow, as every
/// bound is at most the number of columns.
inline ComposedMask compose(const AttentionShape& s, std::int64_t queries) {
  const auto bounded = [](std::int64_t a, std::int64_t b, std::int64_t limit) {
    std::int64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? limit : std::min(product, limit);
  };
  // The maximum number of multiples of `step` that an interval touches.
  const auto touched = [](std::int64_t length, std::int64_t step) {
    return 1 + (length - std::gcd(length, step) + step - 1) / step;
  };
  ComposedMask mask;
  mask.queries = queries;
  // Queries of one block row share a word, unless blocks have element masks.
  mask.words = s.mask_bits ? queries : queries / std::gcd(s.mask_block.rows, queries);
  mask.batch = s.mask_batch;
  mask.heads = s.mask_heads;
  mask.group = s.heads_per_list();
  mask.rows = (s.q_length + queries - 1) / queries;
  mask.columns = (s.kv_length + kComposedKeys - 1) / kComposedKeys;
  mask.capacity =
      bounded(bounded(s.mask_capacity, touched(queries, s.mask_block.rows), mask.columns),
              touched(s.mask_block.cols, kComposedKeys), mask.columns);
  return mask;
}

/// Replaces a problem's mask with the composed one.
inline void set_mask(AttentionShape& s, const ComposedMask& mask) {
  s.mask_block = {mask.queries, kComposedKeys};
  s.mask_rows = mask.rows;
  s.mask_capacity = mask.capacity;
  s.mask_bits = true;
}

/// The problem with the composed mask, if there is one; else unchanged.
inline AttentionShape with_mask(AttentionShape s, const ComposedMask& mask) {
  if (mask) set_mask(s, mask);
  return s;
}

/// Bytes of workspace, as a double because the number may not fit 64 bits.
inline double composed_bytes(const ComposedMask& m) {
  const double block = 12.0 + 8.0 * static_cast<double>(m.block_words());
  return static_cast<double>(m.batch) * static_cast<double>(m.heads) * static_cast<double>(m.rows) *
         (8.0 + static_cast<double>(m.capacity) * block);
}

/// Composed lists: `capacity` entries for each row [batch, head, row]. Partial block n of a row has
/// element mask row * capacity + n.
struct ComposedLists {
  std::int32_t *full_counts = nullptr, *partial_counts = nullptr;
  std::int32_t *full = nullptr, *partial = nullptr, *bit_tile = nullptr;
  std::uint64_t* bits = nullptr;
};

inline ComposedLists carve_composed(core::Carver& carver, const ComposedMask& m) {
  const core::Size rows = core::Size(m.batch) * m.heads * m.rows, entries = rows * m.capacity;
  ComposedLists lists;
  lists.full_counts = carver.add<std::int32_t>(rows);
  lists.partial_counts = carver.add<std::int32_t>(rows);
  lists.full = carver.add<std::int32_t>(entries);
  lists.partial = carver.add<std::int32_t>(entries);
  lists.bit_tile = carver.add<std::int32_t>(entries);
  lists.bits = carver.add<std::uint64_t>(entries * m.block_words());
  return lists;
}

inline MaskView view_of(const ComposedMask& m, const ComposedLists& lists) {
  const ListStrides rows{
      .batch = m.batch > 1 ? m.heads * m.rows : 0, .head = m.heads > 1 ? m.rows : 0, .row = 1};
  const ListStrides entries{.batch = rows.batch * m.capacity,
                            .head = rows.head * m.capacity,
                            .row = m.capacity,
                            .entry = 1};
  const auto list = [&](const std::int32_t* counts, const std::int32_t* indices) {
    return ListView{.sizes = {.narrow = counts},
                    .indices = {.narrow = indices},
                    .size_strides = rows,
                    .index_strides = entries,
                    .rows = m.rows,
                    .extent = m.capacity};
  };
  return {.full = list(lists.full_counts, lists.full),
          .partial = list(lists.partial_counts, lists.partial),
          .bit_tile = {.narrow = lists.bit_tile},
          .bit_tile_strides = entries,
          .bit_tiles = m.list_rows() * m.capacity,
          .block_q = m.queries,
          .block_kv = kComposedKeys,
          .kv_blocks = m.columns,
          .group = m.group};
}

/// The element mask of a composed block: `count` words, each for `word_queries` queries, followed
/// by their union.
struct ComposedBits {
  const std::uint64_t* words = nullptr;
  std::int32_t count = 0, word_queries = 1;

  /// The keys of the block, from `key` on, that some query of [first, end) attends to: the element
  /// mask contains the pair, and the query's position sees the key. The queries are a block row of
  /// the mask, or the beginning of the last one of the sequence.
  TESSERA_HD constexpr std::uint64_t met(const NarrowSight& sight, std::int32_t first,
                                         std::int32_t end, std::int32_t key) const {
    const bool whole = end - first == count * word_queries;
    if (whole && sight.begin_of(end - 1) <= key && sight.end_of(first) >= key + kComposedKeys)
      return words[count];
    std::uint64_t found = 0;
    const std::uint64_t* word = words;
    for (std::int32_t query = first; query < end; query += word_queries, ++word) {
      const std::int32_t next = query + word_queries, last = (next < end ? next : end) - 1;
      found |= *word & bits_between(sight.begin_of(query) - key, sight.end_of(last) - key);
    }
    return found;
  }
};

/// The element masks of the given mask, with any strides, in bytes.
struct BitTiles {
  const std::uint8_t* data = nullptr;
  std::int64_t tile = 0, row = 0, byte = 1;

  /// Bits [from, from + count) of a row; count is at most 64.
  TESSERA_HD constexpr std::uint64_t read(std::int64_t at_tile, std::int64_t at_row,
                                          std::int64_t from, std::int64_t count) const {
    const std::uint8_t* bytes = data + at_tile * tile + at_row * row;
    std::uint64_t found = 0;
    for (std::int64_t i = from / 8; i * 8 < from + count; ++i) {
      const std::uint64_t eight = bytes[i * byte];
      const std::int64_t shift = i * 8 - from;
      found |= shift < 0 ? eight >> -shift : eight << shift;
    }
    return found & bits_below(count);
  }
};

/// Composes a mask, one composed block row after the other. It merges the words of the row's blocks
/// from the given block rows that overlap the row, then classifies each block. The given lists are
/// not checked: invalid blocks and element masks are ignored, and duplicates count once.
struct MaskComposer {
  MaskView given;
  BitTiles bits;
  std::int64_t q_length = 0, kv_length = 0;  // of the longest sequence
  ComposedMask to;
  ComposedLists lists;

  struct ComposedRow {
    std::int64_t batch = 0, set = 0, row = 0;  // set: index of the set of lists
    std::int64_t begin = 0, end = 0;           // queries
  };
  TESSERA_HD constexpr ComposedRow composed_row(std::int64_t index) const {
    const std::int64_t row = index % to.rows, set = index / to.rows;
    const std::int64_t begin = row * to.queries, end = begin + to.queries;
    return {set / to.heads, set % to.heads, row, begin, end < q_length ? end : q_length};
  }

  /// A row of a given list that overlaps a composed row, with the words of the overlap.
  struct Source {
    ListRow blocks, tiles;
    std::int64_t first_query = 0;            // of the given block row
    std::int64_t first_word = 0, words = 0;  // of the composed row
  };
  TESSERA_HD constexpr std::int64_t sources(const ComposedRow& r) const {
    return 2 * ((r.end - 1) / given.block_q - r.begin / given.block_q + 1);
  }
  TESSERA_HD constexpr Source source(const ComposedRow& r, std::int64_t number) const {
    const std::int64_t row = r.begin / given.block_q + number / 2, queries = to.word_queries();
    const std::int64_t first = row * given.block_q;
    const KeyRange shared = intersect({first, first + given.block_q}, {r.begin, r.end});
    Source source;
    if (number % 2 == 0) {
      source.blocks = given.full.row(r.batch, r.set, row);
    } else {
      source.blocks = given.partial.row(r.batch, r.set, row);
      source.tiles =
          given.partial.row_of(given.bit_tile, given.bit_tile_strides, r.batch, r.set, row);
    }
    source.first_query = first;
    source.first_word = (shared.begin - r.begin) / queries;
    source.words = (shared.end - r.begin + queries - 1) / queries - source.first_word;
    return source;
  }

  /// Merges entry `entry` of a source into word `word` of the composed blocks in columns [from,
  /// end): calls `merge(column, bits)` for each column with visible keys.
  template <class Merge>
  TESSERA_HD constexpr void add(const ComposedRow& r, const Source& source, std::int64_t entry,
                                std::int64_t word, std::int64_t from, std::int64_t end,
                                const Merge& merge) const {
    const std::int64_t block = source.blocks[entry];
    if (block < 0 || block >= given.kv_blocks) return;
    const std::int64_t first = block * given.block_kv;
    const KeyRange keys =
        intersect({first, first + given.block_kv}, {from * kComposedKeys, end * kComposedKeys});
    if (keys.empty()) return;
    std::int64_t tile = -1;
    if (source.tiles.indices) {
      tile = source.tiles[entry];
      if (tile < 0 || tile >= given.bit_tiles) return;
    }
    const std::int64_t row = r.begin + word * to.word_queries() - source.first_query;
    for (std::int64_t column = keys.begin / kComposedKeys; column * kComposedKeys < keys.end;
         ++column) {
      const std::int64_t begin = column * kComposedKeys;
      const KeyRange part = intersect(keys, {begin, begin + kComposedKeys});
      const std::uint64_t seen = tile < 0 ? bits_below(part.size())
                                          : bits.read(tile, row, part.begin - first, part.size());
      if (seen != 0) merge(column, seen << (part.begin - begin));
    }
  }

  /// The kind of a composed block, and the union of its words.
  enum class Kind : std::uint8_t { empty, partial, full };
  struct Classified {
    Kind kind = Kind::empty;
    std::uint64_t any = 0;
  };
  template <class Words>
  TESSERA_HD constexpr Classified classify(const ComposedRow& r, std::int64_t column,
                                           const Words& word) const {
    const std::uint64_t real = bits_below(kv_length - column * kComposedKeys);
    std::uint64_t any = 0, all = real;
    for (std::int64_t i = 0; r.begin + i * to.word_queries() < r.end; ++i) {
      any |= word(i);
      all &= word(i);
    }
    return {all == real ? Kind::full : any != 0 ? Kind::partial : Kind::empty, any};
  }
};

}  // namespace tessera::planning
