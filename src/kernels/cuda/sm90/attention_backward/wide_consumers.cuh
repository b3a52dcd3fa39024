#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/score_consumer.cuh"

// The consumer warpgroups of thread blocks with half of a key tile, for wide heads, where another
// kernel computes dQ: the registers of one warpgroup have room for dV or for dK. The first computes
// P and hands it to the second through shared memory, in fp32.
namespace tessera::cuda::sm90::attention_backward {

/// P of a step, in shared memory. Both consumers hold the same pairs of keys and queries in the
/// same registers, so thread i writes what thread i reads.
template <class T>
class HandedP {
 public:
  __device__ __forceinline__ HandedP(typename T::Shared& shared, unsigned step)
      : shared_(shared), buffer_(step % T::kPBuffers), parity_(step / T::kPBuffers & 1) {}

  __device__ __forceinline__ void put(const float (&p)[T::kM / 2], int thread) {
    tile::wait(&shared_.p_ring.empty[buffer_], parity_ ^ 1);
#pragma unroll
    for (int j = 0; j < T::kM / 8; ++j)
      shared_.p[buffer_][j][thread] =
          make_float4(p[j * 4], p[j * 4 + 1], p[j * 4 + 2], p[j * 4 + 3]);
    arrive_as_warp(shared_.p_ring.full[buffer_], thread % kLanes);
  }
  __device__ __forceinline__ void take(float (&p)[T::kM / 2], int thread) {
    tile::wait(&shared_.p_ring.full[buffer_], parity_);
#pragma unroll
    for (int j = 0; j < T::kM / 8; ++j) {
      const float4 of = shared_.p[buffer_][j][thread];
      p[j * 4] = of.x, p[j * 4 + 1] = of.y, p[j * 4 + 2] = of.z, p[j * 4 + 3] = of.w;
    }
    arrive_as_warp(shared_.p_ring.empty[buffer_], thread % kLanes);
  }

 private:
  typename T::Shared& shared_;
  unsigned buffer_, parity_;
};

/// Consumer 0: S, P and dV.
template <class T>
class WideValueConsumer : ScoreConsumer<T> {
  using Base = ScoreConsumer<T>;
  using Base::args_, Base::shared_, Base::mma_;
  using typename Base::StepFlags;

 public:
  __device__ __forceinline__ WideValueConsumer(const Arguments& args, typename T::Shared& shared)
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
  /// dV of a step is issued before S of the next one, so that its stage of dO is free early.
  __device__ __forceinline__ void walk(unsigned first, unsigned end) {
    StepFlags flags = issue_scores(first);
    finish_scores(first, flags);
#pragma unroll 1
    for (unsigned step = first + 1; step < end; ++step) {
      issue_dv(step - 1);
      flags = issue_scores(step);
      tile::mma_wait<1>();
      release_gradients();
      finish_scores(step, flags);
    }
    issue_dv(end - 1);
    tile::mma_wait<0>();
    release_gradients();
    tile::settle(mma_.dv);
  }

  __device__ __forceinline__ StepFlags issue_scores(unsigned step) {
    this->wait_for_queries(q_at_);
    const StepFlags flags = this->flags_of(this->descriptor_of(step));
    this->clear_queries(this->descriptor_of(step), q_at_, flags);
    mma_.issue_scores(q_at_.stage);
    return flags;
  }
  __device__ __forceinline__ void issue_dv(unsigned step) {
    this->wait_for_gradients(g_at_);
    const auto* const descriptor = this->descriptor_of(step);
    this->clear_gradients(descriptor, g_at_, this->flags_of(descriptor));
    mma_.issue_dv(g_at_.stage);
  }
  __device__ __forceinline__ void finish_scores(unsigned step, const StepFlags& flags) {
    const auto lse = this->statistics(shared_.lse[q_at_.stage], this->quad_lane());
    tile::mma_wait<0>();
    this->compute_p(this->descriptor_of(step), flags, lse);
    arrive_as_warp(shared_.q_ring.empty[q_at_.stage], this->lane());
    q_at_.advance();
    HandedP<T>(shared_, step).put(mma_.s, this->thread());
    this->pack_p();
  }
  __device__ __forceinline__ void release_gradients() {
    arrive_as_warp(shared_.g_ring.empty[g_at_.stage], this->lane());
    g_at_.advance();
  }

  typename Base::StageCursor q_at_;
  typename Base::StageCursor g_at_;
};

/// Consumer 1: dP, dS and dK.
template <class T>
class WideKeyConsumer : ScoreConsumer<T> {
  using Base = ScoreConsumer<T>;
  using Base::args_, Base::shared_, Base::mma_;

 public:
  __device__ __forceinline__ WideKeyConsumer(const Arguments& args, typename T::Shared& shared)
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
    issue_score_gradients(first);
    finish_score_gradients(first);
#pragma unroll 1
    for (unsigned step = first + 1; step < end; ++step) {
      mma_.issue_dk(q_at_.stage);
      issue_score_gradients(step);
      tile::mma_wait<1>();
      release_queries();
      finish_score_gradients(step);
    }
    mma_.issue_dk(q_at_.stage);
    tile::mma_wait<0>();
    release_queries();
    tile::settle(mma_.dk);
  }

  __device__ __forceinline__ void issue_score_gradients(unsigned step) {
    this->wait_for_gradients(g_at_);
    const auto* const descriptor = this->descriptor_of(step);
    this->clear_gradients(descriptor, g_at_, this->flags_of(descriptor));
    mma_.issue_score_gradients(g_at_.stage);
  }
  /// dS of a step. Q has arrived long before: P has been computed from it.
  __device__ __forceinline__ void finish_score_gradients(unsigned step) {
    this->wait_for_queries(q_at_);
    const auto* const descriptor = this->descriptor_of(step);
    this->clear_queries(descriptor, q_at_, this->flags_of(descriptor));
    const auto delta = this->statistics(shared_.delta[g_at_.stage], this->quad_lane());
    HandedP<T>(shared_, step).take(mma_.s, this->thread());
    tile::mma_wait<0>();
    this->template pack_ds<false>(delta, q_at_.stage);
    arrive_as_warp(shared_.g_ring.empty[g_at_.stage], this->lane());
    g_at_.advance();
  }
  __device__ __forceinline__ void release_queries() {
    arrive_as_warp(shared_.q_ring.empty[q_at_.stage], this->lane());
    q_at_.advance();
  }

  typename Base::StageCursor q_at_;
  typename Base::StageCursor g_at_;
};

}  // namespace tessera::cuda::sm90::attention_backward
