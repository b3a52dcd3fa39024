#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm80/product/shape.cuh"
#include "src/kernels/cuda/sm80/product/tiles.cuh"

namespace tessera::cuda::sm80::product {

/// Fills the window from the lists of a tile's lines. All warps of a thread block do this together:
/// each reads the list of one line, or of none. What a warp reads is loaded well before it is
/// needed: the list's limits a tile ahead, the entries a window ahead, or at the end of the tile
/// before.
template <class T>
class ListReader {
 public:
  __device__ __forceinline__ ListReader(const Arguments& args, const Tiles<T>& tiles)
      : args_(args), walk_(args.walk), tiles_(tiles) {
    static_assert(T::kQuarters <= T::kWarps);  // lines of 16 rows
    if (!T::kGrouped) load_limits(static_cast<int>(blockIdx.x));
  }

  /// Begins tile `index`, which is the next one of this thread block.
  __device__ __forceinline__ void begin(int index) {
    const TileSpan tile = tiles_.at(index);
    const int line = tile.line + warp();
    if (T::kGrouped) load_limits(index);  // tiles are not known ahead
    batch_ = tile.batch;
    place_ = static_cast<std::uint32_t>(tile.batch * walk_.pool_step) * walk_.block_step +
             static_cast<std::uint32_t>(line % walk_.lines_per_block) * walk_.line_step;
    at_ = next_at_;
    end_ = next_end_;
    if (whole()) {
      place_ = static_cast<std::uint32_t>(tile.batch * walk_.pool_step) * walk_.block_step;
      at_ = tile.line << (walk_.height_shift - 4);
    } else {
      load_entries();
    }
    if (!T::kGrouped) load_limits(index + static_cast<int>(gridDim.x));
  }

  /// Fills the window with the steps from `first` on. Returns a bit for each step in which some
  /// line has a block. All threads call this together.
  __device__ __forceinline__ std::uint64_t fill(typename T::Window& window, int first) {
    __syncthreads();  // all warps have read the window before
    if (whole()) return fill_whole(window, first);
    window.template clear<T::kThreads>(thread_of_block());
    __syncthreads();
    const int begin = first << walk_.slice_shift, end = begin + T::Window::kSlices;
    bool more = true;
    while (more) {
      int past = end + 1;  // the slice after the block's last slice
      if (column_ != kEnd) {
        past = (column_ + 1) * walk_.pieces_per_block;
        if (column_ >= 0 && stored_ >= 0)
          planning::bsr::enter_block(walk_, window, batch(), warp(), past - begin, place_,
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
    const std::uint32_t low = __ballot_sync(kAllLanes, window.units[lane()] != 0);
    const std::uint32_t high = __ballot_sync(kAllLanes, window.units[kLanes + lane()] != 0);
    return std::uint64_t{high} << 32 | low;
  }

 private:
  static constexpr int kEnd = INT32_MAX;

  /// Of the tile. With groups it is read from shared memory, so that no register holds it.
  __device__ __forceinline__ int batch() const { return T::kGrouped ? tiles_.batch() : batch_; }
  // Read anew where lists are read, so that no register holds them between.
  __device__ __forceinline__ static int warp() { return thread_of_block() / kLanes; }
  __device__ __forceinline__ static int lane() { return thread_of_block() % kLanes; }
  /// Whether the rows of the tile are of a dense matrix instead of stored blocks.
  __device__ __forceinline__ bool whole() const { return T::kGrouped && args_.whole; }

  /// Fills the window with pieces of a dense matrix, all of which exist.
  __device__ __forceinline__ std::uint64_t fill_whole(typename T::Window& window, int first) const {
    const int begin = first << walk_.slice_shift;
    for (int i = thread_of_block(); i < T::Window::kSlices * T::kQuarters; i += T::kThreads) {
      const int slice = begin + i / T::kQuarters, quarter = at_ + i % T::kQuarters;
      const bool exists = slice < walk_.pieces_per_block && quarter * 16 < args_.rows;
      window.words(i / T::kQuarters)[i % T::kQuarters] =
          exists ? place_ + static_cast<std::uint32_t>(quarter) * walk_.copy_step +
                       static_cast<std::uint32_t>(slice) * walk_.piece_step
                 : T::Window::kAbsent;
    }
    __syncthreads();
    const int steps = min(walk_.steps - first, T::Window::steps(walk_));
    return ~std::uint64_t{0} >> (64 - steps);
  }

  /// Loads where the list of this warp's line of a tile begins and ends.
  __device__ __forceinline__ void load_limits(int index) {
    next_at_ = next_end_ = 0;
    if (!tiles_.exists(index) || whole()) return;
    const TileSpan tile = tiles_.at(index);
    const int line = tile.line + warp();
    if (warp() >= T::kM >> walk_.height_shift || line >= walk_.lines) return;
    const planning::BsrRow row = walk_.lists.row(tile.batch, line / walk_.lines_per_block);
    next_at_ = static_cast<int>(row.begin);
    next_end_ = static_cast<int>(row.end);
  }

  /// Loads this lane's entry of the next ones of the list.
  __device__ __forceinline__ void load_entries() {
    const int entry = at_ + lane();
    column_ = kEnd;
    if (entry >= end_) return;
    const planning::BsrRow lists = walk_.lists.row(batch(), 0);
    column_ = static_cast<int>(lists.column(entry));
    stored_ = static_cast<int>(lists.position(entry));
  }

  const Arguments& args_;
  const Walk& walk_;
  Tiles<T> tiles_;
  int batch_ = 0;
  std::uint32_t place_ = 0;  // where the line begins in a block; of a dense matrix, where it begins
  int at_ = 0, end_ = 0;     // the line's remaining entries; at_: a dense matrix's first quarter
  int column_ = kEnd, stored_ = 0;  // this lane's entry of them
  int next_at_ = 0, next_end_ = 0;  // of the next tile
};

}  // namespace tessera::cuda::sm80::product
