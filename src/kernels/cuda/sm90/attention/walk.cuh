#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/attention/count.cuh"
#include "src/kernels/cuda/sm90/attention/descriptors.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/tile/grid.cuh"
#include "src/walk/compose_mask.hpp"
#include "src/walk/list_walk.hpp"
#include "src/walk/sequence.hpp"

// The order of the output tiles, and which pieces of keys each visits: a range, or what lists name.
// Only the scheduler warp uses this.
namespace tessera::cuda::sm90::attention {

struct Walk {
  planning::SequenceView sequences;
  SequenceDescriptor uniform_sequence;  // all sequences, where they are alike and need not be read
  planning::MaskView mask;              // block_q 0: none
  std::int64_t bits_tile = 0, bits_row = 0, bits_byte = 1;
  const std::uint64_t* composed = nullptr;  // element masks of composed blocks, if any
  int words = 0;                            // per composed block
  planning::SmallDivisor word_queries;      // queries that share a row of an element mask
  int batches = 0, head_groups = 0, pack = 1, pack_shift = 0;
  int group = 1;    // query heads per KV head
  int queries = 0;  // per tile
  int blocks = 0;   // thread blocks
  int tiles_per_head = 0, tiles = 0, section = 1;
  int whole = 0, split_ctas = 0;     // unsplit tiles; CTAs that split the KV of the others
  int step_pieces = 1;               // pieces per step: KV is split at multiples of it
  bool packed_q = false;             // tiles per sequence are counted on the device
  bool longest_last = false;         // later queries see more keys: they go first
  bool reverses_odd_rounds = false;  // odd rounds of tiles walk their lists in reverse
  int row_groups = 1;                // with a list each, per tile
  // What has to be read before the first tile: sequences, or the lists of its walk.
  bool reads_sequences = false, reads_lists = false;
  std::uint64_t tag = 0;               // of the launch, in its counters
  std::uint64_t* next_tile = nullptr;  // counter of dynamic tiles; null: static
  // Where tiles are ordered: the order, followed by the tiles' costs; and a counter of thread
  // blocks that have seen all earlier grids done.
  int* order = nullptr;
  std::uint64_t* grids_seen = nullptr;

  /// Offset of the first query of a tile, or of one of its row groups, in an element mask. Composed
  /// blocks begin with that query.
  __device__ std::int64_t bits_of(int query) const {
    return composed ? 0 : query % static_cast<int>(mask.block_q) * bits_row;
  }
};

/// The position of a tile.
struct TilePlace {
  int batch, head_group, tile;

  /// Tile `number` of sequences that are not packed.
  __device__ static TilePlace of(const Walk& walk, int number) {
    // Head groups of a section are adjacent, so that their keys stay in L2.
    const int all = walk.batches * walk.head_groups;
    const int per_section = walk.section * walk.tiles_per_head;
    const int first = number / per_section * walk.section;
    const int wide = min(walk.section, all - first);
    const int within = number % per_section;
    const int tile = within / wide, flat = first + within % wide;
    return {flat / walk.head_groups, flat % walk.head_groups,
            walk.longest_last ? walk.tiles_per_head - 1 - tile : tile};
  }

  /// Tile `number` of one packed sequence.
  __device__ static TilePlace of_sequence(const Walk& walk, int batch, int tiles_per_head,
                                          int number) {
    const int tile = number % tiles_per_head;
    return {batch, number / tiles_per_head, walk.longest_last ? tiles_per_head - 1 - tile : tile};
  }
};

/// Hands tiles to thread blocks, and then the shares of split tiles. Lives in shared memory; all
/// lanes of a warp call it together.
struct TileCursor {
  std::uint32_t numbers_taken, tiles, steps;  // numbers taken; tiles and steps so far
  std::int32_t number;                        // of the current tile
  std::int32_t split_cta, share_index;        // of split tiles; tiles of its share so far

  __device__ void start(int lane) {
    if (lane == 0) numbers_taken = tiles = steps = split_cta = share_index = 0;
    __syncwarp();
  }

  /// Writes the descriptor of the next tile that has queries (one lane writes); false after the
  /// last. A number is taken no sooner than here: another block may be free first.
  __device__ bool next(const Walk& walk, TileDescriptor& descriptor, int lane) {
    while (true) {
      if (lane == 0) number = take(walk, descriptor.share);
      __syncwarp();
      if (number < 0) return false;
      write(walk, number, descriptor, lane);
      __syncwarp();
      if (descriptor.first_query < descriptor.q_length) return true;
      __syncwarp();
    }
  }

