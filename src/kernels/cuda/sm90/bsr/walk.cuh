#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/walk/list_walk.hpp"

// What an output tile walks: the union of its lines' lists, 64 of depth at a time. A line is 16, 32
// or 64 rows of the result inside one row of blocks; a piece is the part of a line's block that
// lies in one step, 16, 32 or 64 deep.
namespace tessera::cuda::sm90::bsr {

inline constexpr int kUnit = 16;                    // depth of one wgmma
inline constexpr int kUnits = tile::kLine / kUnit;  // in a step
inline constexpr int kGroup = 64;                   // rows of the result that one wgmma computes

/// One output tile: its first line, its first column, its batch.
struct TileAt {
  int line, col, batch;
};

struct Walk {
  planning::BsrView lists;
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

  __device__ int height() const { return 1 << height_shift; }
  __device__ int piece() const { return tile::kLine >> slice_shift; }

  /// Tiles go down columns of `kDown` rows of tiles, so that concurrent tiles share operands in L2.
  template <int kRows, int kCols>
  __device__ TileAt tile(int index) const {
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

/// The pieces of 64 of a tile's smallest slices of depth, so that the contents of a step are known
/// without following lists.
template <int kGroups>
struct Window {
  static constexpr int kSlices = 64;
  static constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;
  static_assert(kGroups * kUnits <= 24);

  /// Where the four copies of a group's piece begin in memory, in units of 16 bytes. Or, where
  /// boxes are copied: the block of each line, and for lines of more than 16 rows, of which there
  /// are one or two, their rows inside it, 16 bits each, and the depth. [slice][group]
  uint4 pieces[kSlices][kGroups];
  /// Bit 4 * g + u: some line of group g stores unit u of the step.
  std::uint32_t units[kSlices];
  struct FilledStep {
    std::uint32_t units;
    std::uint16_t step, count;  // step in the window; number of units
  };
  FilledStep filled[kSlices];  // the steps that are not empty
  int count;                   // number of them

  __device__ static int steps(const Walk& walk) { return kSlices >> walk.slice_shift; }
  __device__ void clear(int lane) {
    for (int i = lane; i < kSlices * kGroups; i += 32)
      pieces[0][i] = {kAbsent, kAbsent, kAbsent, kAbsent};
    for (int i = lane; i < kSlices; i += 32) units[i] = 0;
  }
};

/// The finder warp: fills windows of a tile, one after the other. Lane k keeps the position in line
/// k's list.
template <int kGroups>
class Finder {
 public:
  __device__ Finder(const Walk& walk, const TileAt& tile, int lane)
      : walk_(walk), batch_(tile.batch), lane_(lane) {
    const int line = tile.line + lane;
    if (lane < lines() && line < walk.lines) {
      const planning::BsrRow row = walk.lists.row(tile.batch, line / walk.lines_per_block);
      at_ = static_cast<int>(row.begin);
      end_ = static_cast<int>(row.end);
    }
    const auto pool = static_cast<std::uint32_t>(tile.batch * walk.pool_step);
    const auto in_block = static_cast<std::uint32_t>(line % walk.lines_per_block);
    place_ = walk.boxed ? in_block << walk.height_shift
                        : pool * walk.block_step + in_block * walk.line_step;
  }

  /// The steps from `first` on.
  __device__ void find(Window<kGroups>& window, int first) {
    window.clear(lane_);
    __syncwarp();
    const int begin = first << walk_.slice_shift, end = begin + kSlices;
    bool more;
    do {
      more = false;
#pragma unroll 1
      for (int k = 0; k < lines(); k += kTogether) {
        // Recomputed here, as there are no registers to keep it.
        const planning::BsrRow lists = walk_.lists.row(__shfl_sync(kAll, batch_, 0), 0);
        int column[kTogether], stored[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int entry = __shfl_sync(kAll, at_, k + i) + lane_;
          column[i] = kEnd;
          if (entry >= __shfl_sync(kAll, end_, k + i)) continue;
          column[i] = static_cast<int>(lists.column(entry));
          stored[i] = static_cast<int>(lists.position(entry));
        }
#pragma unroll 1
        for (int i = 0; i < kTogether; ++i) {
          const std::uint32_t place = __shfl_sync(kAll, place_, k + i);
          int past = end + 1;  // the slice after the block's last one
          if (column[0] != kEnd) {
            past = (column[0] + 1) * walk_.pieces_per_block;
            if (column[0] >= 0 && stored[0] >= 0)
              enter(window, k + i, past - begin, place, static_cast<std::uint32_t>(stored[0]));
          }
          // The first entry that reaches beyond the window is read again for the next window.
          const std::uint32_t staying = __ballot_sync(kAll, past > end);
          if (lane_ == k + i) at_ += staying ? __ffs(static_cast<int>(staying)) - 1 : 32;
          more = more || staying == 0;
#pragma unroll
          for (int next = 1; next < kTogether; ++next) {
            column[next - 1] = column[next];
            stored[next - 1] = stored[next];
          }
        }
      }
    } while (more);
    __syncwarp();
    // Compacts the steps that are not empty.
    int count = 0;
    for (int half = 0; half < kSlices; half += 32) {
      const std::uint32_t units = window.units[half + lane_];
      const std::uint32_t there = __ballot_sync(kAll, units != 0);
      if (units != 0)
        window.filled[count + __popc(there & ((1u << lane_) - 1))] = {
            units, static_cast<std::uint16_t>(half + lane_),
            static_cast<std::uint16_t>(__popc(units))};
      count += __popc(there);
    }
    if (lane_ == 0) window.count = count;
  }

 private:
  static constexpr std::uint32_t kAll = 0xFFFFFFFFu;
  static constexpr int kEnd = INT32_MAX;
  static constexpr int kSlices = Window<kGroups>::kSlices;
  static constexpr int kTogether = 3;  // lines whose entries are read together
  static_assert(kGroups * 4 <= 32);

  __device__ int lines() const { return kGroups * kGroup >> walk_.height_shift; }

  /// Enters the pieces of a block that ends before slice `past` of the window, as far as the window
  /// has them.
  __device__ void enter(Window<kGroups>& window, int line, int past, std::uint32_t place,
                        std::uint32_t stored) {
    const int units = kUnits >> walk_.slice_shift;
    const int quarter = line << (walk_.height_shift - 4), group = quarter / 4;
    const int first = past - walk_.pieces_per_block;
#pragma unroll 1
    for (int at = first < 0 ? 0 : first; at < past && at < kSlices; ++at) {
      uint4& piece = window.pieces[at][group];
      const auto part = static_cast<std::uint32_t>(at - first);
      // Named twice: one of the two is used, always the same.
      if (walk_.boxed) {
        const int in_group = line & ((kGroup >> walk_.height_shift) - 1);
        atomicMin(reinterpret_cast<std::uint32_t*>(&piece) + in_group,
                  stored + static_cast<std::uint32_t>(batch_ * walk_.pool_step));
        reinterpret_cast<std::uint16_t*>(&piece.z)[in_group] = static_cast<std::uint16_t>(place);
        piece.w = part * walk_.piece();
      } else {
        auto* const copies = reinterpret_cast<std::uint32_t*>(&piece) + quarter % 4;
        const std::uint32_t from = place + stored * walk_.block_step + part * walk_.piece_step;
#pragma unroll 1
        for (int i = 0; i < walk_.height() / 16; ++i)
          atomicMin(copies + i, from + static_cast<std::uint32_t>(i) * walk_.copy_step);
      }
      const int slice = at & ((1 << walk_.slice_shift) - 1);
      atomicOr(&window.units[at >> walk_.slice_shift], ((1u << units) - 1)
                                                           << (group * kUnits + slice * units));
    }
  }

  const Walk& walk_;
  int batch_, lane_;
  int at_ = 0, end_ = 0;     // of this lane's line: the remaining entries,
  std::uint32_t place_ = 0;  // and where the line begins in a block
};

}  // namespace tessera::cuda::sm90::bsr
