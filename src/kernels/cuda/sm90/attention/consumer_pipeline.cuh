#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

namespace tessera::cuda::sm90::attention {

/// A consumer's view of the pipeline: its position in tiles and steps, the flags of the current
/// step, and the barriers on which it waits and arrives.
template <class T>
struct ConsumerPipeline {
  using Cursor = tile::RingCursor<T::kStages>;

  __device__ __forceinline__ ConsumerPipeline(const Arguments& args, typename T::Shared& shared,
                                              int number)
      : args(args), shared(shared), consumer(number), arrives(threadIdx.x % 32 == 0) {
    // The shuffle tells the compiler that all lanes belong to one consumer; without it the rows
    // with one list per row group use more registers.
    if constexpr (T::kOwnLists && !kEachLaneArrives) consumer = __shfl_sync(~0u, consumer, 0);
    if constexpr (T::kLooksAhead) {
      next.stage = kv_split();
      advance();
    }
  }

  /// The first of this consumer's 64 rows in a tile.
  __device__ __forceinline__ int first_row() const {
    return (consumer - kv_split() * T::kSplitConsumers) * T::kRows;
  }
  __device__ __forceinline__ int kv_split() const {
    return T::kKvSplits > 1 ? consumer / T::kSplitConsumers : 0;
  }
  __device__ __forceinline__ int row_group() const {
    return (consumer - kv_split() * T::kSplitConsumers) / T::kConsumersPerRowGroup;
  }

  /// Moves to the next step of this KV split.
  __device__ __forceinline__ void advance() {
    if constexpr (!T::kLooksAhead) return at.advance();
    at = next;
    next.stage += T::kKvSplits;
    if (next.stage >= T::kStages) {
      next.stage -= T::kStages;
      next.parity ^= 1;
    }
  }

  __device__ __forceinline__ static int thread() { return thread_of_block() % kWarpgroup; }

  /// Releases a barrier: one arrival per warp.
  __device__ __forceinline__ void release(std::uint64_t& empty) {
    arrive_as_warp(empty, arrives ? 0 : 1);
  }

  /// Waits for the current step's K and reads the step's flags.
  __device__ __forceinline__ void wait_for_keys() {
    if (!T::kLooksAhead || !has_flag(kKeysArrived))
      tile::wait(&shared.k_ring.full[at.stage], at.parity);
    flags &= kHasRowMaxes;
    const typename T::Step& step = shared.stage_steps[at.stage];
    if constexpr (T::kVotesOnFlags) {
      std::uint8_t masked = 0;
#pragma unroll
      for (const RowGroupFlags& flags : step.flags) masked |= flags.masked;
      if (agreed(masked >> row_group() & 1)) flags |= kMasked;
      if (agreed(step.flags[0].last_needed >> row_group() & 1)) flags |= kLastNeeded;
      if (agreed(step.flags[0].last_of_tile != 0)) flags |= kLastOfTile;
      if constexpr (T::kJoinsLater)
        if (agreed(step.flags[0].needed >> row_group() & 1)) flags |= kNeeded;
    } else {
      flags |= __shfl_sync(~0u, step.flags_of(row_group()), 0);
    }
  }

  /// A flag of the current step (the last one passed to wait_for_keys) or of the tile.
  __device__ __forceinline__ bool has_flag(unsigned bit) const {
    const bool asks = !T::kVotesOnFlags && T::kConsumers == 2;
    return ((asks ? __shfl_sync(~0u, flags, 0) : flags) & bit) != 0;
  }
  /// Whether the step is the last of its tile that this consumer needs.
  __device__ __forceinline__ bool is_last() const { return has_flag(kLastNeeded); }
  __device__ __forceinline__ bool is_needed() const { return has_flag(kNeeded); }

  /// Tests whether the next step's K has arrived; called where other work hides the test.
  __device__ __forceinline__ void look_ahead() {
    if (agreed(tile::ptx::mbarrier_test_wait_parity(&shared.k_ring.full[next.stage], next.parity)))
      flags |= kKeysArrived;
  }

