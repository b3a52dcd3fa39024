#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/key_half_consumer.cuh"

// The consumer warpgroups of thread blocks with all keys of a tile. Each has 64 keys: it computes P
// and dS of its keys, transposed, adds to its dV and dK, and multiplies half of the columns of dQ
// over all keys of the tile.
namespace tessera::cuda::sm90::attention_backward {

template <class T>
class Consumer : KeyHalfConsumer<T> {
  using Base = KeyHalfConsumer<T>;
  using Base::args_, Base::shared_, Base::consumer_, Base::mma_;
  using Base::await_step, Base::issue_scores, Base::issue_score_gradients;
  using typename Base::StepFlags;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    this->walk_tiles([&](unsigned first, unsigned end) { walk(first, end); },
                     [&] { this->store_gradients(); });
  }

 private:
  __device__ __forceinline__ void walk(unsigned first, unsigned end) {
    if (consumer_ == 1) this->pass_turn();
    begin(first);
    if (end - first > 1) turn<false>(first + 1);
#pragma unroll 1
    for (unsigned step = first + 2; step < end; ++step) turn<true>(step);
    finish(end, end - first > 1);
  }

  /// The scores of the first step.
  __device__ __forceinline__ void begin(unsigned first) {
    const StepFlags flags = await_step(first);
    this->take_turn();
    issue_scores(first, flags);
    issue_score_gradients(first, flags);
    this->pass_turn();
    finish_scores(first, flags);
  }

  /// The products of step `step` - 1, then the scores of this one. dQ lags one step more, so that
  /// the consumers need not walk in step: each has time until its next turn to write its half of
  /// dS. No MMA is in flight from one call to the next, and at most 192 accumulators and operands
  /// are live: otherwise ptxas serialises the MMAs.
  template <bool kHasDq>
  __device__ __forceinline__ void turn(unsigned step) {
    const StepFlags flags = await_step(step);
    const int thread = this->thread();
    if constexpr (kHasDq) this->wait_for_ds(step - 2);
    this->take_turn();
    if constexpr (kHasDq) this->issue_dq(step - 2);
    mma_.issue_dv(this->stage_of(step - 1));
    mma_.issue_dk(this->stage_of(step - 1));
    if constexpr (kHasDq) {
      tile::mma_wait<2>();
      this->stage_dq(step - 2, thread);
    }
    issue_scores(step, flags);
    tile::mma_wait<1>();
    this->release_queries(this->stage_of(step - 1));
    issue_score_gradients(step, flags);
    this->pass_turn();
    if constexpr (kHasDq) this->announce_dq(step - 2);  // its fence takes long: not within the turn
    finish_scores(step, flags);
  }

  /// The products of the last step before step `end`, and dQ of the last two, or of one.
  __device__ __forceinline__ void finish(unsigned end, bool of_two) {
    if (consumer_ == 0) this->take_turn();  // the other consumer's last one was passed to this one
    if (of_two) {
      this->wait_for_ds(end - 2);
      this->issue_dq(end - 2);
      tile::mma_wait<0>();
      this->stage_dq(end - 2, this->thread());
      this->announce_dq(end - 2);
    }
    mma_.issue_dv(this->stage_of(end - 1));
    mma_.issue_dk(this->stage_of(end - 1));
    this->wait_for_ds(end - 1);
    this->issue_dq(end - 1);
    tile::mma_wait<0>();
    this->release_queries(this->stage_of(end - 1));
    this->stage_dq(end - 1, this->thread());
    this->announce_dq(end - 1);
    tile::settle(mma_.dv);
    tile::settle(mma_.dk);
  }

  /// P and dS of a step whose scores are being multiplied.
  __device__ __forceinline__ void finish_scores(unsigned step, const StepFlags& flags) {
    const int stage = this->stage_of(step);
    const int quad_lane = this->quad_lane();
    const auto lse = this->statistics(shared_.lse[stage], quad_lane);
    tile::mma_wait<1>();
    this->compute_p(this->descriptor_of(step), flags, lse);
    const auto delta = this->statistics(shared_.delta[stage], quad_lane);
    tile::mma_wait<0>();
    this->template pack_ds<true>(delta, stage);
    this->write_ds(step);
  }
};

}  // namespace tessera::cuda::sm90::attention_backward
