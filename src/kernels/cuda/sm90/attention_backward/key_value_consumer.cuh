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

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    this->walk_tiles([&](unsigned first, unsigned end) { walk(first, end); },
                     [&] { this->store_gradients(); });
  }

 private:
  __device__ __forceinline__ void walk(unsigned first, unsigned end) {
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

  /// The products with P and dS of step `step` - 1, then the scores of this one. No MMA is in
  /// flight from one call to the next.
  template <bool kHasGradients>
  __device__ __forceinline__ void turn(unsigned step) {
    this->take_turn();
    if constexpr (kHasGradients) issue_gradients(step - 1);
    this->wait_for_queries(this->descriptor_of(step), this->place_of(step));
    mma_.issue_scores(this->stage_of(step));
    if constexpr (kHasGradients) {
      tile::mma_wait<1>();
      this->release_queries(this->stage_of(step - 1));
    }
    this->wait_for_gradients(this->descriptor_of(step), this->place_of(step));
    mma_.issue_score_gradients(this->stage_of(step));
    this->pass_turn();
    finish_scores(step);
  }

  /// P and dS of a step whose scores are being multiplied.
  __device__ __forceinline__ void finish_scores(unsigned step) {
    tile::mma_wait<1>();
    const int stage = this->stage_of(step);
    this->compute_p(this->descriptor_of(step), stage);
    this->pack_p();
    tile::mma_wait<0>();
    this->template pack_ds<false>(stage, stage);
  }

  __device__ __forceinline__ void issue_gradients(unsigned step) {
    mma_.issue_dv(this->stage_of(step));
    mma_.issue_dk(this->stage_of(step));
  }
};

}  // namespace tessera::cuda::sm90::attention_backward
