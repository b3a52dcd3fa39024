#pragma once

#include <cstdint>

#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

// The output tiles of sm90/bsr, and what each walks: the union of its lines' lists, 64 of depth at
// a time. A line is 16, 32 or 64 rows of the result inside one row of blocks; a piece is the part
// of a line's block that lies in one step, 16, 32 or 64 deep.
namespace tessera::planning::bsr {

inline constexpr int kLine = 64;              // depth of a step
inline constexpr int kUnit = 16;              // depth of one wgmma
inline constexpr int kUnits = kLine / kUnit;  // in a step
inline constexpr int kGroup = 64;             // rows of the result that one wgmma computes

/// One output tile: its first line, its first column, its batch.
struct TileAt {
  int line, col, batch;
};

struct Walk {
  BsrView lists;
  const char* blocks = nullptr;  // the stored ones
  std::int64_t row_bytes = 0;    // inside a block, from a row of the result to the next
  std::int64_t depth_bytes = 0;  // and from one of its depth; one of the two is 2
  // Whether TMA copies a line's pieces, a box each; otherwise lanes copy 16 bytes at a time.
  bool boxed = false;
  // In units of 16 bytes, from one to the next; places in the pool are below 2^32 of them.
  std::uint32_t block_step = 0, line_step = 0, piece_step = 0;
  std::uint32_t copy_step = 0, round_step = 0;  // see UnitCopy
  int lines = 0, cols = 0;                      // of the result
  int steps = 0;                                // of the whole depth
  int batches = 1;
  int dense_batch_step = 0;  // 0: one dense matrix for all batches
  int pool_step = 0;         // stored blocks of one batch; 0: one pool
  int height_shift = 6;      // log2 of a line's rows
  int lines_per_block = 1;   // one above the other
  int slice_shift = 0;       // log2 of the pieces in a step
  int pieces_per_block = 1;  // one beside the other

  TESSERA_HD constexpr int height() const { return 1 << height_shift; }
  TESSERA_HD constexpr int piece() const { return kLine >> slice_shift; }

  /// Tiles go down columns of `kDown` rows of tiles, so that concurrent tiles share operands in L2.
  template <int kRows, int kCols>
  TESSERA_HD constexpr TileAt tile(int index) const {
    constexpr int kDown = 16;
    const int tile_lines = kRows >> height_shift;
    const int down = (lines + tile_lines - 1) / tile_lines, across = (cols + kCols - 1) / kCols;
    const int batch = index / (down * across), within = index % (down * across);
    const int group = within / (kDown * across), rest = within % (kDown * across);
    const int left = down - group * kDown;
    const int height = left < kDown ? left : kDown;
    return {(group * kDown + rest % height) * tile_lines, rest / height * kCols, batch};
  }
};

inline constexpr int kSlices = 64;  // of a tile's depth, that a window holds
inline constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;

/// Enters the pieces of a block that ends before slice `past` of a window, as far as the window has
/// them: line `line` of a tile names the block, which is stored at position `stored`. `place`:
/// where the line begins in a block. A window has
///   pieces[slice][group]     four words x, y, z, w
///   units[step]              a bitmask
///   lower(word, value)       writes a value where it is less; other lanes may do so too
///   add_bits(word, bits)     sets bits, likewise
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
    // Named twice: one of the two is used, always the same.
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
