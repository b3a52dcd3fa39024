#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// What warps tell each other through shared memory: the scout tells the loader what to load, the
// loader tells the consumers about each stage.
namespace tessera::cuda::sm90::matmul {

/// A stage holds a step to multiply; or nothing, and the tile's sums are to be stored: meanwhile
/// its memory is the consumers'; or nothing, and nothing comes after it.
enum class What : std::uint8_t { multiply, store, end };

struct Task {
  What what = What::multiply;
  std::uint8_t consumers = 0;               // that multiply the stage, a bit each
  std::uint8_t from = 0, to = tile::kLine;  // the depth that belongs to the tile
};
static_assert(sizeof(Task) == 4);

/// Where a tile's sums go: its first row and column, where rows and columns end for it.
struct Place {
  int row, col, row_end, col_end, batch;
};

/// Of a stage, in shared memory: written before the stage is announced, read once it is full.
struct Note {
  Task task;
  Place place;  // where sums are stored

  /// The task, as a value that the compiler knows to be the same in all lanes.
  __device__ Task read_task() const {
    const int bits = *reinterpret_cast<const volatile int*>(&task);
    return __builtin_bit_cast(Task, __shfl_sync(0xFFFFFFFFu, bits, 0));
  }
};

/// What the loader is to load next, all of it for one tile: a run of depth, or the blocks that the
/// lists of its lines name in 32 columns.
template <int kLines>
struct Order {
  bool ends_tile = false, ends_all = false;
  Place place;
  int row[kLines], matrix[kLines];  // of A, by line: where the first step lies
  int b_matrix = 0;
  // A run of depth.
  int depth = 0, parts = 0;
  int skip = 0, valid = tile::kLine;  // of its first and last step, as in Walk::Depth
  // Blocks: columns from `first` on, named by each line, a bit a column.
  int first = 0;
  unsigned named[kLines] = {};
};

}  // namespace tessera::cuda::sm90::matmul
