#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/score_consumer.cuh"

// The consumer warpgroups of thread blocks with half of a key tile, for wide heads: the registers
// of one warpgroup have room for dV or for dK. Both compute P, which costs less than to exchange
// it.
namespace tessera::cuda::sm90::attention_backward {

/// Consumer 0: P, dV and, from the other consumer's dS, dQ.
template <class T>
class ValueConsumer : ScoreConsumer<T> {
  using Base = ScoreConsumer<T>;
  using Base::args_, Base::shared_, Base::mma_;

 public:
  __device__ __forceinline__ ValueConsumer(const Arguments& args, typename T::Shared& shared)
      : Base(args, shared, 0) {}

  __device__ __forceinline__ void run() {
    this->walk_tiles([&](unsigned first, unsigned end) { walk(first, end); },
                     [&] {
                       if (args_.dv.data)
                         store_gradient<T::kDimV>(args_.dv, this->key_rows(), this->thread(),
                                                  mma_.dv, 1.0f);
                     });
  }

 private:
  __device__ __forceinline__ void walk(unsigned first, unsigned end) {
    this->wait_for_queries(this->descriptor_of(first), q_at_);
    mma_.issue_scores(q_at_.stage);
    tile::mma_wait<0>();
    finish_scores(first);
#pragma unroll 1
    for (unsigned step = first + 1; step < end; ++step) {
      this->wait_for_gradients(this->descriptor_of(step - 1), g_at_);
      mma_.issue_dv(g_at_.stage);
      this->wait_for_queries(this->descriptor_of(step), q_at_);
      mma_.issue_scores(q_at_.stage);
      tile::mma_wait<1>();
      release_gradients();
      send_dq(step - 1);
      finish_scores(step);
    }
    this->wait_for_gradients(this->descriptor_of(end - 1), g_at_);
    mma_.issue_dv(g_at_.stage);
    tile::mma_wait<0>();
    release_gradients();
    send_dq(end - 1);
    tile::settle(mma_.dv);
  }

  /// P of a step whose scores have been multiplied.
  __device__ __forceinline__ void finish_scores(unsigned step) {
    this->compute_p(this->descriptor_of(step), q_at_.stage);
    this->pack_p();
    arrive_as_warp(shared_.q_ring.empty[q_at_.stage], this->lane());
    q_at_.advance();
  }
  __device__ __forceinline__ void release_gradients() {
    arrive_as_warp(shared_.g_ring.empty[g_at_.stage], this->lane());
    g_at_.advance();
  }

  /// dQ of a step, part by part. Scores of the next step may be in flight before.
  __device__ __forceinline__ void send_dq(unsigned step) {
    const unsigned of_ds = step % T::kScoreGradients;
    tile::wait(&shared_.ds_ring.full[of_ds], step / T::kScoreGradients & 1);
#pragma unroll 1
    for (int part = 0; part < T::kParts; ++part) {
      const unsigned number = step * T::kParts + static_cast<unsigned>(part);
      mma_.issue_dq(of_ds, part);
      tile::mma_wait<0>();
      if (part == T::kParts - 1) arrive_as_warp(shared_.ds_ring.empty[of_ds], this->lane());
      this->stage_dq(number % T::kDqBuffers, number / T::kDqBuffers);
      this->announce_dq(number % T::kDqBuffers, number / T::kDqBuffers);
    }
  }

  typename Base::QueryCursor q_at_;
  typename Base::GradientCursor g_at_;
};

/// Consumer 1: P, dS and dK.
template <class T>
class KeyConsumer : ScoreConsumer<T> {
  using Base = ScoreConsumer<T>;
  using Base::args_, Base::shared_, Base::mma_;

 public:
  __device__ __forceinline__ KeyConsumer(const Arguments& args, typename T::Shared& shared)
      : Base(args, shared, 1) {}

  __device__ __forceinline__ void run() {
    this->walk_tiles([&](unsigned first, unsigned end) { walk(first, end); },
                     [&] {
                       if (args_.dk.data)
                         store_gradient<T::kDim>(args_.dk, this->key_rows(), this->thread(),
                                                 mma_.dk, args_.scale);
                     });
  }

 private:
  __device__ __forceinline__ void walk(unsigned first, unsigned end) {
    this->wait_for_queries(this->descriptor_of(first), q_at_);
    mma_.issue_scores(q_at_.stage);
    finish_step(first);
#pragma unroll 1
    for (unsigned step = first + 1; step < end; ++step) {
      mma_.issue_dk(q_at_.stage);
      const int before = q_at_.stage;
      q_at_.advance();
      this->wait_for_queries(this->descriptor_of(step), q_at_);
      mma_.issue_scores(q_at_.stage);
      tile::mma_wait<1>();
      arrive_as_warp(shared_.q_ring.empty[before], this->lane());
      finish_step(step);
    }
    mma_.issue_dk(q_at_.stage);
    tile::mma_wait<0>();
    arrive_as_warp(shared_.q_ring.empty[q_at_.stage], this->lane());
    q_at_.advance();
    tile::settle(mma_.dk);
  }

  /// dP, P and dS of a step whose scores are being multiplied.
  __device__ __forceinline__ void finish_step(unsigned step) {
    this->wait_for_gradients(this->descriptor_of(step), g_at_);
    mma_.issue_score_gradients(g_at_.stage);
    tile::mma_wait<1>();
    this->compute_p(this->descriptor_of(step), q_at_.stage);
    tile::mma_wait<0>();
    this->template pack_ds<false>(q_at_.stage, g_at_.stage);
    arrive_as_warp(shared_.g_ring.empty[g_at_.stage], this->lane());
    g_at_.advance();
    this->write_ds(step);
  }

  typename Base::QueryCursor q_at_;
  typename Base::GradientCursor g_at_;
};

}  // namespace tessera::cuda::sm90::attention_backward
