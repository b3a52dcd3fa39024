#pragma once

#include <cstdint>

#include "src/core/carver.hpp"
#include "src/walk/compose_mask.hpp"
#include "src/walk/sequence.hpp"

// A block mask for the backward pass: composed into blocks of 64 x 64, whose lists are sorted, with
// one bit per key tile and block of queries that tells whether lists name any block there, by
// column. A step's element masks, and the tile that a block of queries visits before, are looked up
// in the composed lists.
namespace tessera::planning {

inline constexpr int kQueriesPerBlock = 64;  // of a step
inline constexpr int kKeysPerTile = 128;     // of a thread block: two composed blocks

/// Instead of the index of an element mask: no pair is hidden; all pairs are hidden.
inline constexpr std::int32_t kAllSeen = -1, kNoneSeen = -2;

/// The sizes of the edges beside those of the composed mask.
struct EdgeSizes {
  ComposedMask mask;
  std::int64_t batch = 1;                 // sequences
  std::int64_t tiles = 0, row_words = 0;  // key tiles; words of 32 blocks of queries

  TESSERA_HD constexpr explicit operator bool() const { return static_cast<bool>(mask); }
  TESSERA_HD constexpr std::int64_t sets() const { return mask.batch * mask.heads; }
  TESSERA_HD constexpr std::int64_t bitmap_words() const { return sets() * tiles * row_words; }
  TESSERA_HD constexpr std::int64_t key_words() const { return batch * mask.heads * tiles * 2; }
  TESSERA_HD constexpr std::int64_t query_words() const { return batch * mask.heads * mask.rows; }
};

inline EdgeSizes edge_sizes(const AttentionShape& s) {
  if (!s.masked || s.heads == 0 || s.kv_heads == 0) return {};
  EdgeSizes sizes;
  sizes.mask = compose(s, kQueriesPerBlock);
  sizes.batch = s.batch;
  sizes.tiles = (sizes.mask.columns + 1) / 2;
  sizes.row_words = (sizes.mask.rows + 31) / 32;
  return sizes;
}

inline double edge_bytes(const EdgeSizes& e) {
  if (!e) return 0;
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  return composed_bytes(e.mask) + 4 * real(e.sets()) * real(e.tiles) * real(e.row_words) +
         8 * real(e.batch) * real(e.mask.heads) * (2 * real(e.tiles) + real(e.mask.rows));
}

/// A mask's lists and bits, which prepare/block_edges.cu writes.
struct BlockEdges {
  EdgeSizes sizes;
  ComposedLists lists;
  std::uint32_t* bitmap = nullptr;   // [set, key tile, row word]
  std::uint64_t* keys = nullptr;     // [batch, list head, composed column]: keys that queries see
  std::uint64_t* queries = nullptr;  // [batch, list head, row]: queries that see keys

  TESSERA_HD constexpr explicit operator bool() const { return bitmap != nullptr; }

  TESSERA_HD constexpr std::int64_t list_head(int head) const {
    return sizes.mask.heads > 1 ? head / static_cast<int>(sizes.mask.group) : 0;
  }
  TESSERA_HD constexpr std::int64_t set(int batch, int head) const {
    return (sizes.mask.batch > 1 ? batch : 0) * sizes.mask.heads + list_head(head);
  }
  /// The words of a key tile: bit r % 32 of word r / 32 is row r.
  TESSERA_HD constexpr const std::uint32_t* rows_of(int batch, int head, int tile) const {
    return bitmap + (set(batch, head) * sizes.tiles + tile) * sizes.row_words;
  }
  TESSERA_HD constexpr std::uint64_t seeing(int batch, int head, int row) const {
    return queries[(batch * sizes.mask.heads + list_head(head)) * sizes.mask.rows + row];
  }
  TESSERA_HD constexpr std::uint64_t kept(int batch, int head, std::int64_t column) const {
    return column < sizes.mask.columns
               ? keys[(batch * sizes.mask.heads + list_head(head)) * sizes.tiles * 2 + column]
               : 0;
  }

  struct Edge {
    std::int32_t low = kNoneSeen, high = kNoneSeen;  // element masks of the two halves of the tile
    std::int32_t before = -1;  // the last key tile before that the row's lists name; -1: none
  };
  TESSERA_HD constexpr Edge edge(int batch, int head, int row, int tile) const {
    const std::int64_t line = set(batch, head) * sizes.mask.rows + row;
    const std::int64_t first = line * sizes.mask.capacity;
    Edge edge;
    find(lists.full + first, lists.full_counts[line], tile * 2, edge, [](int) { return kAllSeen; });
    find(lists.partial + first, lists.partial_counts[line], tile * 2, edge,
         [&](int at) { return static_cast<std::int32_t>(first + at); });
    return edge;
  }
  /// The words of an element mask: one for each word_queries queries, of 64 keys.
  TESSERA_HD constexpr const std::uint64_t* words(std::int32_t bits) const {
    return lists.bits + bits * sizes.mask.block_words();
  }

 private:
  /// Looks up columns `column` and `column` + 1 in one list.
  template <class Bits>
  TESSERA_HD static constexpr void find(const std::int32_t* list, int count, std::int32_t column,
                                        Edge& edge, const Bits& bits) {
    int at = lower_bound(list, count, column);
    if (at > 0) edge.before = max_of(edge.before, list[at - 1] / 2);
    if (at < count && list[at] == column) edge.low = bits(at++);
    if (at < count && list[at] == column + 1) edge.high = bits(at);
  }

