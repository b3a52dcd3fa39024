#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/math.cuh"
#include "src/kernels/cuda/sm90/attention_backward/consumer_mma.cuh"
#include "src/kernels/cuda/sm90/attention_backward/hidden.cuh"
#include "src/kernels/cuda/sm90/attention_backward/store.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"

// The consumer warpgroups. Each has 64 keys of the tile: it computes P and dS of its keys,
// transposed, adds to its dV and dK, and multiplies half of the columns of dQ over all keys of the
// tile.
namespace tessera::cuda::sm90::attention_backward {

template <class T>
class Consumer {
 public:
  using Shared = typename T::Shared;

  __device__ __forceinline__ Consumer(const Arguments& args, Shared& shared, int consumer)
      : args_(args), shared_(shared), consumer_(consumer), mma_(shared, consumer) {}

  __device__ __forceinline__ void run() {
    const int steps = __shfl_sync(kAllLanes, shared_.num_steps, 0);
#pragma unroll
    for (float& sum : mma_.dk) sum = 0;
#pragma unroll
    for (float& sum : mma_.dv) sum = 0;
    if (steps > 0) walk(steps);
    const KeyTileJob& job = shared_.job;
    const KeyRows keys{job.batch,     job.kv_head,
                       job.kv_begin,  job.tile * T::kN + consumer_ * 64,
                       job.kv_length, shared_.kept[consumer_]};
    if (args_.dk.data) store_gradient<T::kDim>(args_.dk, keys, thread(), mma_.dk, args_.scale);
    if (args_.dv.data) store_gradient<T::kDimV>(args_.dv, keys, thread(), mma_.dv, 1.0f);
  }

 private:
  __device__ __forceinline__ void walk(int steps) {
    tile::wait(&shared_.kv_full, 0);
    clear_hidden_keys();
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
    wait_for_queries(descriptor_of(0));
    mma_.issue_scores(at_.stage);
    wait_for_gradients(descriptor_of(0));
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
    mma_.issue_products(at_.stage);
    if constexpr (kHasDq) {
      tile::mma_wait<2>();
      stage_dq(step - 2);
    }
    const int before = at_.stage;
    at_.advance();
    wait_for_queries(descriptor_of(step));
    mma_.issue_scores(at_.stage);
    tile::mma_wait<1>();
    arrive_as_warp(shared_.q_ring.empty[before], lane());
    arrive_as_warp(shared_.g_ring.empty[before], lane());
    wait_for_gradients(descriptor_of(step));
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
    mma_.issue_products(at_.stage);
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
    compute_p(descriptor_of(step));
    tile::mma_wait<0>();
    compute_ds(step);
  }

  // ---- Scores -----------------------------------------------------------------------------------

