#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/arrivals.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

namespace tessera::cuda::sm90::attention {

/// A consumer's way along tiles and steps: what notes say of them, what has come, what it gives
/// back and passes by, and whom it waits for.
template <class T>
class Follower {
 protected:
  using Cursor = tile::RingCursor<T::kStages>;

  // What ptxas takes a warp to agree on decides whether it keeps it together: in some rows what is
  // known of a step has to come from votes, else it is shared once more where two consumers ask.
  static constexpr bool kVotesOnNotes = T::kLeavesSooner;

  static constexpr int kTurnBarriers = 1 + T::kConsumers;  // the first of two; others are one's own

  __device__ __forceinline__ Follower(const Arguments& args, typename T::Shared& shared,
                                      int consumer)
      : args_(args), shared_(shared), consumer_(consumer), leads_(threadIdx.x % 32 == 0) {
    // Said where each has lists of its own, that all lanes are of one: else it takes registers.
    if constexpr (T::kOwnLists && !kEachLaneArrives) consumer_ = __shfl_sync(~0u, consumer, 0);
    next_.stage = team();
    advance();
  }

  /// The first of its 64 rows of a tile.
  __device__ __forceinline__ int first_row() const {
    return (consumer_ - team() * T::kTeamSize) * T::kRows;
  }
  __device__ __forceinline__ int team() const {
    return T::kTeams > 1 ? consumer_ / T::kTeamSize : 0;
  }
  __device__ __forceinline__ int line() const {
    return (consumer_ - team() * T::kTeamSize) / T::kConsumersALine;
  }

  /// To this team's next step.
  __device__ __forceinline__ void advance() {
    at_ = next_;
    next_.stage += T::kTeams;
    if (next_.stage >= T::kStages) {
      next_.stage -= T::kStages;
      next_.parity ^= 1;
    }
  }

  /// Read anew each time: neither it nor what follows from it is kept in a register.
  __device__ __forceinline__ static int thread_of_block() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }
  __device__ __forceinline__ static int thread() { return thread_of_block() % kWarpgroup; }

  /// Each warp for itself.
  __device__ __forceinline__ void give_back(std::uint64_t& empty) {
    arrive_as_warp(empty, leads_ ? 0 : 1);
  }

  /// Waits for the next keys. What their note says is read before there is anything to wait for.
  __device__ __forceinline__ void wait_for_keys() {
    if (!knows(kKeysCame)) tile::wait(&shared_.k_ring.full[at_.stage], at_.parity);
    known_ &= kBased;
    const typename T::Step& step = shared_.notes[at_.stage];
    if constexpr (kVotesOnNotes) {
      std::uint8_t masked = 0;
#pragma unroll
      for (const LineBits& lines : step.lines) masked |= lines.masked;
      if (tile::agreed(masked >> line() & 1)) known_ |= kMasked;
      if (tile::agreed(step.lines[0].leaves >> line() & 1)) known_ |= kLast;
      if (tile::agreed(step.lines[0].ends != 0)) known_ |= kEnds;
      if constexpr (T::kJoinsLater)
        if (tile::agreed(step.lines[0].needed >> line() & 1)) known_ |= kNeeded;
    } else {
      known_ |= __shfl_sync(~0u, step.known_to(line()), 0);
    }
  }

  /// Of the step whose keys came last, and the like.
  __device__ __forceinline__ bool knows(unsigned bit) const {
    const bool asks = !kVotesOnNotes && T::kConsumers == 2;
    return ((asks ? __shfl_sync(~0u, known_, 0) : known_) & bit) != 0;
  }
  /// Whether it is the last of its tile that this consumer needs.
  __device__ __forceinline__ bool is_last() const { return knows(kLast); }
  __device__ __forceinline__ bool is_mine() const { return knows(kNeeded); }

  /// Whether the keys of the step after this one have come, asked where there is other work to do.
  __device__ __forceinline__ void look_ahead() {
    if (tile::agreed(
            tile::ptx::mbarrier_test_wait_parity(&shared_.k_ring.full[next_.stage], next_.parity)))
      known_ |= kKeysCame;
  }

  /// What others need of a tile whose scores this consumer is done with. Its last values stay,
  /// which the ring has stages for.
  __device__ __forceinline__ void pass_rest() {
    while (!knows(kEnds)) {
      advance();
      wait_for_keys();
      pass();
    }
  }

