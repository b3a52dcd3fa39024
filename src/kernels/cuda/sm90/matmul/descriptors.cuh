#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// Descriptors in shared memory: work descriptors tell the producer what to load; stage descriptors
// tell the consumers what each stage holds.
namespace tessera::cuda::sm90::matmul {

/// What consumers do with a stage: multiply its operands; store the tile's sums (the stage holds no
/// data, and consumers may use its memory as staging buffer); or end.
enum class StageUse : std::uint8_t { multiply, store, end };

struct Task {
  StageUse use = StageUse::multiply;
  // Bitmask of the consumers that multiply the stage; of FP8, of the lines that are in it.
  std::uint8_t consumers = 0;
  std::uint8_t from = 0, to = tile::kLine;  // range of depth that belongs to the tile's group
};
static_assert(sizeof(Task) == 4);

/// Where a tile is stored: its first row and column, the limits up to which rows and columns are
/// written, and the batch.
struct Place {
  int row, col, row_end, col_end, batch;
};

/// Descriptor of a stage. The producer writes it before it arrives at the stage's `full` barrier;
/// consumers read it after waiting there.
struct StageDescriptor {
  Task task;
  Place place;  // of the tile, for StageUse::store

  /// The task, in a form that the compiler knows to be equal in all lanes.
  __device__ Task read_task() const {
    const int bits = *reinterpret_cast<const volatile int*>(&task);
    return __builtin_bit_cast(Task, __shfl_sync(kAllLanes, bits, 0));
  }
};

/// Descriptor of a stage of FP8 operands: the step's factors follow from it.
template <int kLines>
struct NarrowStageDescriptor : StageDescriptor {  // `place` also for StageUse::multiply
  int depth;                                      // where the step begins in the depth
  int matrix[kLines];                             // per line: of A, or the stored block
};

/// What the producer loads next for a tile: a range of depth (dense), or the blocks in 32 columns
/// of blocks that the lists of the tile's lines name (sparse).
template <int kLines>
struct WorkDescriptor {
  bool ends_tile = false, no_more_tiles = false;
  Place place;
  int row[kLines], matrix[kLines];  // of A, per line; matrix: of the first step
  int b_matrix = 0;
  // Dense: `parts` steps from `depth` on.
  int depth = 0, parts = 0;
  int skip = 0, valid = tile::kLine;  // see Walk::Depth
  // Sparse: the columns of blocks from `first` on, and per line a bitmask of those that its list
  // names.
  int first = 0;
  unsigned named[kLines] = {};
};

}  // namespace tessera::cuda::sm90::matmul