 private:
  /// One lane. Returns the tile's number, or -1 after the last.
  __device__ int take(const Walk& walk, planning::KvShare& share) {
    share = {};
    if (share_index > 0 && next_share(walk, share)) return walk.whole + share.tile;
    if (share_index > 0 && !walk.next_tile) return -1;  // static: each block has one share
    const int next = take_number(walk);
    if (next < walk.whole) return next;
    split_cta = next - walk.whole;
    share_index = 0;
    return next_share(walk, share) ? walk.whole + share.tile : -1;
  }

  /// Unsplit tiles come first, then the shares of split tiles.
  __device__ int take_number(const Walk& walk) {
    const int mine = static_cast<int>(blockIdx.x) + static_cast<int>(numbers_taken++) * walk.blocks;
    if (!walk.next_tile || numbers_taken == 1) return mine;
    // The grid before may use the counter too, or order the tiles.
    if (numbers_taken == 2) tile::wait_for_grid_before();
    // Each block takes numbers until there is none left, so together they take as many as there
    // are.
    const int numbers = walk.whole + walk.split_ctas;
    const int next = count_up(walk.next_tile, walk.tag, numbers, numbers_taken > 2) + walk.blocks;
    return walk.order && next < walk.whole ? __ldcg(walk.order + next - walk.blocks) : next;
  }

  __device__ bool next_share(const Walk& walk, planning::KvShare& share) {
    return planning::find_kv_share(walk.tiles - walk.whole, walk.split_ctas, split_cta,
                                   share_index++, share);
  }

  __device__ void write(const Walk& walk, int number, TileDescriptor& descriptor, int lane) const {
    const TilePlace place =
        walk.packed_q ? of_packed(walk, number, lane) : TilePlace::of(walk, number);
    if (lane != 0) return;
    SequenceDescriptor& sequence = descriptor;
    if (walk.reads_sequences) {
      sequence = SequenceDescriptor::of(walk.sequences.at(place.batch));
    } else {
      sequence = walk.uniform_sequence;
    }
    descriptor.batch = place.batch;
    descriptor.head = place.head_group * walk.pack;
    descriptor.kv_head = descriptor.head / walk.group;
    descriptor.first_query = place.tile * walk.queries;
    // What one round of tiles read last is still in L2; what it read first is not.
    descriptor.reversed = walk.reverses_odd_rounds && number / walk.blocks % 2 != 0;
  }

  /// The position of a tile of packed queries: sequences in order, so that the longest sequence
  /// does not recur with each head. Beyond the last sequence's end if there is no such tile.
  __device__ static TilePlace of_packed(const Walk& walk, int number, int lane) {
    for (int first = 0; first < walk.batches; first += 32) {
      const int mine = first + lane;
      int per_head = 0;
      if (mine < walk.batches) {
        const std::int64_t length = walk.sequences.at(mine).q_length;
        per_head = static_cast<int>((length + walk.queries - 1) / walk.queries);
      }
      const int count = per_head * walk.head_groups;
      const int up_to = sum_through(lane, count);  // tiles of the lanes up to this one
      const unsigned beyond = __ballot_sync(~0u, up_to > number);
      if (beyond != 0) {
        const int holder = __ffs(static_cast<int>(beyond)) - 1;
        per_head = __shfl_sync(~0u, per_head, holder);
        number -= __shfl_sync(~0u, up_to - count, holder);
        return TilePlace::of_sequence(walk, first + holder, per_head, number);
      }
      number -= __shfl_sync(~0u, up_to, 31);
    }
    return {walk.batches - 1, 0, kOutOfBounds / walk.queries};
  }
};

/// One piece of keys.
struct Piece {
  int key = kOutOfBounds;
  std::int64_t bits = kNoBits;  // offset of its element mask
  bool visited = false;
  std::uint8_t masked = 0;  // bitmask of row groups with hidden pairs
  // For row groups with their own lists: the groups that need the piece, as a bitmask, and the keys
  // that some query of these groups sees.
  std::uint8_t row_groups = 0;
  int begin = kOutOfBounds, end = 0;
  // Keys in between that no query sees, where the list of a middle row group lacks the block.
  int gap_begin = 0, gap_end = 0;
};

/// The pieces of one tile, by number: what its list names, or the range that its queries see. Lives
/// in shared memory: all lanes of a warp start it, all look up.
template <int kRowGroups, int kRows>
struct ListPieces {
  struct RowGroup {
    std::int32_t all_begin, all_end;  // keys that all queries of the group see
  };
  RowGroup row_groups[kRowGroups];
  planning::ListRow full, partial, bit_tiles;
  std::int64_t first_bits;          // of the tile's first query, in an element mask
  std::int32_t any_begin, any_end;  // keys that some query of the tile sees
  std::int32_t per_block;           // pieces per list entry; 0: a range
  std::int32_t begin, count;        // numbers of this CTA's share
  bool reversed;                    // in reverse order

