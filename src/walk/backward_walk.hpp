#pragma once

#include <cstdint>

#include "src/walk/block_edges.hpp"
#include "src/walk/divisor.hpp"
#include "src/walk/sequence.hpp"
#include "src/walk/tile_walk.hpp"
#include "src/walk/walk.hpp"

// The walk of attention's backward pass on a GPU. A thread block has a tile of keys of one KV head
// and visits the blocks of queries that see some of its keys, for all query heads of the group,
// from the last block to the first or, with tiles in descending order, from the first to the last.
// The gradients of a block of queries are added up in the order of key tiles. Key tiles are handed
// out in that order, so a thread block waits only for thread blocks that have begun before it.
// Where all tiles see all blocks, each may begin at a block of its own and go around (`rotates`);
// what it adds to the blocks before its first one goes to sums of their own. Where few queries meet
// many keys, every n-th tile adds to the same sums (`chains`). Where tiles are few or wait, each is
// visited in several shares, which divide the heads of the group and then the blocks of queries.
namespace tessera::planning {

/// How rows of sequences are cut into blocks of `rows`, numbered through all sequences. Packed
/// sequences begin anywhere, so the numbers have gaps.
struct RowBlocks {
  Divisor rows;
  bool packed = false;
  Divisor per_sequence;  // blocks, if not packed

  static constexpr RowBlocks of(int rows, bool packed, std::int64_t length) {
    const auto blocks = static_cast<int>((length + rows - 1) / rows);
    return {Divisor::of(rows), packed, Divisor::of(blocks)};
  }
  /// The blocks of a sequence that is not packed.
  TESSERA_HD constexpr int each() const { return per_sequence.divisor; }
  /// An upper bound of the numbers. `total`: rows of all sequences.
  constexpr std::int64_t bound(std::int64_t batch, std::int64_t total) const {
    return packed ? total / rows.divisor + batch : batch * each();
  }
  /// The number of a sequence's first block. `begin`: its first row in packed tensors.
  TESSERA_HD constexpr int first(int batch, int begin) const {
    return packed ? rows.quotient(begin) + batch : batch * each();
  }
  TESSERA_HD constexpr int count(int length) const {
    return rows.quotient(length + rows.divisor - 1);
  }
};

/// How many thread blocks visit a key tile, each for some heads of the group, or for some of the
/// blocks of queries of one head.
struct TileShares {
  int heads = 1, blocks = 1;
  TESSERA_HD constexpr int count() const { return heads * blocks; }
};

/// A share of a tile of keys. Shares are numbered through all KV heads.
struct KeyTilePlace {
  int batch = -1, share = 0, tile = 0;  // batch -1: there is no such tile
  bool ascends = false;                 // whether blocks of queries are visited from the first on
};

struct BackwardWalk {
  SequenceView sequences;
  RowBlocks queries, keys;
  int batches = 0, heads = 0;
  TileShares tile_shares;
  int shares = 0;           // of all KV heads
  int group = 1;            // query heads of a share
  int tiles = 0;            // shares of key tiles, upper bound
  int section = 1;          // shares whose tiles are handed out in turns
  bool alternates = false;  // every other section, not the last, ascends
  bool rotates = false;     // all sections ascend, and each tile begins at a block of its own
  int query_blocks = 0;     // numbers of blocks of queries per head
  BlockEdges edges;         // of a block mask
  // Of what is above.
  Divisor by_heads, by_shares, by_tile_shares, by_block_shares, by_section, by_section_tiles;
  // Sums of a block of queries, a power of two: a tile adds to the same ones as the tile so many
  // before it. With a block mask, 1.
  int chains = 1;

  /// Sets the divisors.
  constexpr void set_divisors() {
    by_heads = Divisor::of(heads);
    by_shares = Divisor::of(shares);
    by_tile_shares = Divisor::of(tile_shares.count());
    by_block_shares = Divisor::of(tile_shares.blocks);
    by_section = Divisor::of(section);
    by_section_tiles = Divisor::of(section * keys.each());
  }

