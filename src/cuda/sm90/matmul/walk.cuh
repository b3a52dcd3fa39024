#pragma once

#include <cstdint>

#include "src/cuda/tile/swizzled_tile.cuh"
#include "src/plan/list_walk.hpp"

// What an output tile walks: pairs (piece of A, piece of B), 64 deep. Dense: all of K. Sparse A:
// the stored blocks of a row of blocks. Everything else in the kernel is the same for both.
namespace tessera::cuda::sm90::matmul {

/// One output tile: its first row and column, its batch.
struct TileAt {
  int row, col, batch;
};

struct Walk {
  std::int64_t m = 0, n = 0, k = 0;
  int batches = 1;
  int a_batch_step = 0, b_batch_step = 0;  // 0: shared by all batches
  // Sparse A.
  bool sparse = false;
  planning::BsrView lists;
  int block_rows = 0, block_depth = 0;  // as the product sees a block
  std::int64_t pool_step = 0;           // stored blocks of one batch; 0: one pool

  /// Tiles go down columns of `kGroup` rows of tiles, so that what runs at one time shares operands
  /// in L2.
  template <int kTileM, int kTileN>
  __device__ TileAt tile(int index) const {
    constexpr int kGroup = 16;
    const int rows = row_tiles<kTileM>(), cols = col_tiles<kTileN>();
    const int batch = index / (rows * cols), within = index % (rows * cols);
    const int group = within / (kGroup * cols), rest = within % (kGroup * cols);
    const int left = rows - group * kGroup;
    const int height = left < kGroup ? left : kGroup;
    return {(group * kGroup + rest % height) * kTileM, rest / height * kTileN, batch};
  }
  template <int kTileM, int kTileN>
  __host__ __device__ std::int64_t tiles() const {
    return static_cast<std::int64_t>(row_tiles<kTileM>()) * col_tiles<kTileN>() * batches;
  }

  /// What a tile walks: `entries` of `parts` steps, each step kLine deep. Dense is one entry, all
  /// of K.
  struct Steps {
    int entries = 0, parts = 0;
    planning::BsrRow list;  // sparse
    int row = 0;            // of A, or of the stored block
    __device__ int count() const { return entries * parts; }
  };
  __device__ Steps steps(const TileAt& at) const {
    if (!sparse) return {1, static_cast<int>((k + tile::kLine - 1) / tile::kLine), {}, at.row};
    const planning::BsrRow list = lists.row(at.batch, at.row / block_rows);
    return {static_cast<int>(list.size()), block_depth / tile::kLine, list, at.row % block_rows};
  }
  /// Where an entry's B begins. A column that no block has (-1) lies out of bounds and reads as
  /// zeros.
  __device__ int b_begin(const Steps& steps, int entry) const {
    if (!sparse) return 0;
    return static_cast<int>(steps.list.column(steps.list.begin + entry)) * block_depth;
  }
  /// Which of A's matrices an entry reads: its batch, or its stored block.
  __device__ int a_matrix(const TileAt& at, const Steps& steps, int entry) const {
    if (!sparse) return at.batch * a_batch_step;
    return static_cast<int>(steps.list.begin + entry + at.batch * pool_step);
  }

 private:
  template <int kTileM>
  __host__ __device__ int row_tiles() const {
    return static_cast<int>((m + kTileM - 1) / kTileM);
  }
  template <int kTileN>
  __host__ __device__ int col_tiles() const {
    return static_cast<int>((n + kTileN - 1) / kTileN);
  }
};

}  // namespace tessera::cuda::sm90::matmul