  /// Releases the K and V of a step without using them. V is released only after its stage is full:
  /// an earlier arrival would count for the stage's previous phase, which other consumers may still
  /// hold.
  __device__ __forceinline__ void skip_step() {
    release(shared.k_ring.empty[at.stage]);
    tile::wait(&shared.v_ring.full[at.stage], at.parity);
    release(shared.v_ring.empty[at.stage]);
  }

  /// Advances to the next step of the tile that this consumer needs, skipping the steps before it.
  /// Returns false, positioned behind the tile's last step, if it needs no further step or if
  /// `looks` is false.
  __device__ __forceinline__ bool next_needed_step(bool looks = true) {
    while (true) {
      wait_for_keys();
      if (looks && (!T::kSkipsSteps || is_needed())) return true;
      skip_step();
      advance();
      if (has_flag(kLastOfTile)) return false;
    }
  }

  /// Moves behind the tile's last step. The consumer skips steps that it does not need while it
  /// still holds the V of its own last step; the ring has enough stages for that.
  __device__ __forceinline__ void leave_tile() {
    const bool last = !T::kLeavesSooner || has_flag(kLastOfTile);
    advance();
    if (!last) next_needed_step(false);
  }

  /// Waits for the Q of tile `number`. False if the walk has no such tile.
  __device__ __forceinline__ bool has_tile(unsigned number) {
    wait_for_queries(number);
    return !agreed(descriptor_of(number).no_more_tiles);
  }

  /// Whether a tile has queries in any of this consumer's rows.
  __device__ __forceinline__ bool has_rows(unsigned number) {
    return agreed(descriptor_of(number).reaches(first_row(), args.walk.pack));
  }

  __device__ __forceinline__ void end_tile() {
    ++tile;
    flags &= ~kHasRowMaxes;
  }

  __device__ __forceinline__ TileDescriptor& descriptor_of(unsigned number) {
    return shared.tiles[number % T::kTileDescriptors];
  }
  __device__ __forceinline__ bool is_unsplit(unsigned number) {
    return agreed(descriptor_of(number).share.parts == 1);
  }
  __device__ __forceinline__ typename T::Queries& queries_of(unsigned number) {
    return shared.q[number % T::kQueryStages];
  }
  __device__ __forceinline__ void wait_for_queries(unsigned number) {
    tile::wait(&shared.q_ring.full[number % T::kQueryStages], number / T::kQueryStages % 2);
  }

  /// Announces that this consumer's part of the tile's result is stored, or staged for the store
  /// warp.
  __device__ __forceinline__ void release_result(unsigned number) {
    release(T::kConsumersStore ? shared.tile_ring.empty[number % T::kTileDescriptors]
                               : shared.results_staged[number % T::kQueryStages]);
  }

  /// Two consumers start a tile one after the other (ping-pong). If they started together, they
  /// would compute P at the same time and wait for MMAs at the same time throughout. The second
  /// consumer waits until the first has the scores of its first step. Even and odd tiles use
  /// different named barriers, because the first consumer may begin the next tile before the second
  /// begins this one (but no later tile).
  __device__ __forceinline__ void wait_for_turn() {
    if (agreed(consumer == 1)) tile::sync_at(turn_barrier(), 2 * kWarpgroup);
  }
  __device__ __forceinline__ void give_turn() {
    if (agreed(consumer == 0)) tile::arrive_at(turn_barrier(), 2 * kWarpgroup);
  }
  __device__ __forceinline__ unsigned turn_barrier() const { return T::kTurnBarrier + tile % 2; }
  __device__ __forceinline__ void sync_warpgroup() {
    tile::sync_at(T::kWarpgroupBarrier + consumer, kWarpgroup);
  }

  const Arguments& args;
  typename T::Shared& shared;
  int consumer;
  bool arrives;       // this lane arrives on behalf of its warp
  unsigned tile = 0;  // current tile, counted from 0
  Cursor at, next;    // current step of this KV split, and the next one (kLooksAhead)
  // A bitmask instead of bools, which some kernel rows have no registers for: the flags of the
  // current step; kKeysArrived, the next step's K was seen to be there; kHasRowMaxes, all rows of
  // the tile have a row max; kAgain, the step is computed again (FP8).
  static constexpr unsigned kKeysArrived = 2, kHasRowMaxes = 4, kAgain = 8;
  unsigned flags = 0;
};

}  // namespace tessera::cuda::sm90::attention
