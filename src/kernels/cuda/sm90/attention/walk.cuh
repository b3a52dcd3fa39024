#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/attention/count.cuh"
#include "src/kernels/cuda/sm90/attention/notes.cuh"
#include "src/kernels/cuda/sm90/tile/grid.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/walk/compose_mask.hpp"
#include "src/walk/list_walk.hpp"
#include "src/walk/sequence.hpp"

// Which output tile comes when, and which pieces of keys it visits: a range of them, or what lists
// name. The scout alone looks at this.
namespace tessera::cuda::sm90::attention {

struct Walk {
  planning::SequenceView sequences;
  SequenceNote alike;       // what they all are, where that need not be read
  planning::MaskView mask;  // block_q 0: none
  std::int64_t bits_tile = 0, bits_row = 0, bits_byte = 1;
  const std::uint64_t* composed = nullptr;  // element masks of composed blocks, where these are
  int words = 0;                            // of each
  planning::SmallDivisor word_queries;      // that share a row of an element mask
  int batches = 0, head_groups = 0, pack = 1, pack_shift = 0;
  int group = 1;    // heads of one head of keys
  int queries = 0;  // of a tile
  int blocks = 0;   // of threads
  int tiles_per_head = 0, tiles = 0, section = 1;
  int whole = 0, sharers = 0;  // tiles that are not divided; blocks that divide the others
  int step_pieces = 1;         // keys are divided between steps
  bool packed_q = false;       // tiles of a sequence are counted, not known
  bool longest_last = false;   // later queries see more keys: they go first
  bool turns = false;          // lists are walked from the end in every other round of tiles
  int lines = 1;               // lists of a tile
  // What has to be read before anything is known: of sequences, or of what their tiles visit.
  bool reads_sequences = false, reads_lists = false;
  std::uint64_t tag = 0;           // of the launch, in its counts
  std::uint64_t* dealt = nullptr;  // how many tiles were asked for
  // Where tiles are ordered: which comes when, then their costs; and how many blocks of threads
  // have seen that the grids before are done.
  int* order = nullptr;
  std::uint64_t* opened = nullptr;

  /// Where the first query of a tile, or of a line of it, is in an element mask. Composed blocks
  /// begin with it.
  __device__ std::int64_t bits_of(int query) const {
    return composed ? 0 : query % static_cast<int>(mask.block_q) * bits_row;
  }
};

/// Where a tile lies.
struct TilePlace {
  int batch, head_group, tile;

  /// By its number, of sequences that are not packed.
  __device__ static TilePlace of(const Walk& walk, int number) {
    // Head groups of a section side by side, so that their keys stay in L2.
    const int all = walk.batches * walk.head_groups;
    const int per_section = walk.section * walk.tiles_per_head;
    const int first = number / per_section * walk.section;
    const int wide = min(walk.section, all - first);
    const int within = number % per_section;
    const int tile = within / wide, flat = first + within % wide;
    return {flat / walk.head_groups, flat % walk.head_groups,
            walk.longest_last ? walk.tiles_per_head - 1 - tile : tile};
  }

  /// By its number among those of one packed sequence.
  __device__ static TilePlace of_sequence(const Walk& walk, int batch, int tiles_per_head,
                                          int number) {
    const int tile = number % tiles_per_head;
    return {batch, number / tiles_per_head, walk.longest_last ? tiles_per_head - 1 - tile : tile};
  }
};

/// Deals tiles to blocks of threads, and then shares of those that are divided. Lives in shared
/// memory; all lanes of a warp call it together.
struct TileCursor {
  std::uint32_t taken, tiles, steps;  // numbers taken; tiles and steps that came before
  std::int32_t number;                // of the tile at hand
  std::int32_t sharer, turn;          // of divided tiles; how many of its share came before

  __device__ void start(int lane) {
    if (lane == 0) taken = tiles = steps = sharer = turn = 0;
    __syncwarp();
  }

  /// The next tile that has queries, written by one lane; false after the last. A number is taken
  /// only now: another block may be free sooner.
  __device__ bool next(const Walk& walk, TileNote& note, int lane) {
    while (true) {
      if (lane == 0) number = take(walk, note.share);
      __syncwarp();
      if (number < 0) return false;
      put(walk, number, note, lane);
      __syncwarp();
      if (note.first_query < note.q_length) return true;
      __syncwarp();
    }
  }

 private:
  /// One lane. Less than zero: there is none.
  __device__ int take(const Walk& walk, planning::TileShare& share) {
    share = {};
    if (turn > 0 && find(walk, share)) return walk.whole + share.tile;
    if (turn > 0 && !walk.dealt) return -1;  // by turns, each block is one sharer
    const int next = take_number(walk);
    if (next < walk.whole) return next;
    sharer = next - walk.whole;
    turn = 0;
    return find(walk, share) ? walk.whole + share.tile : -1;
  }

