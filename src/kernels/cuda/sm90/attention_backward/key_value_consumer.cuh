#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/key_half_consumer.cuh"

// The consumer warpgroups of thread blocks with all keys of a tile, where another kernel computes
// dQ. Each has 64 keys: it computes P and dS of its keys, transposed, and adds to its dV and dK.
namespace tessera::cuda::sm90::attention_backward {

template <class T>
class KeyValueConsumer : KeyHalfConsumer<T> {
  using Base = KeyHalfConsumer<T>;
  using Base::consumer_, Base::mma_;
  using typename Base::StepFlags;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    this->walk_tiles(
        [&](unsigned first, unsigned end) {
          T::kOwnLists ? walk_own_steps(first) : walk_in_turns(first, end);
        },
        [&] { this->store_gradients(); });
  }

 private:
  __device__ __forceinline__ void walk_in_turns(unsigned first, unsigned end) {
    if (consumer_ == 1) this->pass_turn();
    turn<false>(first);
#pragma unroll 1
    for (unsigned step = first + 1; step < end; ++step) turn<true>(step);
    if (consumer_ == 0) this->take_turn();  // the other consumer's last one was passed to this one
    issue_gradients(end - 1);
    tile::mma_wait<0>();
    this->release_queries(this->stage_of(end - 1));
    tile::settle(mma_.dv);
    tile::settle(mma_.dk);
  }

  /// With lists of 64 rows: the steps in which keys of this consumer are seen. Each consumer has
  /// steps of its own, so they take no turns. No MMA is in flight from one turn of the loop to the
  /// next.
  __device__ __forceinline__ void walk_own_steps(unsigned step) {
    if (!finds_own_step(step)) return;
    StepFlags flags = this->await_step(step);
    this->issue_scores(step, flags);
    finish_scores(step, flags);
#pragma unroll 1
    while (true) {
      const unsigned before = step++;
      issue_gradients(before);
      if (!ends_at(step) && !leaves_out(step)) {
        flags = this->await_step(step);
        this->issue_scores(step, flags);
        tile::mma_wait<1>();
        this->release_queries(this->stage_of(before));
      } else {
        // The steps that are left out may be as many as there are stages.
        tile::mma_wait<0>();
        this->release_queries(this->stage_of(before));
        if (!finds_own_step(step)) break;
        flags = this->await_step(step);
        this->issue_scores(step, flags);
      }
      finish_scores(step, flags);
    }
    tile::settle(mma_.dv);
    tile::settle(mma_.dk);
  }

  /// Moves to the first step from `step` on that this consumer does not leave out, if there is one.
  __device__ __forceinline__ bool finds_own_step(unsigned& step) {
    for (; !ends_at(step); ++step) {
      if (!leaves_out(step)) return true;
      const auto at = this->place_of(step);
      tile::wait(&this->shared_.g_ring.full[at.stage], at.parity);
      this->release_queries(at.stage);
    }
    return false;
  }
  /// Read at each use, so that it occupies no register.
  __device__ __forceinline__ bool ends_at(unsigned step) const {
    return agreed(step == this->taken().end_step);
  }
  /// Whether lists name no block of this consumer's keys in a step.
  __device__ __forceinline__ bool leaves_out(unsigned step) const {
    const auto at = this->place_of(step);
    tile::wait(&this->shared_.q_ring.full[at.stage], at.parity);
    return agreed(this->descriptor_of(step)->bits[consumer_] == planning::kNoneSeen);
  }

  /// The products with P and dS of step `step` - 1, then the scores of this one. No MMA is in
  /// flight from one call to the next.
  template <bool kHasGradients>
  __device__ __forceinline__ void turn(unsigned step) {
    const StepFlags flags = this->await_step(step);
    this->take_turn();
    if constexpr (kHasGradients) issue_gradients(step - 1);
    this->issue_scores(step, flags);
    if constexpr (kHasGradients) {
      tile::mma_wait<1>();
      this->release_queries(this->stage_of(step - 1));
    }
    this->issue_score_gradients(step, flags);
    this->pass_turn();
    compute_gradients(step, flags);
  }

  __device__ __forceinline__ void finish_scores(unsigned step, const StepFlags& flags) {
    this->issue_score_gradients(step, flags);
    compute_gradients(step, flags);
  }

  /// P and dS of a step whose scores are being multiplied.
  __device__ __forceinline__ void compute_gradients(unsigned step, const StepFlags& flags) {
    const int stage = this->stage_of(step);
    const int quad_lane = this->quad_lane();
    const auto lse = this->statistics(this->shared_.lse[stage], quad_lane);
    tile::mma_wait<1>();
    this->compute_p(this->descriptor_of(step), flags, lse);
    this->pack_p();
    const auto delta = this->statistics(this->shared_.delta[stage], quad_lane);
    tile::mma_wait<0>();
    this->template pack_ds<false>(delta, stage);
  }

  __device__ __forceinline__ void issue_gradients(unsigned step) {
    mma_.issue_dv(this->stage_of(step));
    mma_.issue_dk(this->stage_of(step));
  }
};

}  // namespace tessera::cuda::sm90::attention_backward
