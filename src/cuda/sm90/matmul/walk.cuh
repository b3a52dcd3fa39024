#pragma once

#include <cstdint>

#include "src/cuda/tile/swizzled_tile.cuh"
#include "src/plan/list_walk.hpp"

// What an output tile walks: pairs (piece of A, piece of B), 64 deep. Dense: all of K. Sparse A: the
// stored blocks of a row of blocks. Everything else in the kernel is the same for both.
namespace tessera::cuda::sm90::matmul {

/// Where the pieces of one step lie, in TMA coordinates.
struct Step {
  int a_row, a_depth, a_batch;  // for sparse A inside a stored block, the "batch" is its position
  int b_depth;
};

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
  int block_rows = 0, block_depth = 0;   // as the product sees a block
  std::int64_t pool_step = 0;            // stored blocks of one batch; 0: one pool

  /// Tiles go down columns of `kGroup` rows of tiles, so that what runs at one time shares operands in L2.
  template <int kTileM, int kTileN>
  __device__ TileAt tile(std::int64_t index) const {
    constexpr int kGroup = 16;
    const std::int64_t rows = row_tiles<kTileM>(), cols = (n + kTileN - 1) / kTileN;
    const std::int64_t batch = index / (rows * cols), within = index % (rows * cols);
    const std::int64_t group = within / (kGroup * cols), rest = within % (kGroup * cols);
    const std::int64_t left = rows - group * kGroup;
    const std::int64_t height = left < kGroup ? left : kGroup;
    return {static_cast<int>((group * kGroup + rest % height) * kTileM),
            static_cast<int>(rest / height * kTileN), static_cast<int>(batch)};
  }
  template <int kTileM, int kTileN>
  __host__ __device__ std::int64_t tiles() const {
    return row_tiles<kTileM>() * ((n + kTileN - 1) / kTileN) * batches;
  }

  /// The steps of one tile, `kLine` deep each.
  struct Steps {
    int count = 0;
    planning::BsrRow list;  // sparse
    int row_in_block = 0;
  };
  __device__ Steps steps(const TileAt& at) const {
    if (!sparse) return {static_cast<int>((k + tile::kLine - 1) / tile::kLine), {}, 0};
    const planning::BsrRow list = lists.row(at.batch, at.row / block_rows);
    return {static_cast<int>(list.size()) * (block_depth / tile::kLine), list,
            at.row % block_rows};
  }
  __device__ Step step(const TileAt& at, const Steps& steps, int index) const {
    if (!sparse) {
      return {at.row, index * tile::kLine, at.batch * a_batch_step, index * tile::kLine};
    }
    const int per_block = block_depth / tile::kLine;
    const std::int64_t position = steps.list.begin + index / per_block;
    const int inside = index % per_block * tile::kLine;
    // A column that no block has (-1) puts B out of bounds, which reads as zeros.
    const std::int64_t column = steps.list.column(position);
    return {steps.row_in_block, inside, static_cast<int>(position + at.batch * pool_step),
            static_cast<int>(column * block_depth) + inside};
  }

 private:
  template <int kTileM>
  __host__ __device__ std::int64_t row_tiles() const {
    return (m + kTileM - 1) / kTileM;
  }
};

}  // namespace tessera::cuda::sm90::matmul
