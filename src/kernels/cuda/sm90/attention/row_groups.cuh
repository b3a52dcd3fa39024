#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/attention/walk.cuh"
#include "src/walk/list_walk.hpp"

// Tiles whose row groups, the rows of one consumer or of two, have a list each: what any of the
// lists names is loaded once, and each consumer skips what its own list does not name.
namespace tessera::cuda::sm90::attention {

/// The pieces of one tile, by number. First the range that its queries see, where a piece is
/// visited if some row group's list names it; then, group by group, the pieces of blocks with an
/// element mask, which no two groups share. Lives in shared memory; all lanes of a warp start it.
template <int kRowGroups, int kRows>
struct RowGroupPieces {
  struct RowGroup {
    planning::ListRow full, partial, bit_tiles;
    std::int32_t any_begin, any_end;  // keys that some query of the group sees
    std::int32_t all_begin, all_end;  // keys that all of them see
    std::int32_t masked;              // pieces of blocks with an element mask
    std::int64_t first_bits;          // of the group's first query, in these masks
  };
  RowGroup row_groups[kRowGroups];
  std::int32_t per_block;        // pieces per block
  std::int32_t first, in_range;  // the range
  std::int32_t begin, count;     // numbers of this CTA's share
  // Bitmask per row group of the columns that its lists name: lists may be in any order.
  std::uint32_t named[kRowGroups][planning::kMaxRowGroupBlocks / 32];

  __device__ void start(const Walk& walk, const TileDescriptor& tile, int lane) {
    if (lane < kRowGroups) start_row_group(walk, tile, lane);
    const auto kv_blocks = static_cast<int>(walk.mask.kv_blocks);
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g)
      for (int word = lane; word * 32 < kv_blocks; word += 32) named[g][word] = 0;
    __syncwarp();
    if (lane == 0) number_pieces(walk, tile);
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) {
      mark(g, row_groups[g].full, kv_blocks, lane);
      if (!row_groups[g].bit_tiles.indices) mark(g, row_groups[g].partial, kv_blocks, lane);
    }
  }

  /// Valid once all lanes have called start and synchronised.
  __device__ Piece at(const Walk& walk, int number) const {
    Piece piece;
    if (number >= count) return piece;
    number += begin;
    if (number < in_range) {
      const int place = first + number, block = place / per_block;
      piece.key = place * planning::kKeyPiece;
#pragma unroll
      for (int g = 0; g < kRowGroups; ++g)
        if (named[g][block / 32] >> block % 32 & 1) add(piece, g);
    } else {
      number -= in_range;
      int group = 0;
      while (group < kRowGroups - 1 && number >= row_groups[group].masked)
        number -= row_groups[group++].masked;
      if (find_masked(walk, group, number, piece)) add(piece, group);
    }
    piece.visited = piece.row_groups != 0;
    return piece;
  }

 private:
  __device__ void start_row_group(const Walk& walk, const TileDescriptor& tile, int g) {
    RowGroup& group = row_groups[g];
    const int query = tile.first_query + g * kRows;
    const int last_query = min(query + kRows, tile.q_length) - 1;
    group = {};
    if (query > last_query) return;
    const int any_begin = tile.sight.begin_of(query), any_end = tile.sight.end_of(last_query);
    if (any_end <= any_begin) return;
    group.any_begin = any_begin;
    group.any_end = any_end;
    group.all_begin = tile.sight.begin_of(last_query);
    group.all_end = tile.sight.end_of(query);
    const std::int64_t row = query / static_cast<int>(walk.mask.block_q);
    const int set = tile.head / static_cast<int>(walk.mask.group);
    group.full = walk.mask.full.row(tile.batch, set, row);
    group.partial = walk.mask.partial.row(tile.batch, set, row);
    group.bit_tiles = walk.mask.partial.row_of(walk.mask.bit_tile, walk.mask.bit_tile_strides,
                                               tile.batch, set, row);
    group.first_bits = walk.bits_of(query);
    if (group.bit_tiles.indices)
      group.masked = static_cast<int>(group.partial.size) *
                     static_cast<int>(walk.mask.block_kv / planning::kKeyPiece);
  }

  __device__ void number_pieces(const Walk& walk, const TileDescriptor& tile) {
    per_block = static_cast<int>(walk.mask.block_kv) / planning::kKeyPiece;
    int from = kOutOfBounds, to = 0, all_pieces = 0;
#pragma unroll
    for (int g = 0; g < kRowGroups; ++g) {
      if (row_groups[g].any_end <= row_groups[g].any_begin) continue;
      from = min(from, row_groups[g].any_begin / planning::kKeyPiece);
      to = max(to, (row_groups[g].any_end + planning::kKeyPiece - 1) / planning::kKeyPiece);
      all_pieces += row_groups[g].masked;
    }
    to = min(to, static_cast<int>(walk.mask.kv_blocks) * per_block);
    first = from;
    in_range = max(to - from, 0);
    all_pieces += in_range;
    begin = tile.share.begin(all_pieces, walk.step_pieces);
    count = tile.share.end(all_pieces, walk.step_pieces) - begin;
  }

  __device__ void mark(int g, const planning::ListRow& list, int kv_blocks, int lane) {
    const auto size = static_cast<int>(list.size);
#pragma unroll 4
    for (int entry = lane; entry < size; entry += 32) {
      const std::int64_t block = list[entry];
      if (block >= 0 && block < kv_blocks)
        atomicOr(&named[g][block / 32], 1u << static_cast<int>(block % 32));
    }
  }

  /// Adds a row group to a piece if any of its queries sees some of it.
  __device__ void add(Piece& piece, int g) const {
    const RowGroup& group = row_groups[g];
    const int end = piece.key + planning::kKeyPiece;
    if (piece.key >= group.any_end || end <= group.any_begin) return;
    piece.row_groups |= 1 << g;
    if (piece.bits != kNoBits || piece.key < group.all_begin || end > group.all_end)
      piece.masked |= 1 << g;
    // Row groups are in the order of what they see, each at least a piece wide: one gap at most.
    if (group.any_begin > piece.end && piece.end > 0) {
      piece.gap_begin = piece.end;
      piece.gap_end = group.any_begin;
    }
    piece.begin = min(piece.begin, group.any_begin);
    piece.end = max(piece.end, group.any_end);
  }

  /// False where the list names a block or an element mask that does not exist.
  __device__ bool find_masked(const Walk& walk, int g, int number, Piece& piece) const {
    const int entry = number / per_block, within = number % per_block;
    const std::int64_t block = row_groups[g].partial[entry];
    const std::int64_t bits = row_groups[g].bit_tiles[entry];
    if (block < 0 || block >= walk.mask.kv_blocks || bits < 0 || bits >= walk.mask.bit_tiles)
      return false;
    piece.key = (static_cast<int>(block) * per_block + within) * planning::kKeyPiece;
    piece.bits = row_groups[g].first_bits + bits * walk.bits_tile +
                 within * (planning::kKeyPiece / 8) * walk.bits_byte;
    return true;
  }
};

}  // namespace tessera::cuda::sm90::attention
