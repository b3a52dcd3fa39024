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
    const int steps = __shfl_sync(kAllLanes, shared_.num_steps, 0);
#pragma unroll
    for (float& sum : mma_.dk) sum = 0;
#pragma unroll
    for (float& sum : mma_.dv) sum = 0;
    if (steps > 0) walk(steps);
    const KeyRows keys = this->key_rows();
    if (args_.dk.data)
      store_gradient<T::kDim>(args_.dk, keys, this->thread(), mma_.dk, args_.scale);
    if (args_.dv.data) store_gradient<T::kDimV>(args_.dv, keys, this->thread(), mma_.dv, 1.0f);
  }

 private:
  __device__ __forceinline__ void walk(int steps) {
    tile::wait(&shared_.kv_full, 0);
    this->clear_hidden_keys();
    if (consumer_ == 1) pass_turn();
    begin();
    if (steps > 1) turn<false>(1);
#pragma unroll 1
    for (int step = 2; step < steps; ++step) turn<true>(step);
    end(steps);
  }

  /// The scores of the first step.
  __device__ __forceinline__ void begin() {
    take_turn();
    this->wait_for_queries(this->descriptor_of(0), at_);
    mma_.issue_scores(at_.stage);
    this->wait_for_gradients(this->descriptor_of(0), at_);
    mma_.issue_score_gradients(at_.stage);
    pass_turn();
    finish_scores(0);
  }

  /// The products of step `step` - 1, then the scores of this one. dQ lags one step more, so that
  /// the consumers need not walk in step: each has time until its next turn to write its half of
  /// dS. No MMA is in flight from one call to the next, and at most 192 accumulators and operands
  /// are live: otherwise ptxas serialises the MMAs.
  template <bool kHasDq>
  __device__ __forceinline__ void turn(int step) {
    take_turn();
    if constexpr (kHasDq) issue_dq(step - 2);
    mma_.issue_dv(at_.stage);
    mma_.issue_dk(at_.stage);
    if constexpr (kHasDq) {
      tile::mma_wait<2>();
      stage_dq(step - 2);
    }
    const int before = at_.stage;
    at_.advance();
    this->wait_for_queries(this->descriptor_of(step), at_);
    mma_.issue_scores(at_.stage);
    tile::mma_wait<1>();
    arrive_as_warp(shared_.q_ring.empty[before], this->lane());
    arrive_as_warp(shared_.g_ring.empty[before], this->lane());
    this->wait_for_gradients(this->descriptor_of(step), at_);
    mma_.issue_score_gradients(at_.stage);
    pass_turn();
    if constexpr (kHasDq) announce_dq(step - 2);  // its fence takes long: not within the turn
    finish_scores(step);
  }

  /// The products of the last step, and dQ of the last two.
  __device__ __forceinline__ void end(int steps) {
    if (consumer_ == 0) take_turn();  // the other consumer's last one was passed to this one
    if (steps > 1) {
      issue_dq(steps - 2);
      tile::mma_wait<0>();
      stage_dq(steps - 2);
      announce_dq(steps - 2);
    }
    mma_.issue_dv(at_.stage);
    mma_.issue_dk(at_.stage);
    issue_dq(steps - 1);
    tile::mma_wait<0>();
    stage_dq(steps - 1);
    announce_dq(steps - 1);
    tile::settle(mma_.dv);
    tile::settle(mma_.dk);
  }

  /// P and dS of a step whose scores are being multiplied.
  __device__ __forceinline__ void finish_scores(int step) {
    tile::mma_wait<1>();
    this->compute_p(this->descriptor_of(step), at_.stage);
    tile::mma_wait<0>();
    this->template pack_ds<true>(at_.stage, at_.stage);
    this->write_ds(step);
  }

  // Consumer number `consumer_` has that part of dQ, and the buffer of that number.
  __device__ __forceinline__ void issue_dq(int step) {
    const int buffer = step % T::kScoreGradients;
    tile::wait(&shared_.ds_ring.full[buffer], step / T::kScoreGradients & 1);
    mma_.issue_dq(buffer, consumer_);
  }
  __device__ __forceinline__ void stage_dq(int step) {
    tile::settle(mma_.dq);
    arrive_as_warp(shared_.ds_ring.empty[step % T::kScoreGradients], this->lane());
    Base::stage_dq(consumer_, step);
  }
  __device__ __forceinline__ void announce_dq(int step) { Base::announce_dq(consumer_, step); }

  /// The consumers take turns in issuing MMAs.
  __device__ __forceinline__ void take_turn() {
    tile::sync_at(T::kTurnBarrier + consumer_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    tile::arrive_at(T::kTurnBarrier + 1 - consumer_, 2 * kWarpgroup);
  }

  tile::RingCursor<T::kStages> at_;
};

}  // namespace tessera::cuda::sm90::attention_backward