  __device__ __forceinline__ void compute_p(const BackwardStep& step) {
    tile::settle(mma_.s);
    float(&s)[T::kM / 2] = mma_.s;
    if constexpr (T::kCaps) cuda::attention::transform_scores(s, args_.transform);
#pragma unroll
    for (int j = 0; j < T::kM / 16; ++j) {
      const float4 lse = statistics(shared_.lse[at_.stage], j);
      const float of[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
      for (int e = 0; e < 8; ++e)
        s[j * 8 + e] = exp2_fast(fmaf(s[j * 8 + e], args_.exponent_scale, of[e / 4 * 2 + e % 2]));
    }
    if (agreed(step.masked))
      hide(s, args_.walk, shared_.job, step, shared_.kept[consumer_], consumer_, thread());
  }

  /// Four queries' statistics: of groups 2j and 2j + 1 of eight queries, two each (mixed_query).
  __device__ __forceinline__ float4 statistics(const float* numbers, int j) const {
    return reinterpret_cast<const float4*>(numbers)[lane() % 4 * 4 + (j ^ (lane() % 4 / 2))];
  }

  /// Rounds P and dS to operands of dV and dK, and writes dS for dQ.
  __device__ __forceinline__ void compute_ds(int step) {
    tile::settle(mma_.dp);
    const float(&s)[T::kM / 2] = mma_.s;
    const float(&dp)[T::kM / 2] = mma_.dp;
#pragma unroll
    for (int j = 0; j < T::kM / 16; ++j) {
      const float4 numbers = statistics(shared_.delta[at_.stage], j);
      const float delta[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
      float4 lse{};
      if constexpr (T::kCaps) lse = statistics(shared_.lse[at_.stage], j);
      const float of[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = j * 8 + e * 2;
        float ds[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          ds[k] = s[i + k] * (dp[i + k] - delta[e / 2 * 2 + k]);
          if constexpr (T::kCaps) ds[k] *= slope_of(s[i + k], of[e / 2 * 2 + k]);
        }
        mma_.p[i / 2] = T::Precision::pack(s[i], s[i + 1]);
        mma_.ds[i / 2] = T::Precision::pack(ds[0], ds[1]);
      }
    }
    const int buffer = step % T::kScoreGradients;
    tile::wait(&shared_.ds_ring.empty[buffer], (step / T::kScoreGradients & 1) ^ 1);
    mma_.write_ds(buffer, thread());
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    arrive_as_warp(shared_.ds_ring.full[buffer], lane());
  }

  /// The derivative of the softcap, 1 - (s / cap)^2, where s is recomputed from P = exp(s - lse),
  /// as there are no registers for both.
  __device__ __forceinline__ float slope_of(float p, float negative_lse) const {
    const float relative = (log2_fast(p) - negative_lse) * args_.inverse_cap;
    return p > 0.0f ? fmaf(-relative, relative, 1.0f) : 0.0f;
  }

  // ---- dQ ---------------------------------------------------------------------------------------

  __device__ __forceinline__ void issue_dq(int step) {
    const int buffer = step % T::kScoreGradients;
    tile::wait(&shared_.ds_ring.full[buffer], step / T::kScoreGradients & 1);
    mma_.issue_dq(buffer);
  }

  /// Writes this consumer's half of dQ for the sender warps.
  __device__ __forceinline__ void stage_dq(int step) {
    tile::settle(mma_.dq);
    arrive_as_warp(shared_.ds_ring.empty[step % T::kScoreGradients], lane());
    tile::wait(&shared_.dq_empty[consumer_], (step & 1) ^ 1);
    float4* const to = reinterpret_cast<float4*>(shared_.dq[consumer_]) + thread();
#pragma unroll
    for (int j = 0; j < T::kHalf / 8; ++j)
      to[j * kWarpgroup] =
          make_float4(mma_.dq[j * 4], mma_.dq[j * 4 + 1], mma_.dq[j * 4 + 2], mma_.dq[j * 4 + 3]);
  }

  __device__ __forceinline__ void announce_dq(int step) {
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    arrive_as_warp(shared_.dq_full[consumer_][step % T::kSenders], lane());
  }

  // ---- Barriers ---------------------------------------------------------------------------------

  /// The consumers take turns in issuing MMAs.
  __device__ __forceinline__ void take_turn() {
    tile::sync_at(T::kTurnBarrier + consumer_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    tile::arrive_at(T::kTurnBarrier + 1 - consumer_, 2 * kWarpgroup);
  }

  __device__ __forceinline__ const BackwardStep& descriptor_of(int step) const {
    return shared_.steps[step % T::kStepDescriptors];
  }

  /// Waits for Q and the step's descriptor. Queries that see no key may hold NaN, and P = 0 would
  /// not hide them: both consumers clear them.
  __device__ __forceinline__ void wait_for_queries(const BackwardStep& step) {
    tile::wait(&shared_.q_ring.full[at_.stage], at_.parity);
    if (agreed(step.ragged)) {
      clear_rows(shared_.queries[at_.stage], 0, step.seeing, thread());
      sync_after_clearing();
    }
  }
  __device__ __forceinline__ void wait_for_gradients(const BackwardStep& step) {
    tile::wait(&shared_.g_ring.full[at_.stage], at_.parity);
    if (agreed(step.ragged)) {
      const std::uint64_t seeing = step.seeing;
      clear_rows(shared_.gradients[at_.stage], 0, seeing, thread());
      if (thread() < T::kM && (seeing >> thread() & 1) == 0)
        shared_.delta[at_.stage][planning::mixed_query(thread())] = 0;
      sync_after_clearing();
    }
  }
  __device__ __forceinline__ void clear_hidden_keys() {
    const std::uint64_t kept = shared_.kept[consumer_];
    if (!agreed(kept != ~std::uint64_t{0})) return;
    clear_rows(shared_.keys, consumer_ * 64, kept, thread());
    clear_rows(shared_.values, consumer_ * 64, kept, thread());
    sync_after_clearing();
  }
  __device__ __forceinline__ void sync_after_clearing() {
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    tile::sync_at(T::kWarpgroupBarrier + consumer_, kWarpgroup);
  }

  /// Read from the special register at each use, so that they occupy no register.
  __device__ __forceinline__ int thread() const {
    return attention::thread_of_block() % kWarpgroup;
  }
  __device__ __forceinline__ int lane() const { return attention::thread_of_block() % kLanes; }

  const Arguments& args_;
  Shared& shared_;
  int consumer_;
  ConsumerMma<T> mma_;
  tile::RingCursor<T::kStages> at_;
};

}  // namespace tessera::cuda::sm90::attention_backward
