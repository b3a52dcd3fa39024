#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/score_consumer.cuh"

// The consumer warpgroups of thread blocks with all keys of a tile. Each has 64 keys: it computes P
// and dS of its keys, transposed, adds to its dV and dK, and multiplies half of the columns of dQ
// over all keys of the tile.
namespace tessera::cuda::sm90::attention_backward {

template <class T>
class Consumer : ScoreConsumer<T> {
  using Base = ScoreConsumer<T>;
  using Base::args_, Base::shared_, Base::consumer_, Base::mma_;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    this->walk_tiles([&](unsigned first, unsigned end) { walk(first, end); },
                     [&] {
                       const KeyRows keys = this->key_rows();
                       if (args_.dk.data)
                         store_gradient<T::kDim>(args_.dk, keys, this->thread(), mma_.dk,
                                                 args_.scale);
                       if (args_.dv.data)
                         store_gradient<T::kDimV>(args_.dv, keys, this->thread(), mma_.dv, 1.0f);
                     });
  }

 private:
  __device__ __forceinline__ void walk(unsigned first, unsigned end) {
    if (consumer_ == 1) pass_turn();
    begin(first);
    if (end - first > 1) turn<false>(first + 1);
#pragma unroll 1
    for (unsigned step = first + 2; step < end; ++step) turn<true>(step);
    finish(end, end - first > 1);
  }

  /// The scores of the first step.
  __device__ __forceinline__ void begin(unsigned first) {
    take_turn();
    this->wait_for_queries(this->descriptor_of(first), place_of(first));
    mma_.issue_scores(stage_of(first));
    this->wait_for_gradients(this->descriptor_of(first), place_of(first));
    mma_.issue_score_gradients(stage_of(first));
    pass_turn();
    finish_scores(first);
  }

  /// The products of step `step` - 1, then the scores of this one. dQ lags one step more, so that
  /// the consumers need not walk in step: each has time until its next turn to write its half of
  /// dS. No MMA is in flight from one call to the next, and at most 192 accumulators and operands
  /// are live: otherwise ptxas serialises the MMAs.
  template <bool kHasDq>
  __device__ __forceinline__ void turn(unsigned step) {
    if constexpr (kHasDq) wait_for_ds(step - 2);
    take_turn();
    if constexpr (kHasDq) issue_dq(step - 2);
    mma_.issue_dv(stage_of(step - 1));
    mma_.issue_dk(stage_of(step - 1));
    if constexpr (kHasDq) {
      tile::mma_wait<2>();
      stage_dq(step - 2);
    }
    this->wait_for_queries(this->descriptor_of(step), place_of(step));
    mma_.issue_scores(stage_of(step));
    tile::mma_wait<1>();
    release_queries(stage_of(step - 1));
    this->wait_for_gradients(this->descriptor_of(step), place_of(step));
    mma_.issue_score_gradients(stage_of(step));
    pass_turn();
    if constexpr (kHasDq) announce_dq(step - 2);  // its fence takes long: not within the turn
    finish_scores(step);
  }

  /// The products of the last step before step `end`, and dQ of the last two, or of one.
  __device__ __forceinline__ void finish(unsigned end, bool of_two) {
    if (consumer_ == 0) take_turn();  // the other consumer's last one was passed to this one
    if (of_two) {
      wait_for_ds(end - 2);
      issue_dq(end - 2);
      tile::mma_wait<0>();
      stage_dq(end - 2);
      announce_dq(end - 2);
    }
    mma_.issue_dv(stage_of(end - 1));
    mma_.issue_dk(stage_of(end - 1));
    wait_for_ds(end - 1);
    issue_dq(end - 1);
    tile::mma_wait<0>();
    release_queries(stage_of(end - 1));
    stage_dq(end - 1);
    announce_dq(end - 1);
    tile::settle(mma_.dv);
    tile::settle(mma_.dk);
  }
  __device__ __forceinline__ void release_queries(int stage) {
    arrive_as_warp(shared_.q_ring.empty[stage], this->lane());
    arrive_as_warp(shared_.g_ring.empty[stage], this->lane());
  }

  /// P and dS of a step whose scores are being multiplied.
  __device__ __forceinline__ void finish_scores(unsigned step) {
    tile::mma_wait<1>();
    const int stage = stage_of(step);
    this->compute_p(this->descriptor_of(step), stage);
    tile::mma_wait<0>();
    this->template pack_ds<true>(stage, stage);
    this->write_ds(step);
  }

  // Consumer number `consumer_` has that part of dQ, and the buffer of that number.
  __device__ __forceinline__ void wait_for_ds(unsigned step) {
    tile::wait(&shared_.ds_ring.full[step % T::kScoreGradients], step / T::kScoreGradients & 1);
  }
  __device__ __forceinline__ void issue_dq(unsigned step) {
    mma_.issue_dq(step % T::kScoreGradients, consumer_);
  }
  __device__ __forceinline__ void stage_dq(unsigned step) {
    tile::settle(mma_.dq);
    arrive_as_warp(shared_.ds_ring.empty[step % T::kScoreGradients], this->lane());
    Base::stage_dq(consumer_, step);
  }
  __device__ __forceinline__ void announce_dq(unsigned step) { Base::announce_dq(consumer_, step); }

  /// The consumers take turns in issuing MMAs.
  __device__ __forceinline__ void take_turn() {
    tile::sync_at(T::kTurnBarrier + consumer_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    tile::arrive_at(T::kTurnBarrier + 1 - consumer_, 2 * kWarpgroup);
  }

  /// Where a step's Q and dO are: steps are counted through all tiles.
  __device__ __forceinline__ static int stage_of(unsigned step) {
    return static_cast<int>(step % T::kStages);
  }
  __device__ __forceinline__ static tile::RingCursor<T::kStages> place_of(unsigned step) {
    return {stage_of(step), step / T::kStages & 1};
  }
};

}  // namespace tessera::cuda::sm90::attention_backward
