#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/spgemm/walk.cuh"

// What an output tile walks. A tile is a run of kSlots adjacent blocks in one row of the result.
// There is one step per stored block of that row of A: it names the blocks of B that match in the
// tile's slots. A's block is loaded once for all of them.
namespace tessera::cuda::sm90::spgemm {

using cuda::spgemm::Lists;
using cuda::spgemm::PlannedBlock;
using cuda::spgemm::ResultRuns;
using cuda::spgemm::RightBlocks;
using cuda::spgemm::Search;

/// A batch of steps in shared memory: written by a matcher warp, read by producers and consumers.
template <int kSlots>
struct Batch {
  static constexpr int kSteps = kSlots == 1 ? 32 : 16;
  int slots;                  // result blocks of the tile
  int first;                  // stored position of the first one
  bool last;                  // last batch of the tile
  int left[kSteps];           // stored position in A, per step
  std::uint32_t met[kSteps];  // bit s: B has a block for slot s
  int right[kSteps][kSlots];  // stored positions in B
};

struct Walk {
  Lists a;
  RightBlocks b;
  Lists result;
};

/// Fills a batch with the steps of `count` entries of A from `entry` on, by one warp. Each lane
/// looks up one (step, slot) per round; all rounds are interleaved, because each look-up waits for
/// L2.
template <int kSlots>
__device__ __forceinline__ void match(const Walk& walk, int entry, int count, int column, int lane,
                                      Batch<kSlots>& batch) {
  constexpr int kAtOnce = 32 / kSlots, kRounds = Batch<kSlots>::kSteps / kAtOnce;
  const int slot = lane % kSlots;
  const auto step = [lane](int round) { return round * kAtOnce + lane / kSlots; };
  int left[kRounds], k[kRounds];
  Search search[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const bool inside = step(round) < count;
    left[round] = inside ? walk.a.position(entry + step(round)) : -1;
    k[round] = inside ? walk.a.indices[entry + step(round)] : -1;
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round)
    search[round] = Search(walk.b, left[round] < 0 ? -1 : k[round], column);
  bool open = true;
  while (open) {
    int seen[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round)
      seen[round] = search[round].open() ? walk.b.stored.indices[search[round].middle()] : 0;
    open = false;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (search[round].open()) search[round].take(seen[round]);
      open |= search[round].open();
    }
  }
  __syncwarp();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::uint32_t found = __ballot_sync(kAllLanes, search[round].found >= 0);
    batch.right[step(round)][slot] = search[round].found;
    if (slot == 0) {
      batch.left[step(round)] = left[round];
      batch.met[step(round)] = (found >> (lane / kSlots * kSlots)) & ((1u << kSlots) - 1);
    }
  }
}

}  // namespace tessera::cuda::sm90::spgemm
