#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm80/product/shape.cuh"

namespace tessera::cuda::sm80::product {

/// Fills the window from the lists of a tile's lines. All warps of a thread block do this together:
/// each reads the list of one line, or of none. What a warp reads is loaded well before it is
/// needed: the list's limits a tile ahead, the entries a window ahead, or at the end of the tile
/// before.
template <class T>
class ListReader {
 public:
  __device__ __forceinline__ ListReader(const Arguments& args, int warp, int lane)
      : walk_(args.walk), tiles_(args.tiles), warp_(warp), lane_(lane) {
    static_assert(T::kQuarters <= T::kWarps);  // lines of 16 rows
    load_limits(static_cast<int>(blockIdx.x));
  }

  /// Begins tile `index`, which is the next one of this thread block.
  __device__ __forceinline__ void begin(int index) {
    const TileAt tile = walk_.template tile<T::kM, T::kN>(index);
    const int line = tile.line + warp_;
    batch_ = tile.batch;
    place_ = static_cast<std::uint32_t>(batch_ * walk_.pool_step) * walk_.block_step +
             static_cast<std::uint32_t>(line % walk_.lines_per_block) * walk_.line_step;
    at_ = next_at_;
    end_ = next_end_;
    load_entries();
    load_limits(index + static_cast<int>(gridDim.x));
  }

  /// Fills the window with the steps from `first` on. Returns a bit for each step in which some
  /// line has a block. All threads call this together.
  __device__ __forceinline__ std::uint64_t fill(typename T::Window& window, int first) {
    __syncthreads();  // all warps have read the window before
    window.template clear<T::kThreads>(warp_ * kLanes + lane_);
    __syncthreads();
    const int begin = first << walk_.slice_shift, end = begin + T::Window::kSlices;
    bool more = true;
    while (more) {
      int past = end + 1;  // the slice after the block's last slice
      if (column_ != kEnd) {
        past = (column_ + 1) * walk_.pieces_per_block;
        if (column_ >= 0 && stored_ >= 0)
          planning::bsr::enter_block(walk_, window, batch_, warp_, past - begin, place_,
                                     static_cast<std::uint32_t>(stored_));
      }
      // The first entry that reaches beyond the window is read again for the next window.
      const std::uint32_t staying = __ballot_sync(kAllLanes, past > end);
      at_ += staying ? __ffs(static_cast<int>(staying)) - 1 : kLanes;
      more = staying == 0;
      load_entries();
    }
    __syncthreads();
    static_assert(T::Window::kSlices == 2 * kLanes);
    const std::uint32_t low = __ballot_sync(kAllLanes, window.units[lane_] != 0);
    const std::uint32_t high = __ballot_sync(kAllLanes, window.units[kLanes + lane_] != 0);
    return std::uint64_t{high} << 32 | low;
  }

 private:
  static constexpr int kEnd = INT32_MAX;

  /// Loads where the list of this warp's line of a tile begins and ends.
  __device__ __forceinline__ void load_limits(int index) {
    next_at_ = next_end_ = 0;
    if (index >= tiles_) return;
    const TileAt tile = walk_.template tile<T::kM, T::kN>(index);
    const int line = tile.line + warp_;
    if (warp_ >= T::kM >> walk_.height_shift || line >= walk_.lines) return;
    const planning::BsrRow row = walk_.lists.row(tile.batch, line / walk_.lines_per_block);
    next_at_ = static_cast<int>(row.begin);
    next_end_ = static_cast<int>(row.end);
  }

  /// Loads this lane's entry of the next ones of the list.
  __device__ __forceinline__ void load_entries() {
    const int entry = at_ + lane_;
    column_ = kEnd;
    if (entry >= end_) return;
    const planning::BsrRow lists = walk_.lists.row(batch_, 0);
    column_ = static_cast<int>(lists.column(entry));
    stored_ = static_cast<int>(lists.position(entry));
  }

  const Walk& walk_;
  int tiles_, warp_, lane_;
  int batch_ = 0;
  std::uint32_t place_ = 0;         // where the line begins in a block
  int at_ = 0, end_ = 0;            // the line's remaining entries
  int column_ = kEnd, stored_ = 0;  // this lane's entry of them
  int next_at_ = 0, next_end_ = 0;  // of the next tile
};

}  // namespace tessera::cuda::sm80::product
