#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/copy.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm80/product/find.cuh"
#include "src/kernels/cuda/sm80/product/shape.cuh"

namespace tessera::cuda::sm80::product {

/// The steps of all tiles of a thread block, one after the other, with a mark after each tile's
/// last step. Each thread copies its share of every step; all of them call `next` and `copy`
/// together.
template <class T>
class StepLoader {
 public:
  __device__ __forceinline__ StepLoader(const Arguments& args, const Tiles<T>& tiles,
                                        typename T::Window& window, int thread)
      : args_(args),
        tiles_(tiles),
        window_(window),
        lists_(args, tiles),
        dense_share_(T::DenseShare::of(thread)),
        piece_share_(T::PieceShare::of(thread)),
        dense_to_(dense_share_.offset()),
        pieces_to_(T::Dense::Rows::kBytes + piece_share_.offset()),
        lane_(thread % kLanes),
        index_(static_cast<int>(blockIdx.x)) {
    const Walk& walk = args.walk;
    if constexpr (T::kBlocksDeep) {
      const int slice_chunks = 8 >> walk.slice_shift;
      blocks_ = walk.blocks + piece_share_.row % 16 * walk.row_bytes +
                (piece_share_.chunk & (slice_chunks - 1)) * 16;
    } else {
      blocks_ = walk.blocks + piece_share_.row * walk.depth_bytes + piece_share_.chunk % 2 * 16;
    }
    begin_tile();
  }

  /// Goes on to the next step. If the tile has no more steps, to its end: `copy` copies nothing
  /// then. The words that `next` reads from the window are not used before `copy` and `mask`.
  __device__ __forceinline__ void next() {
    const Walk& walk = args_.walk;
    while (steps_ == 0) {
      if (index_ >= args_.tiles || first_ >= walk.steps) {
        if (index_ < args_.tiles) {
          index_ += static_cast<int>(gridDim.x);
          begin_tile();
        }
        copies_ = false;
        mask_word_ = T::Window::kAbsent;
        return;
      }
      steps_ = lists_.fill(window_, first_);
      first_ += T::Window::steps(walk);
    }
    const int in_window = __ffsll(static_cast<long long>(steps_)) - 1;
    steps_ &= steps_ - 1;
    const std::uint32_t* const words = window_.words(in_window << walk.slice_shift);
    const int shift = 2 - walk.slice_shift;  // log2 of the units per slice
    const auto word = [&](int unit, int quarter) {
      return words[(unit >> shift) * T::kQuarters + quarter];
    };
    mask_word_ = word(lane_ % kUnits, lane_ / kUnits);
#pragma unroll
    for (int i = 0; i < T::kPieceCopies; ++i) {
      if constexpr (T::kBlocksDeep) {
        word_[i] = word(piece_share_.chunk / 2, (piece_share_.row + i * T::PieceShare::kDown) / 16);
      } else {
        static_assert(T::PieceShare::kDown == 16);  // copy i: unit i
        word_[i] = word(i, piece_share_.chunk / 2);
      }
    }
    set_dense(first_ - T::Window::steps(walk) + in_window);
    copies_ = true;
  }

  /// Bit 4 * q + u: the rows of quarter q have a stored block at depth 16 * u of the step. 0: the
  /// end of the tile.
  __device__ __forceinline__ std::uint32_t mask() const {
    return __ballot_sync(kAllLanes, mask_word_ != T::Window::kAbsent);
  }

  /// Starts part `part` of this thread's copies of the step into the stage at a shared address:
  /// first those of the dense side, then pieces. The parts of a step are copied in order.
  __device__ __forceinline__ void copy(std::uint32_t stage, int part) {
    if (!copies_) return;
    constexpr int kHalf = T::kParts / 2;
    if (part < kHalf) {
      constexpr int kTogether = T::kDenseCopies / kHalf;
      copy_dense<kTogether>(stage + dense_to_ + part * kTogether * T::DenseShare::kBytesDown,
                            part * kTogether * T::DenseShare::kDown);
    } else {
      constexpr int kTogether = T::kPieceCopies / kHalf;
#pragma unroll
      for (int i = (part - kHalf) * kTogether; i < (part - kHalf + 1) * kTogether; ++i)
        copy_piece(stage + pieces_to_ + i * T::PieceShare::kBytesDown, i);
    }
  }
  __device__ __forceinline__ void copy(std::uint32_t stage) {
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) copy(stage, part);
  }

