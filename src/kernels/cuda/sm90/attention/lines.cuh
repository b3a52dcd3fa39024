#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/walk.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/walk/list_walk.hpp"

// Tiles whose lines, the rows of one consumer or of two, have lists of their own: what any of the
// lists names is loaded once, and each consumer passes by what its own list does not name.
namespace tessera::cuda::sm90::attention {

/// The pieces of one tile, by number: first the range that its queries see, of which those are
/// visited that some line's list names; then, line by line, what belongs to blocks with an element
/// mask, which no line shares with another. Lives in shared memory; all lanes of a warp begin it.
template <int kLines, int kRows>
struct LinePieces {
  struct Line {
    planning::ListRow full, partial, bit_tiles;
    std::int32_t any_begin, any_end;  // keys that some query of the line sees
    std::int32_t all_begin, all_end;  // keys that all of them see
    std::int32_t masked;              // pieces of blocks with an element mask
    std::int64_t first_bits;          // of the line's first query, in these
  };
  Line lines[kLines];
  std::int32_t per_block;        // pieces of a block
  std::int32_t first, in_range;  // the range
  std::int32_t begin, count;     // numbers of this share
  // Blocks that each line's lists name, a bit a column: lists may be in any order.
  std::uint32_t named[kLines][planning::kMaxLineBlocks / 32];

  __device__ void start(const Walk& walk, const TileNote& tile, int lane) {
    if (lane < kLines) begin_line(walk, tile, lane);
    const auto kv_blocks = static_cast<int>(walk.mask.kv_blocks);
#pragma unroll
    for (int l = 0; l < kLines; ++l)
      for (int word = lane; word * 32 < kv_blocks; word += 32) named[l][word] = 0;
    __syncwarp();
    if (lane == 0) number_pieces(walk, tile);
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      mark(l, lines[l].full, kv_blocks, lane);
      if (!lines[l].bit_tiles.indices) mark(l, lines[l].partial, kv_blocks, lane);
    }
  }

  /// Once all lanes have begun.
  __device__ Piece at(const Walk& walk, int number) const {
    Piece piece;
    if (number >= count) return piece;
    number += begin;
    if (number < in_range) {
      const int place = first + number, block = place / per_block;
      piece.key = place * planning::kKeyPiece;
#pragma unroll
      for (int l = 0; l < kLines; ++l)
        if (named[l][block / 32] >> block % 32 & 1) add(piece, l);
    } else {
      number -= in_range;
      int line = 0;
      while (line < kLines - 1 && number >= lines[line].masked) number -= lines[line++].masked;
      if (find_masked(walk, line, number, piece)) add(piece, line);
    }
    piece.visited = piece.lines != 0;
    return piece;
  }

 private:
  __device__ void begin_line(const Walk& walk, const TileNote& tile, int l) {
    Line& line = lines[l];
    const int query = tile.first_query + l * kRows;
    const int last_query = min(query + kRows, tile.q_length) - 1;
    line = {};
    if (query > last_query) return;
    const int any_begin = tile.sight.begin_of(query), any_end = tile.sight.end_of(last_query);
    if (any_end <= any_begin) return;
    line.any_begin = any_begin;
    line.any_end = any_end;
    line.all_begin = tile.sight.begin_of(last_query);
    line.all_end = tile.sight.end_of(query);
    const std::int64_t row = query / static_cast<int>(walk.mask.block_q);
    const int set = tile.head / static_cast<int>(walk.mask.group);
    line.full = walk.mask.full.row(tile.batch, set, row);
    line.partial = walk.mask.partial.row(tile.batch, set, row);
    line.bit_tiles = walk.mask.partial.row_of(walk.mask.bit_tile, walk.mask.bit_tile_strides,
                                              tile.batch, set, row);
    line.first_bits = walk.bits_of(query);
    if (line.bit_tiles.indices)
      line.masked = static_cast<int>(line.partial.size) *
                    static_cast<int>(walk.mask.block_kv / planning::kKeyPiece);
  }

  __device__ void number_pieces(const Walk& walk, const TileNote& tile) {
    per_block = static_cast<int>(walk.mask.block_kv) / planning::kKeyPiece;
    int from = kNowhere, to = 0, all_pieces = 0;
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      if (lines[l].any_end <= lines[l].any_begin) continue;
      from = min(from, lines[l].any_begin / planning::kKeyPiece);
      to = max(to, (lines[l].any_end + planning::kKeyPiece - 1) / planning::kKeyPiece);
      all_pieces += lines[l].masked;
    }
    to = min(to, static_cast<int>(walk.mask.kv_blocks) * per_block);
    first = from;
    in_range = max(to - from, 0);
    all_pieces += in_range;
    begin = tile.share.begin(all_pieces, walk.step_pieces);
    count = tile.share.end(all_pieces, walk.step_pieces) - begin;
  }

  __device__ void mark(int l, const planning::ListRow& list, int kv_blocks, int lane) {
    const auto size = static_cast<int>(list.size);
#pragma unroll 4
    for (int entry = lane; entry < size; entry += 32) {
      const std::int64_t block = list[entry];
      if (block >= 0 && block < kv_blocks)
        atomicOr(&named[l][block / 32], 1u << static_cast<int>(block % 32));
    }
  }

  /// A line needs a piece, if any of its queries sees some of it.
  __device__ void add(Piece& piece, int l) const {
    const Line& line = lines[l];
    const int end = piece.key + planning::kKeyPiece;
    if (piece.key >= line.any_end || end <= line.any_begin) return;
    piece.lines |= 1 << l;
    if (piece.bits != kNoBits || piece.key < line.all_begin || end > line.all_end)
      piece.masked |= 1 << l;
    // Lines come in the order of what they see, each at least a piece wide: one gap at most.
    if (line.any_begin > piece.end && piece.end > 0) {
      piece.gap_begin = piece.end;
      piece.gap_end = line.any_begin;
    }
    piece.begin = min(piece.begin, line.any_begin);
    piece.end = max(piece.end, line.any_end);
  }

  /// False where the list names no block or no element mask that exists.
  __device__ bool find_masked(const Walk& walk, int l, int number, Piece& piece) const {
    const int entry = number / per_block, within = number % per_block;
    const std::int64_t block = lines[l].partial[entry];
    const std::int64_t bits = lines[l].bit_tiles[entry];
    if (block < 0 || block >= walk.mask.kv_blocks || bits < 0 || bits >= walk.mask.bit_tiles)
      return false;
    piece.key = (static_cast<int>(block) * per_block + within) * planning::kKeyPiece;
    piece.bits = lines[l].first_bits + bits * walk.bits_tile +
                 within * (planning::kKeyPiece / 8) * walk.bits_byte;
    return true;
  }
};

}  // namespace tessera::cuda::sm90::attention
