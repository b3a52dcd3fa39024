#pragma once

#include <cstdint>

#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

// The output tiles of sm90/bsr and sm80/product and their walks: the union of the lists of a tile's
// lines, in steps with a depth of 64. A line is 16, 32 or 64 rows of the result inside one block
// row. A piece is the part of a line's block that is in one step, with a depth of 16, 32 or 64.
namespace tessera::planning::bsr {

inline constexpr int kLine = 64;              // depth of a step
inline constexpr int kUnit = 16;              // depth of one wgmma
inline constexpr int kUnits = kLine / kUnit;  // per step
inline constexpr int kGroup = 64;             // rows of the result that one wgmma computes

/// One output tile: its first line, its first column, its batch.
struct TileAt {
  int line, col, batch;
};

struct Walk {
  BsrView lists;
  const char* blocks = nullptr;  // stored blocks
  std::int64_t row_bytes = 0;    // stride inside a block along the rows of the result
  std::int64_t depth_bytes = 0;  // stride inside a block along the depth; one of the two is 2
  // Whether TMA copies the pieces of a line, one box each; otherwise lanes copy 16 bytes at a time.
  bool boxed = false;
  // Strides in units of 16 bytes; offsets into the pool are below 2^32 units.
  std::uint32_t block_step = 0, line_step = 0, piece_step = 0;
  std::uint32_t copy_step = 0, round_step = 0;  // see UnitCopy
  int lines = 0, cols = 0;                      // of the result
  int steps = 0;                                // along the whole depth
  int batches = 1;
  int dense_batch_step = 0;  // 0: one dense matrix for all batches
  int pool_step = 0;         // stored blocks of one batch; 0: one pool
  int height_shift = 6;      // log2 of a line's rows
  int lines_per_block = 1;   // along the rows
  int slice_shift = 0;       // log2 of the pieces per step
  int pieces_per_block = 1;  // along the depth

  TESSERA_HD constexpr int height() const { return 1 << height_shift; }
  TESSERA_HD constexpr int piece() const { return kLine >> slice_shift; }

  /// The number of rows of tiles.
  template <int kRows>
  TESSERA_HD constexpr int tiles_down() const {
    const int tile_lines = kRows >> height_shift;
    return (lines + tile_lines - 1) / tile_lines;
  }
  template <int kRows, int kCols>
  TESSERA_HD constexpr TileAt tile(int index) const {
    const int down = tiles_down<kRows>(), across = (cols + kCols - 1) / kCols;
    const int batch = index / (down * across), within = index % (down * across);
    return place<kRows, kCols>(within, down, across, batch);
  }
  /// With groups of columns: the number of tiles of the group [begin, end).
  template <int kRows, int kCols>
  TESSERA_HD constexpr int tiles_of_group(int begin, int end) const {
    return (end - begin + kCols - 1) / kCols * tiles_down<kRows>();
  }
  /// Tile `within` of group `index`, which has columns [begin, end).
  template <int kRows, int kCols>
  TESSERA_HD constexpr TileAt tile_of_group(int within, int index, int begin, int end) const {
    TileAt at =
        place<kRows, kCols>(within, tiles_down<kRows>(), (end - begin + kCols - 1) / kCols, index);
    at.col += begin;
    return at;
  }

 private:
  /// Tile `within` of `down` x `across`. Tiles are ordered column by column in groups of `kDown`
  /// rows of tiles, so that concurrent tiles share operands in L2.
  template <int kRows, int kCols>
  TESSERA_HD constexpr TileAt place(int within, int down, int across, int batch) const {
    constexpr int kDown = 16;
    const int group = within / (kDown * across), rest = within % (kDown * across);
    const int left = down - group * kDown;
    const int height = left < kDown ? left : kDown;
    return {(group * kDown + rest % height) * (kRows >> height_shift), rest / height * kCols,
            batch};
  }
};

inline constexpr int kSlices = 64;  // slices of depth per window; a piece fills one slice
inline constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;

/// Enters the pieces of a block into a window of the depth. The block is in the list of line `line`
/// of the tile, stored at position `stored`, and ends before slice `past` of the window; pieces
/// outside of the window are left out. `place`: where the line begins in a block. A window has
///   pieces[slice][group]     four words x, y, z, w
///   units[step]              a bitmask of units with values
///   lower(word, value)       atomic minimum
///   add_bits(word, bits)     atomic or
TESSERA_EITHER_SIDE
template <class Window>
TESSERA_HD constexpr void enter_block(const Walk& walk, Window& window, int batch, int line,
                                      int past, std::uint32_t place, std::uint32_t stored) {
  const int units = kUnits >> walk.slice_shift;
  const int quarter = line << (walk.height_shift - 4), group = quarter / 4;
  const int first = past - walk.pieces_per_block;
  TESSERA_UNROLL(1)
  for (int at = first < 0 ? 0 : first; at < past && at < kSlices; ++at) {
    auto& piece = window.pieces[at][group];
    const auto part = static_cast<std::uint32_t>(at - first);
    // If a list contains a block twice, the minimum selects the same one in every run.
    if (walk.boxed) {
      const int in_group = line & ((kGroup >> walk.height_shift) - 1);
      window.lower(reinterpret_cast<std::uint32_t*>(&piece) + in_group,
                   stored + static_cast<std::uint32_t>(batch * walk.pool_step));
      reinterpret_cast<std::uint16_t*>(&piece.z)[in_group] = static_cast<std::uint16_t>(place);
      piece.w = part * walk.piece();
    } else {
      auto* const copies = reinterpret_cast<std::uint32_t*>(&piece) + quarter % 4;
      const std::uint32_t from = place + stored * walk.block_step + part * walk.piece_step;
      TESSERA_UNROLL(1)
      for (int i = 0; i < walk.height() / 16; ++i)
        window.lower(copies + i, from + static_cast<std::uint32_t>(i) * walk.copy_step);
    }
    const int slice = at & ((1 << walk.slice_shift) - 1);
    window.add_bits(&window.units[at >> walk.slice_shift], ((1u << units) - 1)
                                                               << (group * kUnits + slice * units));
  }
}

}  // namespace tessera::planning::bsr