  /// Tile `number` of keys that are not packed: tile 0 of all shares of a section, then tile 1. Of
  /// a section that ascends: the last tile of all shares, then the one before it.
  TESSERA_HD constexpr KeyTilePlace place_of(int number) const {
    const int at = by_section_tiles.quotient(number), first = at * section;
    const int within = number - at * by_section_tiles.divisor;
    const int lines = batches * shares, left = lines - first;
    const bool narrow = left < section;  // the last one may be
    const int rank = narrow ? within / left : by_section.quotient(within);
    const int line = first + within - rank * (narrow ? left : section);
    const int sections = by_section.quotient(lines + section - 1);
    const bool ascends = rotates || (alternates && (sections - at) % 2 == 0);
    return {by_shares.quotient(line), by_shares.rest(line), ascends ? keys.each() - 1 - rank : rank,
            ascends};
  }
  /// The block at which a tile begins, of `blocks` that all tiles visit; an even one, as steps may
  /// have two blocks.
  TESSERA_HD constexpr std::int32_t start_of(std::int64_t tile, std::int32_t blocks) const {
    return static_cast<std::int32_t>(keys.per_sequence.quotient(tile * blocks)) / 2 * 2;
  }
};

/// What a thread block knows of its tile of keys.
struct KeyTileJob {
  std::int32_t batch = 0, kv_head = 0, tile = 0;
  std::int32_t rank = 0;  // among the tiles of its sequence, in the order of additions to dQ
  bool ascends = false;
  std::int32_t share = 0, first_head = 0;
  std::int32_t q_begin = 0, q_length = 0, kv_begin = 0, kv_length = 0;
  std::int32_t query_slot = 0;  // number of the sequence's first block of queries
  NarrowSight by_key, by_query;
  // The share's blocks of queries, of those that see keys of the tile.
  std::int32_t first_block = 0, end_block = 0;
  // Where the walk of a tile that ascends begins, and, if the walk rotates, that of the next tile.
  std::int32_t start_block = 0, next_start = 0;
  std::int32_t seen_begin = 0, seen_end = 0;  // queries of the sequence that see some key
  std::uint64_t kept[2] = {};                 // keys of the tile that some query sees, by position

