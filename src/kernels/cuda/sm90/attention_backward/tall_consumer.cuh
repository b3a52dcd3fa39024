#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/key_half_consumer.cuh"

// The consumer warpgroups of steps of two blocks of queries. Each has 64 keys, as with one block,
// and dQ of one of the blocks, over all keys of the tile.
namespace tessera::cuda::sm90::attention_backward {

/// Scores of two blocks leave no registers for other operands, so a step has two turns: its scores,
/// then its products with P and dS, and dQ of the step before.
template <class T>
class TallConsumer : KeyHalfConsumer<T> {
  using Base = KeyHalfConsumer<T>;
  using Base::args_, Base::shared_, Base::consumer_, Base::mma_;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    this->walk_tiles([&](unsigned first, unsigned end) { walk(first, end); },
                     [&] { this->store_gradients(); });
  }

 private:
  __device__ __forceinline__ void walk(unsigned first, unsigned end) {
    if (consumer_ == 1) this->pass_turn();
    scores(first);
    products<false>(first);
#pragma unroll 1
    for (unsigned step = first + 1; step < end; ++step) {
      scores(step);
      products<true>(step);
    }
    if (consumer_ == 0) this->take_turn();  // the other consumer's last one was passed to this one
    this->wait_for_ds(end - 1);
    this->issue_dq(end - 1);
    tile::mma_wait<0>();
    this->stage_dq(end - 1, this->thread());
    this->announce_dq(end - 1);
    tile::settle(mma_.dv);
    tile::settle(mma_.dk);
  }

  /// P and dS of a step.
  __device__ __forceinline__ void scores(unsigned step) {
    const int stage = this->stage_of(step);
    const auto flags = this->await_step(step);
    this->take_turn();
    this->issue_scores(step, flags);
    this->issue_score_gradients(step, flags);
    this->pass_turn();
    const auto lse = this->statistics(shared_.lse[stage], this->quad_lane());
    tile::mma_wait<1>();
    this->compute_p(this->descriptor_of(step), flags, lse);
    const auto delta = this->statistics(shared_.delta[stage], this->quad_lane());
    tile::mma_wait<0>();
    this->template pack_ds<true>(delta, stage);
    this->write_ds(step);
  }

  /// dV and dK of a step, dQ of the one before it.
  template <bool kHasDq>
  __device__ __forceinline__ void products(unsigned step) {
    if constexpr (kHasDq) this->wait_for_ds(step - 1);
    this->take_turn();
    if constexpr (kHasDq) this->issue_dq(step - 1);
    mma_.issue_dv(this->stage_of(step));
    mma_.issue_dk(this->stage_of(step));
    this->pass_turn();
    if constexpr (kHasDq) {
      tile::mma_wait<2>();
      this->stage_dq(step - 1, this->thread());
      this->announce_dq(step - 1);
    }
    tile::mma_wait<0>();
    this->release_queries(this->stage_of(step));
  }
};

}  // namespace tessera::cuda::sm90::attention_backward
