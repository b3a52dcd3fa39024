#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/walk/bsr_walk.hpp"

// The window of steps, and the finder warp that fills it from the lists of a tile's lines. src/walk
// defines what a tile walks.
namespace tessera::cuda::sm90::bsr {

using planning::bsr::kGroup;
using planning::bsr::kUnit;
using planning::bsr::kUnits;
using planning::bsr::TileAt;
using planning::bsr::Walk;
static_assert(planning::bsr::kLine == tile::kLine);

/// The pieces of a tile in 64 slices of depth, so that copiers need not read lists.
template <int kGroups>
struct Window {
  static constexpr int kSlices = planning::bsr::kSlices;
  static constexpr std::uint32_t kAbsent = planning::bsr::kAbsent;
  static_assert(kGroups * kUnits <= 24);

  /// Where the four copies of a group's piece begin in memory, in units of 16 bytes. If TMA loads
  /// pieces instead: the stored block of each line (one or two lines, of 32 or 64 rows), the lines'
  /// first rows in their blocks (16 bits each), and the depth. [slice][group]
  uint4 pieces[kSlices][kGroups];
  /// Bit 4 * g + u: some line of group g has a block in unit u of the step.
  std::uint32_t units[kSlices];
  struct FilledStep {
    std::uint32_t units;
    std::uint16_t step, count;  // index in the window; number of units
  };
  FilledStep filled[kSlices];  // the non-empty steps
  int count;                   // number of non-empty steps

  __device__ static int steps(const Walk& walk) { return kSlices >> walk.slice_shift; }

  __device__ static void lower(std::uint32_t* word, std::uint32_t value) { atomicMin(word, value); }
  __device__ static void add_bits(std::uint32_t* word, std::uint32_t bits) { atomicOr(word, bits); }
  __device__ void clear(int lane) {
    for (int i = lane; i < kSlices * kGroups; i += 32)
      pieces[0][i] = {kAbsent, kAbsent, kAbsent, kAbsent};
    for (int i = lane; i < kSlices; i += 32) units[i] = 0;
  }
};

/// The finder warp: fills the windows of a tile in order. Lane k keeps the position in line k's
/// list.
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

  /// Fills `window` with the steps from `first` on.
  __device__ void find(Window<kGroups>& window, int first) {
    window.clear(lane_);
    __syncwarp();
    const int begin = first << walk_.slice_shift, end = begin + kSlices;
    bool more;
    do {
      more = false;
#pragma unroll 1
      for (int k = 0; k < lines(); k += kTogether) {
        // Recomputed here to save registers.
        const planning::BsrRow lists = walk_.lists.row(__shfl_sync(kAllLanes, batch_, 0), 0);
        int column[kTogether], stored[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int entry = __shfl_sync(kAllLanes, at_, k + i) + lane_;
          column[i] = kEnd;
          if (entry >= __shfl_sync(kAllLanes, end_, k + i)) continue;
          column[i] = static_cast<int>(lists.column(entry));
          stored[i] = static_cast<int>(lists.position(entry));
        }
#pragma unroll 1
        for (int i = 0; i < kTogether; ++i) {
          const std::uint32_t place = __shfl_sync(kAllLanes, place_, k + i);
          int past = end + 1;  // the slice after the block's last slice
          if (column[0] != kEnd) {
            past = (column[0] + 1) * walk_.pieces_per_block;
            if (column[0] >= 0 && stored[0] >= 0)
              planning::bsr::enter_block(walk_, window, batch_, k + i, past - begin, place,
                                         static_cast<std::uint32_t>(stored[0]));
          }
          // The first entry that reaches beyond the window is read again for the next window.
          const std::uint32_t staying = __ballot_sync(kAllLanes, past > end);
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
      const std::uint32_t there = __ballot_sync(kAllLanes, units != 0);
      if (units != 0)
        window.filled[count + __popc(there & ((1u << lane_) - 1))] = {
            units, static_cast<std::uint16_t>(half + lane_),
            static_cast<std::uint16_t>(__popc(units))};
      count += __popc(there);
    }
    if (lane_ == 0) window.count = count;
  }

 private:
  static constexpr int kEnd = INT32_MAX;
  static constexpr int kSlices = Window<kGroups>::kSlices;
  static constexpr int kTogether = 3;  // lines whose entries are read together
  static_assert(kGroups * 4 <= 32);

  __device__ int lines() const { return kGroups * kGroup >> walk_.height_shift; }

  const Walk& walk_;
  int batch_, lane_;
  int at_ = 0, end_ = 0;     // this lane's line: its remaining entries,
  std::uint32_t place_ = 0;  // and where it begins in a block
};

}  // namespace tessera::cuda::sm90::bsr