  /// The first of `count` ascending numbers that is at least `value`.
  TESSERA_HD static constexpr int lower_bound(const std::int32_t* numbers, int count,
                                              std::int32_t value) {
    int first = 0;
    while (count > 0) {
      const int half = count / 2;
      if (numbers[first + half] < value) {
        first += half + 1;
        count -= half + 1;
      } else {
        count = half;
      }
    }
    return first;
  }
};

inline BlockEdges carve_edges(core::Carver& carver, const EdgeSizes& sizes) {
  BlockEdges edges;
  edges.sizes = sizes;
  if (!sizes) return edges;
  using core::Size;
  edges.lists = carve_composed(carver, sizes.mask);
  edges.bitmap = carver.add<std::uint32_t>(Size(sizes.sets()) * sizes.tiles * sizes.row_words);
  edges.keys = carver.add<std::uint64_t>(Size(sizes.batch) * sizes.mask.heads * sizes.tiles * 2);
  edges.queries = carver.add<std::uint64_t>(Size(sizes.batch) * sizes.mask.heads * sizes.mask.rows);
  return edges;
}

/// What one entry of the composed lists says about keys and queries of a row, by positions and
/// lists.
struct EdgeSight {
  std::uint64_t keys = 0, queries = 0;
};

/// Full block: keys of `column` that rows of the block see, and rows that see some of its keys.
TESSERA_HD constexpr EdgeSight sight_of_full(const NarrowSight& by_query, const NarrowSight& by_key,
                                             std::int32_t first, std::int32_t end,
                                             std::int32_t column) {
  const std::int32_t key = column * kComposedKeys;
  EdgeSight sight;
  if (first >= end) return sight;
  sight.keys = bits_between(by_query.begin_of(first) - key, by_query.end_of(end - 1) - key);
  const std::int32_t first_key = max_of(key, by_query.begin),
                     end_key = min_of(key + kComposedKeys, by_query.end);
  if (first_key < end_key)
    sight.queries = bits_between(by_key.begin_of(first_key) - first,
                                 min_of(by_key.end_of(end_key - 1), end) - first);
  return sight;
}

/// Partial block with element mask `words`.
TESSERA_HD constexpr EdgeSight sight_of_partial(const NarrowSight& by_query,
                                                const std::uint64_t* words,
                                                std::int32_t word_queries, std::int32_t first,
                                                std::int32_t end, std::int32_t column) {
  EdgeSight sight;
  for (std::int32_t query = first; query < end; ++query) {
    const std::uint64_t seen =
        words[(query - first) / word_queries] & by_query.bits_of(query, column * kComposedKeys);
    sight.keys |= seen;
    if (seen != 0) sight.queries |= std::uint64_t{1} << (query - first);
  }
  return sight;
}

/// Adds the edges of list row `number` (of sequence, list head and row): calls mark(word, bit) for
/// the bitmap and keep(word, bits) for keys, and returns the queries that see keys. Takes every
/// `step`th entry from `first` on.
TESSERA_EITHER_SIDE
template <class Mark, class Keep>
TESSERA_HD constexpr std::uint64_t add_edges(const BlockEdges& edges, const SequenceView& sequences,
                                             std::int64_t number, int first, int step,
                                             const Mark& mark, const Keep& keep) {
  const ComposedMask& mask = edges.sizes.mask;
  const std::int64_t row = number % mask.rows, list_head = number / mask.rows % mask.heads,
                     batch = number / mask.rows / mask.heads;
  const std::int64_t set = (mask.batch > 1 ? batch : 0) * mask.heads + list_head;
  const std::int64_t line = set * mask.rows + row, begin = line * mask.capacity;
  const Sequence sequence = sequences.at(batch);
  const NarrowSight by_query = NarrowSight::of(sequence.sight),
                    by_key = NarrowSight::of(sequence.sight.from_keys(sequence.q_length));
  const auto first_query = static_cast<std::int32_t>(row * mask.queries);
  const auto end_query =
      static_cast<std::int32_t>(min_of((row + 1) * mask.queries, sequence.q_length));
  // The bitmap tells what lists name, for all sequences that share them.
  const bool marks = mask.batch > 1 || batch == 0;
  std::uint32_t* const bitmap =
      edges.bitmap + set * edges.sizes.tiles * edges.sizes.row_words + row / 32;
  std::uint64_t* const keys = edges.keys + (batch * mask.heads + list_head) * edges.sizes.tiles * 2;
  std::uint64_t queries = 0;
  const auto add = [&](std::int32_t column, const EdgeSight& sight) {
    if (marks) mark(bitmap + column / 2 * edges.sizes.row_words, std::uint32_t{1} << row % 32);
    queries |= sight.queries;
    if (sight.keys != 0) keep(keys + column, sight.keys);
  };
  for (int i = first; i < edges.lists.full_counts[line]; i += step) {
    const std::int32_t column = edges.lists.full[begin + i];
    add(column, sight_of_full(by_query, by_key, first_query, end_query, column));
  }
  for (int i = first; i < edges.lists.partial_counts[line]; i += step) {
    const std::int32_t column = edges.lists.partial[begin + i];
    add(column, sight_of_partial(by_query, edges.lists.bits + (begin + i) * mask.block_words(),
                                 static_cast<std::int32_t>(mask.word_queries()), first_query,
                                 end_query, column));
  }
  return queries;
}

}  // namespace tessera::planning