  /// What others need of a tile before this consumer's rows see something of it.
  __device__ __forceinline__ void pass_first() {
    if constexpr (T::kJoinsLater) {
      while (!is_mine()) {
        pass();
        advance();
        wait_for_keys();
      }
    }
  }

  /// A tile in which this consumer has no rows.
  __device__ __forceinline__ void pass_tile() {
    do {
      wait_for_keys();
      pass();
      advance();
    } while (!knows(kEnds));
    leave_result(tile_);
    leave_tile();
  }

  /// Leaves a step to others. A stage of values is given back after it has been filled: sooner, it
  /// would count as given back by who still has the values before them.
  __device__ __forceinline__ void pass() {
    give_back(shared_.k_ring.empty[at_.stage]);
    tile::wait(&shared_.v_ring.full[at_.stage], at_.parity);
    give_back(shared_.v_ring.empty[at_.stage]);
  }

  /// Whether there is a tile of this number.
  __device__ __forceinline__ bool comes(unsigned tile) {
    wait_for_queries(tile);
    return !tile::agreed(note_of(tile).ends_all);
  }

  /// Whether any of this consumer's rows is in a tile that comes.
  __device__ __forceinline__ bool has_rows(unsigned tile) {
    return tile::agreed(note_of(tile).reaches(first_row(), args_.walk.pack_shift));
  }

  /// Goes on to a step that this consumer needs, whose keys have come. False, and behind the tile's
  /// last step, where there is none.
  __device__ __forceinline__ bool pass_by() {
    while (!is_mine()) {
      pass();
      advance();
      if (is_last()) return false;
      wait_for_keys();
    }
    return true;
  }

  __device__ __forceinline__ void leave_tile() {
    ++tile_;
    known_ &= ~kBased;
  }

  __device__ __forceinline__ TileNote& note_of(unsigned tile) {
    return shared_.tiles[tile % T::kTileNotes];
  }
  __device__ __forceinline__ bool is_whole(unsigned tile) {
    return tile::agreed(note_of(tile).share.parts == 1);
  }
  __device__ __forceinline__ typename T::Queries& queries_of(unsigned tile) {
    return shared_.q[tile % T::kQueryStages];
  }
  __device__ __forceinline__ void wait_for_queries(unsigned tile) {
    tile::wait(&shared_.q_ring.full[tile % T::kQueryStages], tile / T::kQueryStages % 2);
  }

  /// The tile's result is stored, or lies where the carrier takes it from.
  __device__ __forceinline__ void leave_result(unsigned tile) {
    give_back(T::kStoresItself ? shared_.tile_ring.empty[tile % T::kTileNotes]
                               : shared_.results[tile % T::kQueryStages]);
  }

  /// Two consumers that begin together would have their scores at one time, and both wait from then
  /// on: the second begins when the first has its first scores. Tiles have a barrier in turns: the
  /// first consumer may begin the next tile before the second begins this one, but no later tile.
  __device__ __forceinline__ void wait_for_turn() {
    if (tile::agreed(consumer_ == 1))
      asm volatile("barrier.cta.sync %0, 256;" ::"r"(turn_barrier()) : "memory");
  }
  __device__ __forceinline__ void give_turn() {
    if (tile::agreed(consumer_ == 0))
      asm volatile("barrier.cta.arrive %0, 256;" ::"r"(turn_barrier()) : "memory");
  }
  __device__ __forceinline__ unsigned turn_barrier() const { return kTurnBarriers + tile_ % 2; }

  /// All threads of this warpgroup.
  __device__ __forceinline__ void meet() {
    asm volatile("barrier.cta.sync %0, 128;" ::"r"(1 + consumer_) : "memory");
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int consumer_;
  bool leads_;         // its warp
  unsigned tile_ = 0;  // how many came before
  Cursor at_, next_;   // its team's step, and the one after it
  // Bits, as the registers of some rows have no room for flags: what its note says of a step; its
  // keys have come, asked a step ahead; all rows of the tile have seen a key.
  static constexpr unsigned kKeysCame = 2, kBased = 4;
  unsigned known_ = 0;
};

}  // namespace tessera::cuda::sm90::attention
