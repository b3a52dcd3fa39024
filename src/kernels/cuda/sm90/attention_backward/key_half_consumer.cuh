#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/score_consumer.cuh"

// A consumer warpgroup that has 64 keys of a thread block with all keys of a tile, and a part of
// dQ over all of them.
namespace tessera::cuda::sm90::attention_backward {

template <class T>
class KeyHalfConsumer : protected ScoreConsumer<T> {
  using Base = ScoreConsumer<T>;

 protected:
  using Base::args_, Base::shared_, Base::consumer_, Base::mma_;
  using Base::Base;
  using typename Base::StepFlags;

  __device__ __forceinline__ void store_gradients() {
    static_assert(T::kDim == T::kDimV);
    const KeyRows keys = this->key_rows();
    // dV, then dK in its registers, by the same code.
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const HeadRows& to = i == 0 ? args_.dv : args_.dk;
      if (to.data)
        store_gradient<T::kDim>(to, keys, this->thread(), mma_.dv, i == 0 ? 1.0f : args_.scale);
#pragma unroll
      for (int j = 0; j < T::kDim / 2; ++j) mma_.dv[j] = mma_.dk[j];
    }
  }

  __device__ __forceinline__ void release_queries(int stage) {
    arrive_as_warp(shared_.q_ring.empty[stage], this->lane());
    arrive_as_warp(shared_.g_ring.empty[stage], this->lane());
  }

  // Consumer number `consumer_` has that part of dQ, and the buffer of that number.
  __device__ __forceinline__ void wait_for_ds(unsigned step) {
    tile::wait(&shared_.ds_ring.full[step % T::kScoreGradients], step / T::kScoreGradients & 1);
  }
  __device__ __forceinline__ void issue_dq(unsigned step) {
    mma_.issue_dq(step % T::kScoreGradients, consumer_);
  }
  /// `thread`: read before, as reading it takes long.
  __device__ __forceinline__ void stage_dq(unsigned step, int thread) {
    tile::settle(mma_.dq);
    arrive_as_warp(shared_.ds_ring.empty[step % T::kScoreGradients], thread % kLanes);
    Base::stage_dq(consumer_, step, thread);
  }
  __device__ __forceinline__ void announce_dq(unsigned step) { Base::announce_dq(consumer_, step); }

  /// The consumers take turns in issuing MMAs.
  __device__ __forceinline__ void take_turn() {
    tile::sync_at(T::kTurnBarrier + consumer_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    tile::arrive_at(T::kTurnBarrier + 1 - consumer_, 2 * kWarpgroup);
  }

  /// Waits for a step's Q and descriptor.
  __device__ __forceinline__ StepFlags await_step(unsigned step) {
    this->wait_for_queries(place_of(step));
    return Base::flags_of(this->descriptor_of(step));
  }
  __device__ __forceinline__ void issue_scores(unsigned step, const StepFlags& flags) {
    this->clear_queries(this->descriptor_of(step), place_of(step), flags);
    mma_.issue_scores(stage_of(step));
  }
  __device__ __forceinline__ void issue_score_gradients(unsigned step, const StepFlags& flags) {
    this->wait_for_gradients(place_of(step));
    this->clear_gradients(this->descriptor_of(step), place_of(step), flags);
    mma_.issue_score_gradients(stage_of(step));
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