  /// The keys of the tile that exist and are valid.
  TESSERA_HD constexpr std::int32_t first_key() const {
    return max_of(tile * kKeysPerTile, by_query.begin);
  }
  TESSERA_HD constexpr std::int32_t end_key() const {
    return min_of((tile + 1) * kKeysPerTile, by_query.end);
  }
  TESSERA_HD constexpr std::int32_t end_query(int block) const {
    return min_of((block + 1) * kQueriesPerBlock, q_length);
  }
  /// The first key tile that a block of queries visits. All tiles from it to the last one that the
  /// block visits see it by position.
  TESSERA_HD constexpr std::int32_t first_tile_of(int block) const {
    return by_query.begin_of(block * kQueriesPerBlock) / kKeysPerTile;
  }
  TESSERA_HD constexpr std::int32_t last_tile_of(int block) const {
    return (by_query.end_of(end_query(block) - 1) - 1) / kKeysPerTile;
  }
  /// Whether the block visits a tile of the same chain that is handed out before this one.
  TESSERA_HD constexpr bool has_earlier(int block, int chains) const {
    if (!ascends) return tile - chains >= first_tile_of(block);
    return tile + chains <= last_tile_of(block) && (block < start_block || block >= next_start);
  }
  /// The step that is visited as number `i`, of steps of `blocks` blocks.
  TESSERA_HD constexpr std::int32_t step_at(int i, int blocks) const {
    const std::int32_t end = (end_block + blocks - 1) / blocks;
    if (!ascends) return end - 1 - i;
    const std::int32_t at = start_block / blocks + i;
    return at < end ? at : at - end + first_block / blocks;
  }
  /// Whether each query of the block sees each key of the tile, by position.
  TESSERA_HD constexpr bool sees_all(int block) const {
    const std::int32_t first = tile * kKeysPerTile, last = first + kKeysPerTile - 1;
    return first >= by_query.begin && last < by_query.end &&
           block * kQueriesPerBlock >= by_key.begin_of(last) &&
           end_query(block) <= by_key.end_of(first);
  }
  /// The queries of a block that see some key, by position. Queries beyond the end of the sequence
  /// are among them if they lie outside of the tensor (`packed` is false), as loads give zeros
  /// then.
  TESSERA_HD constexpr std::uint64_t seeing(int block, bool packed) const {
    const std::int32_t first = block * kQueriesPerBlock;
    const std::uint64_t seeing = bits_between(seen_begin - first, seen_end - first);
    return packed ? seeing : seeing | bits_between(q_length - first, kQueriesPerBlock);
  }
};

TESSERA_HD constexpr KeyTileJob describe_key_tile(const BackwardWalk& walk,
                                                  const KeyTilePlace& place) {
  const Sequence sequence = walk.sequences.at(place.batch);
  KeyTileJob job;
  job.batch = place.batch;
  job.share = place.share;
  job.kv_head = walk.by_tile_shares.quotient(place.share);
  job.first_head = walk.by_block_shares.quotient(place.share) * walk.group;
  job.tile = place.tile;
  job.ascends = place.ascends;
  job.rank = place.ascends ? walk.keys.each() - 1 - place.tile : place.tile;
  job.q_begin = static_cast<std::int32_t>(sequence.q_begin);
  job.q_length = static_cast<std::int32_t>(sequence.q_length);
  job.kv_begin = static_cast<std::int32_t>(sequence.kv_begin);
  job.kv_length = static_cast<std::int32_t>(sequence.kv_length);
  job.query_slot = walk.queries.first(place.batch, job.q_begin);
  job.by_query = NarrowSight::of(sequence.sight);
  job.by_key = NarrowSight::of(sequence.sight.from_keys(sequence.q_length));
  if (job.by_query.begin >= job.by_query.end || job.q_length == 0) return job;
  job.seen_begin = job.by_key.begin_of(job.by_query.begin);
  job.seen_end = job.by_key.end_of(job.by_query.end - 1);
  const std::int32_t first = job.first_key(), end = job.end_key();
  if (first >= end) return job;
  const std::int32_t begin_query = job.by_key.begin_of(first),
                     end_query = job.by_key.end_of(end - 1);
  if (begin_query >= end_query) return job;
  job.first_block = begin_query / kQueriesPerBlock;
  job.end_block = (end_query + kQueriesPerBlock - 1) / kQueriesPerBlock;
  job.start_block = job.first_block;
  if (walk.rotates) {
    job.start_block = walk.start_of(job.tile, job.end_block);
    job.next_start = walk.start_of(job.tile + 1, job.end_block);
  }
  if (walk.tile_shares.blocks > 1) {
    const std::int32_t count = job.end_block - job.first_block, parts = walk.tile_shares.blocks;
    const std::int32_t part = walk.by_block_shares.rest(place.share),
                       each = walk.by_block_shares.quotient(count + parts - 1);
    job.first_block += min_of(part * each, count);
    job.end_block = min_of(job.first_block + each, job.end_block);
    if (job.first_block == job.end_block) return job;
  }
  // All keys that some query of the sequence sees are adjacent.
  const std::int32_t kept_begin = job.by_query.begin_of(0),
                     kept_end = job.by_query.end_of(job.q_length - 1);
  for (int half = 0; half < 2; ++half) {
    const std::int32_t key = job.tile * kKeysPerTile + half * kKeyPiece;
    job.kept[half] = bits_between(kept_begin - key, kept_end - key);
  }
  return job;
}

/// A step, or a part of one: one block of queries of one head.
struct BackwardStep {
  static constexpr std::int32_t kAbsent = -1;