  /// Tiles that are not divided come first, then sharers of the others.
  __device__ int take_number(const Walk& walk) {
    const int mine = static_cast<int>(blockIdx.x) + static_cast<int>(taken++) * walk.blocks;
    if (!walk.dealt || taken == 1) return mine;
    // It may count there too, or put tiles in order.
    if (taken == 2) tile::wait_for_grid_before();
    // Each block asks until it gets none, so all together ask as often as there are numbers.
    const int numbers = walk.whole + walk.sharers;
    const int next = count_up(walk.dealt, walk.tag, numbers, taken > 2) + walk.blocks;
    return walk.order && next < walk.whole ? __ldcg(walk.order + next - walk.blocks) : next;
  }

  __device__ bool find(const Walk& walk, planning::TileShare& share) {
    return planning::find_share(walk.tiles - walk.whole, walk.sharers, sharer, turn++, share);
  }

  __device__ void put(const Walk& walk, int number, TileNote& note, int lane) const {
    const TilePlace place =
        walk.packed_q ? of_packed(walk, number, lane) : TilePlace::of(walk, number);
    if (lane != 0) return;
    SequenceNote& sequence = note;
    if (walk.reads_sequences) {
      sequence = SequenceNote::of(walk.sequences.at(place.batch));
    } else {
      sequence = walk.alike;
    }
    note.batch = place.batch;
    note.head = place.head_group * walk.pack;
    note.kv_head = note.head / walk.group;
    note.first_query = place.tile * walk.queries;
    // What a round of tiles read last is still in L2, and what it read first no longer.
    note.turned = walk.turns && number / walk.blocks % 2 != 0;
  }

  /// Where a tile of packed queries lies: one sequence after the other, so that the longest is not
  /// met again with each head. Beyond the last sequence's end where there is no such tile.
  __device__ static TilePlace of_packed(const Walk& walk, int number, int lane) {
    for (int first = 0; first < walk.batches; first += 32) {
      const int mine = first + lane;
      int a_head = 0;
      if (mine < walk.batches) {
        const std::int64_t length = walk.sequences.at(mine).q_length;
        a_head = static_cast<int>((length + walk.queries - 1) / walk.queries);
      }
      const int count = a_head * walk.head_groups;
      const int up_to = sum_through(lane, count);  // tiles of the lanes up to this one
      const unsigned beyond = __ballot_sync(~0u, up_to > number);
      if (beyond != 0) {
        const int holder = __ffs(static_cast<int>(beyond)) - 1;
        a_head = __shfl_sync(~0u, a_head, holder);
        number -= __shfl_sync(~0u, up_to - count, holder);
        return TilePlace::of_sequence(walk, first + holder, a_head, number);
      }
      number -= __shfl_sync(~0u, up_to, 31);
    }
    return {walk.batches - 1, 0, kNowhere / walk.queries};
  }
};

/// One piece of keys as a lane sees it.
struct Piece {
  int key = kNowhere;
  std::int64_t bits = kNoBits;  // where its element mask begins
  bool visited = false;
  std::uint8_t masked = 0;  // lines with hidden pairs in it, a bit each
  // Where lines have lists of their own: those that need it, a bit each, and the keys that some
  // query of theirs sees.
  std::uint8_t lines = 0;
  int begin = kNowhere, end = 0;
  // But none sees these, where a line between two others has no such block.
  int gap_begin = 0, gap_end = 0;
};

/// The pieces of one tile, by number: what its list names, or the range that its queries see. Lives
/// in shared memory: all lanes of a warp begin it, all look up.
template <int kLines, int kRows>
struct ListPieces {
  struct Line {
    std::int32_t all_begin, all_end;  // keys that all queries of the line see
  };
  Line lines[kLines];
  planning::ListRow full, partial, bit_tiles;
  std::int64_t first_bits;          // of the tile's first query, in an element mask
  std::int32_t any_begin, any_end;  // keys that some query of the tile sees
  std::int32_t per_block;           // of a list's entries; 0: a range
  std::int32_t begin, count;        // numbers of this share
  bool turned;                      // the last one comes first

  __device__ void start(const Walk& walk, const TileNote& tile, int lane) {
    if (lane < kLines) begin_line(walk, tile, lane);
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
    turned = tile.turned;
  }

  __device__ Piece at(const Walk& walk, int number) const {
    Piece piece;
    if (number >= count) return piece;
    number = begin + (turned ? count - 1 - number : number);
    if (per_block == 0) {
      piece.key = number * planning::kKeyPiece;
      piece.visited = true;
    } else {
      piece.visited = of_list(walk, number, piece);
    }
    const int end = piece.key + planning::kKeyPiece;
    piece.visited = piece.visited && piece.key < any_end && end > any_begin;
#pragma unroll
    for (int l = 0; l < kLines; ++l)
      if (piece.bits != kNoBits || piece.key < lines[l].all_begin || end > lines[l].all_end)
        piece.masked |= 1 << l;
    return piece;
  }

 private:
  __device__ void begin_line(const Walk& walk, const TileNote& tile, int l) {
    const int first = tile.first_query + (l * kRows >> walk.pack_shift);
    const int last = tile.first_query + ((l + 1) * kRows - 1 >> walk.pack_shift);
    lines[l].all_begin = tile.sight.begin_of(min(last, tile.q_length - 1));
    lines[l].all_end = tile.sight.end_of(min(first, tile.q_length - 1));
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
