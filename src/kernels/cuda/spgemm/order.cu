#include <cuda_runtime.h>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/spgemm/pattern.hpp"

// Orders the stored blocks of a result for computation. A CTA computes few blocks, so an even
// distribution needs their cost: blocks with many pairs come first. Only windows of adjacent blocks
// are sorted, because neighbours read the same operand blocks.
namespace tessera::cuda::spgemm {
namespace {

constexpr int kThreads = 256;
constexpr int kSorters = 1024, kWindow = 2 * kSorters;
constexpr int kMaxPairs = (1 << 20) - 1;  // larger counts are clamped

/// Counts the pairs of each result block, one warp per block.
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(Lists a, RightBlocks b, ResultRuns<1> runs, PlannedBlock* blocks) {
  const std::int64_t index = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (index >= runs.count()) return;
  const auto run = runs.run(static_cast<int>(index), lane);
  if (run.size == 0) return;
  const Lists::Range row = a.range(run.row);
  const int column = runs.lists.indices[run.first];
  int pairs = 0;
  for (int entry = row.begin + lane; entry < row.end; entry += 32) {
    Search search(b, a.position(entry) < 0 ? -1 : a.indices[entry], column);
    while (search.open()) search.take(b.stored.indices[search.middle()]);
    pairs += search.found >= 0;
  }
  pairs = __reduce_add_sync(kAllLanes, pairs);
  if (lane == 0) blocks[run.first] = {run.row, run.first, column, min(pairs, kMaxPairs)};
}

/// Sorts one window per CTA by falling number of pairs; equal ones keep their order.
__global__ void __launch_bounds__(kSorters) sort_kernel(PlannedBlock* blocks, int stored) {
  __shared__ std::uint32_t keys[kWindow];
  PlannedBlock* const window = blocks + blockIdx.x * kWindow;
  const int size = min(stored - static_cast<int>(blockIdx.x) * kWindow, kWindow);
  for (int i = threadIdx.x; i < kWindow; i += kSorters)
    keys[i] = (i < size ? window[i].pairs : 0) * kWindow + (kWindow - 1 - i);
  // Bitonic sort, falling.
  for (int length = 2; length <= kWindow; length *= 2) {
    for (int reach = length / 2; reach > 0; reach /= 2) {
      __syncthreads();
      const int i = threadIdx.x / reach * 2 * reach + threadIdx.x % reach;
      const std::uint32_t left = keys[i], right = keys[i + reach];
      if ((left < right) == ((i & length) == 0)) {
        keys[i] = right;
        keys[i + reach] = left;
      }
    }
  }
  __syncthreads();
  PlannedBlock mine[kWindow / kSorters];
  for (int i = 0; i < kWindow / kSorters; ++i) {
    const int at = i * kSorters + static_cast<int>(threadIdx.x);
    if (at < size) mine[i] = window[kWindow - 1 - keys[at] % kWindow];
  }
  __syncthreads();
  for (int i = 0; i < kWindow / kSorters; ++i) {
    const int at = i * kSorters + static_cast<int>(threadIdx.x);
    if (at < size) window[at] = mine[i];
  }
}

}  // namespace

void order_blocks(const Lists& a, const RightBlocks& b, const Lists& result, PlannedBlock* blocks,
                  void* stream) {
  if (result.stored == 0) return;
  const ResultRuns<1> runs{result};
  constexpr std::int64_t kRunsPerBlock = kThreads / 32;
  const dim3 grid = grid_of((runs.count() + kRunsPerBlock - 1) / kRunsPerBlock);
  Kernel<weigh_kernel>::launch({"weigh_kernel", grid, kThreads, stream}, a, b, runs, blocks);
  const dim3 windows = grid_of((result.stored + kWindow - 1) / kWindow);
  Kernel<sort_kernel>::launch({"sort_kernel", windows, kSorters, stream}, blocks, result.stored);
}

}  // namespace tessera::cuda::spgemm