 private:
  /// From one row of the dense side in shared memory to the next, in global memory.
  __device__ __forceinline__ std::int64_t down_bytes() const {
    return T::kDenseDeep ? args_.column_bytes : args_.depth_bytes;
  }

  /// Copies kCount chunks of the dense side, from row `down` of this thread's on.
  template <int kCount>
  __device__ __forceinline__ void copy_dense(std::uint32_t to, int down) {
    const std::int64_t apart = T::DenseShare::kDown * down_bytes();
    if (whole_) {
#pragma unroll
      for (int i = 0; i < kCount; ++i, dense_ += apart)
        copy_whole_chunk(to + i * T::DenseShare::kBytesDown, dense_);
      return;
    }
    // A loop, so that the compiler does not execute its instructions, predicated, in whole steps.
#pragma unroll 1
    for (int i = 0; i < kCount; ++i, dense_ += apart) {
      const bool exists = down + i * T::DenseShare::kDown < left_;
      if constexpr (T::kDenseDeep) {
        copy_or_clear(to + i * T::DenseShare::kBytesDown, dense_, exists);
      } else {
        copy_bytes(to + i * T::DenseShare::kBytesDown, dense_, exists ? bytes_ : 0);
      }
    }
  }

  /// Copies piece `i` of this thread's, if it is stored. All rows of a step are stored together if
  /// blocks have all rows of a tile.
  __device__ __forceinline__ void copy_piece(std::uint32_t to, int i) const {
    if (!T::kWhole && word_[i] == T::Window::kAbsent) return;
    std::uint32_t from = word_[i];
    if constexpr (!T::kBlocksDeep)
      from += (i & ((kUnits >> args_.walk.slice_shift) - 1)) * args_.walk.round_step;
    copy_whole_chunk(to, blocks_ + std::uint64_t{from} * 16);
  }

  __device__ __forceinline__ void begin_tile() {
    first_ = 0;
    if (!tiles_.find(index_)) {
      if (T::kGrouped) index_ = args_.tiles;  // no tile follows
      return;
    }
    lists_.begin(index_);
    const TileSpan tile = tiles_.at(index_);
    // Computed anew, so that no register holds it.
    const auto share = T::DenseShare::of(thread_of_block());
    const int col = tile.col + (T::kDenseDeep ? share.row : share.chunk * 8);
    tile_ = args_.dense + tile.batch * args_.dense_batch_bytes + col * args_.column_bytes +
            (T::kDenseDeep ? share.chunk * 16 : share.row * args_.depth_bytes);
    columns_ = tile.col_end - col;
  }

  /// Where the dense side of a step is, for this thread, and how much of it exists.
  __device__ __forceinline__ void set_dense(int step) {
    const int depth = step * kDepth;
    dense_ = tile_ + depth * args_.depth_bytes;
    if constexpr (T::kDenseDeep) {
      left_ = depth + dense_share_.chunk * 8 < args_.depth ? columns_ : 0;
    } else {
      left_ = args_.depth - depth - dense_share_.row;
      bytes_ = max(min(columns_, 8), 0) * 2;
    }
    whole_ =
        left_ > (T::kDenseCopies - 1) * T::DenseShare::kDown && (T::kDenseDeep || columns_ >= 8);
  }

  const Arguments& args_;
  Tiles<T> tiles_;
  typename T::Window& window_;
  ListReader<T> lists_;
  typename T::DenseShare dense_share_;
  typename T::PieceShare piece_share_;
  std::uint32_t dense_to_, pieces_to_;  // this thread's first chunk of each in a stage
  int lane_;

  // The stream of steps.
  int index_;                // tile
  int first_ = 0;            // first step of the next window
  std::uint64_t steps_ = 0;  // steps of this window that remain, a bit each

  const char* blocks_;          // this thread's source in a block at position 0
  const char* tile_ = nullptr;  // and in the dense side, of a tile,
  int columns_ = 0;             // with this many columns from there on
  // This thread's copies of the step.
  bool copies_ = false;
  const char* dense_ = nullptr;
  int left_ = 0, bytes_ = 0;  // rows of the dense side that exist; bytes of each chunk
  bool whole_ = false;        // all of them exist
  std::uint32_t word_[T::kPieceCopies] = {};
  std::uint32_t mask_word_ = T::Window::kAbsent;  // lane 4 * q + u: of quarter q and unit u
};

}  // namespace tessera::cuda::sm80::product
