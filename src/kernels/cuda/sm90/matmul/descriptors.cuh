#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// Descriptors in shared memory: the scheduler tells the producer what to load, and the producer
// tells the consumers what each stage holds.
namespace tessera::cuda::sm90::matmul {

/// What a stage is for: a step to multiply; or no data, and the tile's sums are to be stored,
/// for which consumers may use the stage's memory; or the end.
enum class StageUse : std::uint8_t { multiply, store, end };

struct Task {
  StageUse use = StageUse::multiply;
  std::uint8_t consumers = 0;               // bitmask of the consumers that multiply the stage
  std::uint8_t from = 0, to = tile::kLine;  // the depth that belongs to the tile
};
static_assert(sizeof(Task) == 4);

/// Where a tile's sums go: its first row and column, and where rows and columns end for it.
struct Place {
  int row, col, row_end, col_end, batch;
};

/// Descriptor of a stage, in shared memory: written before the stage is announced, read once it is
/// full.
struct StageDescriptor {
  Task task;
  Place place;  // where sums are stored

  /// The task, as a value that the compiler knows to be equal in all lanes.
  __device__ Task read_task() const {
    const int bits = *reinterpret_cast<const volatile int*>(&task);
    return __builtin_bit_cast(Task, __shfl_sync(kAllLanes, bits, 0));
  }
};

/// What the producer loads next for one tile: a run of depth, or the blocks that the lists of
/// its lines name in 32 columns.
template <int kLines>
struct WorkDescriptor {
  bool ends_tile = false, no_more_tiles = false;
  Place place;
  int row[kLines], matrix[kLines];  // of A, per line: position of the first step
  int b_matrix = 0;
  // A run of depth.
  int depth = 0, parts = 0;
  int skip = 0, valid = tile::kLine;  // of its first and last step, as in Walk::Depth
  // Blocks: columns from `first` on, and per line a bitmask of the named ones.
  int first = 0;
  unsigned named[kLines] = {};
};

}  // namespace tessera::cuda::sm90::matmul