  std::int32_t head, block;
  // What the block's turn counter has to reach: the rank of the key tile that adds before this
  // one, plus 1. 0: this tile is the first. kAbsent: the tile does not visit the block, which is
  // part of a step for the sake of another.
  std::int32_t turn;
  std::int32_t
      bits[2];        // element masks of the two halves of the tile's keys, or kAllSeen, kNoneSeen
  std::int32_t sums;  // which sums of dQ of a chain: `head`, or behind those of all heads
  std::uint64_t seeing;  // queries that see some key; the others are never read
  bool masked;           // some pair is hidden, or some query or key does not exist
  bool ragged;           // some query that has been loaded sees no key
};

/// The step of a block of queries. With a block mask: of a block that lists name.
TESSERA_HD constexpr BackwardStep describe_step(const BackwardWalk& walk, const KeyTileJob& job,
                                                bool keeps_all_keys, int head, int block) {
  BackwardStep step{head, block, 0, {kAllSeen, kAllSeen}, head, 0, false, false};
  if (walk.rotates && block < job.start_block) step.sums += walk.heads;
  step.turn = job.has_earlier(block, walk.chains) ? job.rank + 1 - walk.chains : 0;
  step.seeing = job.seeing(block, walk.queries.packed);
  bool whole = true;
  if (walk.edges) {
    const BlockEdges::Edge edge = walk.edges.edge(job.batch, head, block, job.tile);
    step.turn = edge.before >= job.first_tile_of(block) ? edge.before + 1 : 0;
    step.bits[0] = edge.low;
    step.bits[1] = edge.high;
    whole = edge.low == kAllSeen && edge.high == kAllSeen;
    const std::uint64_t outside =
        walk.queries.packed
            ? 0
            : bits_between(job.q_length - block * kQueriesPerBlock, kQueriesPerBlock);
    step.seeing = walk.edges.seeing(job.batch, head, block) | outside;
  }
  step.masked = !whole || !keeps_all_keys || !job.sees_all(block);
  step.ragged = step.seeing != ~std::uint64_t{0};
  return step;
}

/// Which sums of dQ a step adds to: those of its head, or behind those of all heads.
TESSERA_HD constexpr std::int32_t sums_of(const BackwardWalk& walk, const KeyTileJob& job,
                                          const BackwardStep& step) {
  return step.sums + (job.rank & (walk.chains - 1)) * walk.heads;
}

/// A block that is part of a step for the sake of another: nothing of it is seen.
TESSERA_HD constexpr BackwardStep absent_step(const BackwardWalk& walk, const KeyTileJob& job,
                                              int head, int block) {
  BackwardStep step{head, block, BackwardStep::kAbsent, {kNoneSeen, kNoneSeen}, head, 0,
                    true, true};
  if (block * kQueriesPerBlock >= job.q_length) return step;  // numbers of another block
  step.seeing = job.seeing(block, walk.queries.packed);
  if (walk.edges) step.seeing &= walk.edges.seeing(job.batch, head, block);
  step.ragged = step.seeing != ~std::uint64_t{0};
  return step;
}

/// The queries of the step's block that see key `key` of half `half` of the tile, by position and
/// lists, without element masks. `kept`: the keys of the half that some query sees.
TESSERA_HD constexpr std::uint64_t queries_of_key(const KeyTileJob& job, const BackwardStep& step,
                                                  std::uint64_t kept, int half, int key) {
  if (step.bits[half] == kNoneSeen || (kept >> key & 1) == 0) return 0;
  return job.by_key.bits_of(job.tile * kKeysPerTile + half * kKeyPiece + key,
                            step.block * kQueriesPerBlock);
}

/// The keys of half `half` of the tile that query `query` of the step's block sees, by position,
/// lists and element masks.
TESSERA_HD constexpr std::uint64_t keys_of_query(const BlockEdges& edges, const KeyTileJob& job,
                                                 const BackwardStep& step, std::uint64_t kept,
                                                 int half, int query) {
  const std::int32_t in_sequence = step.block * kQueriesPerBlock + query, bits = step.bits[half];
  if (bits == kNoneSeen || in_sequence >= job.q_length) return 0;
  const std::uint64_t listed =
      bits >= 0 ? edges.words(bits)[query / static_cast<int>(edges.sizes.mask.word_queries())]
                : ~std::uint64_t{0};
  return kept & listed &
         job.by_query.bits_of(in_sequence, job.tile * kKeysPerTile + half * kKeyPiece);
}

}  // namespace tessera::planning