  __device__ void start(const Walk& walk, const TileDescriptor& tile, int lane) {
    if (lane < kRowGroups) start_row_group(walk, tile, lane);
    if (lane != 0) return;
    const int last_query = min(tile.first_query + walk.queries, tile.q_length) - 1;
    any_begin = tile.sight.begin_of(tile.first_query);
    any_end = max(tile.sight.end_of(last_query), any_begin);
    per_block = static_cast<int>(walk.mask.block_kv) / planning::kKeyPiece;
    int first = 0, all_pieces = 0;
    if (per_block > 0) {
      const std::int64_t row = tile.first_query / static_cast<int>(walk.mask.block_q);
      const int set = tile.head / static_cast<int>(walk.mask.group);
      full = walk.mask.full.row(tile.batch, set, row);
      partial = walk.mask.partial.row(tile.batch, set, row);
      bit_tiles = walk.mask.partial.row_of(walk.mask.bit_tile, walk.mask.bit_tile_strides,
                                           tile.batch, set, row);
      first_bits = walk.bits_of(tile.first_query);
      all_pieces = static_cast<int>(full.size + partial.size) * per_block;
    } else if (any_end > any_begin) {
      first = any_begin / planning::kKeyPiece;
      all_pieces = (any_end + planning::kKeyPiece - 1) / planning::kKeyPiece - first;
    }
    const int from = tile.share.begin(all_pieces, walk.step_pieces);
    begin = first + from;
    count = tile.share.end(all_pieces, walk.step_pieces) - from;
    reversed = tile.reversed;
  }

  __device__ Piece at(const Walk& walk, int number) const {
    Piece piece;
    if (number >= count) return piece;
    number = begin + (reversed ? count - 1 - number : number);
    if (per_block == 0) {
      piece.key = number * planning::kKeyPiece;
      piece.visited = true;
    } else {
      piece.visited = of_list(walk, number, piece);
    }
    const int end = piece.key + planning::kKeyPiece;
    piece.visited = piece.visited && piece.key < any_end && end > any_begin;
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g)
      if (piece.bits != kNoBits || piece.key < row_groups[g].all_begin ||
          end > row_groups[g].all_end)
        piece.masked |= 1 << g;
    return piece;
  }

 private:
  __device__ void start_row_group(const Walk& walk, const TileDescriptor& tile, int g) {
    const int first = tile.first_query + (g * kRows >> walk.pack_shift);
    const int last = tile.first_query + ((g + 1) * kRows - 1 >> walk.pack_shift);
    row_groups[g].all_begin = tile.sight.begin_of(min(last, tile.q_length - 1));
    row_groups[g].all_end = tile.sight.end_of(min(first, tile.q_length - 1));
  }

  __device__ bool of_list(const Walk& walk, int number, Piece& piece) const {
    const int entry = number / per_block, within = number % per_block;
    const auto in_full = static_cast<int>(full.size);
    const std::int64_t block = entry < in_full ? full[entry] : partial[entry - in_full];
    if (block < 0 || block >= walk.mask.kv_blocks) return false;
    piece.key = (static_cast<int>(block) * per_block + within) * planning::kKeyPiece;
    if (entry >= in_full && bit_tiles.indices) {
      const std::int64_t tile = bit_tiles[entry - in_full];
      if (tile < 0 || tile >= walk.mask.bit_tiles) return false;
      piece.bits =
          first_bits + tile * walk.bits_tile + within * (planning::kKeyPiece / 8) * walk.bits_byte;
    }
    return true;
  }
};

}  // namespace tessera::cuda::sm90::attention
