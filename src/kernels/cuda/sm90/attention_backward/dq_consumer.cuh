#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/masks.cuh"
#include "src/kernels/cuda/attention/results.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/math.cuh"
#include "src/kernels/cuda/sm90/attention_backward/dq_traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

namespace tessera::cuda::sm90::attention_backward {

/// A consumer warpgroup of the kernel that computes dQ alone. It has 64 rows of each tile, and
/// computes S, dP and dQ step by step. The two consumers take turns in issuing MMAs: one multiplies
/// while the other computes P and dS.
template <class T, int kConsumer>
class DqConsumer {
 public:
  using Shared = typename T::Shared;

  __device__ __forceinline__ DqConsumer(const DqArguments& args, Shared& shared)
      : args_(args), shared_(shared) {}

  __device__ __forceinline__ void run() {
    if (!T::kOwnLists && kConsumer == 1) pass_turn();
#pragma unroll 1
    for (;; ++tile_) {
      tile::wait(&shared_.q_ring.full[0], tile_ % 2);
      if (agreed(descriptor().no_more_tiles)) break;
      load_statistics();
      load_q_registers();
      forward::clear<T::kDim>(dq_);
      T::kOwnLists ? walk_own_steps() : walk_in_turns();
      store();
      tile::arrive_as_warp(shared_.tile_ring.empty[tile_ % T::kTileDescriptors], lane());
    }
    if (!T::kOwnLists && kConsumer == 0)
      take_turn();  // the other consumer's last one was passed to this one
  }

 private:
  using Element = typename T::Element;
  // With one stage of V, the second consumer multiplies dP before S: then K and V of the next step
  // have as long to arrive as one turn takes. S before dP would leave V two thirds of that.
  static constexpr bool kGradientsFirst = T::kValueStages == 1 && kConsumer == 1;

  // ---- Steps ------------------------------------------------------------------------------------

  __device__ __forceinline__ void walk_in_turns() {
    take_turn();
    kGradientsFirst ? issue_score_gradients() : issue_scores();
    kGradientsFirst ? issue_scores() : issue_score_gradients();
    pass_turn();
    finish_scores();
#pragma unroll 1
    while ((flags_ & forward::kLastOfTile) == 0) {
      const int before = k_at_.stage;
      k_at_.advance();
      take_turn();
      issue_dq(before);
      kGradientsFirst ? issue_score_gradients() : issue_scores();
      tile::mma_wait<1>();
      tile::arrive_as_warp(shared_.k_ring.empty[before], lane());
      kGradientsFirst ? issue_scores() : issue_score_gradients();
      pass_turn();
      finish_scores();
    }
    tile::arrive_as_warp(shared_.q_ring.empty[0], lane());
    issue_dq(k_at_.stage);
    tile::mma_wait<0>();
    tile::arrive_as_warp(shared_.k_ring.empty[k_at_.stage], lane());
    k_at_.advance();
    tile::settle(dq_);
  }

  /// With a list for each consumer's rows: the steps that they need. The consumers take no turns,
  /// as each has steps of its own.
  __device__ __forceinline__ void walk_own_steps() {
    if (!leaves_out() || finds_own_step()) multiply_own_steps();
    k_at_.advance();
    tile::arrive_as_warp(shared_.q_ring.empty[0], lane());
  }

  __device__ __forceinline__ void multiply_own_steps() {
    issue_scores();
    issue_score_gradients();
    finish_scores();
#pragma unroll 1
    while (true) {
      const int before = k_at_.stage;
      issue_dq(before);
      const bool ends = !advances();
      if (!ends && !leaves_out()) {
        issue_scores();
        tile::mma_wait<1>();
        tile::arrive_as_warp(shared_.k_ring.empty[before], lane());
      } else {
        // The steps that are left out may be as many as there are stages.
        tile::mma_wait<0>();
        tile::arrive_as_warp(shared_.k_ring.empty[before], lane());
        if (ends || !finds_own_step()) break;
        issue_scores();
      }
      issue_score_gradients();
      finish_scores();
    }
    tile::settle(dq_);
  }

  /// Moves from a step that this consumer leaves out to the next one that it needs.
  __device__ __forceinline__ bool finds_own_step() {
    do {
      if (!passes_over()) return false;
    } while (leaves_out());
    return true;
  }
  /// Moves on to the tile's next step, if there is one.
  __device__ __forceinline__ bool advances() {
    if ((flags_ & forward::kLastOfTile) != 0) return false;
    k_at_.advance();
    return true;
  }
  /// Whether this consumer's list does not name the current step.
  __device__ __forceinline__ bool leaves_out() {
    wait_for_keys();
    return (flags_ & forward::kNeeded) == 0;
  }
  /// Releases a step of which nothing is read, and moves on to the next one, if there is one.
  __device__ __forceinline__ bool passes_over() {
    tile::wait(&shared_.v_ring.full[v_at_.stage], v_at_.parity);
    release_values();
    tile::arrive_as_warp(shared_.k_ring.empty[k_at_.stage], lane());
    return advances();
  }

  /// P and dS of a step whose scores are being multiplied; then its V is no longer needed.
  __device__ __forceinline__ void finish_scores() {
    tile::mma_wait<1>();
    if constexpr (kGradientsFirst) {
      release_values();
      tile::mma_wait<0>();
    }
    tile::settle(s_);
    if constexpr (T::kCaps) forward::transform_scores(s_, args_.transform);
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      s_[i] = exp2_fast(fmaf(s_[i], args_.exponent_scale, lse_[i / 2 % 2]));
    const bool masked = (flags_ & forward::kMasked) != 0;
    if (masked) hide_p();
    if constexpr (!kGradientsFirst) {
      tile::mma_wait<0>();
      release_values();
    }
    tile::settle(dp_);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      dp_[i] = s_[i] * (dp_[i] - delta_[i / 2 % 2]);
      if constexpr (T::kCaps) dp_[i] *= slope_of(s_[i], lse_[i / 2 % 2]);
    }
    // V of keys that no query sees may hold NaN, as may dO and delta of queries that see no key.
    if (masked) {
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        if (s_[i] == 0.0f) dp_[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) ds_[i] = T::Precision::pack(dp_[2 * i], dp_[2 * i + 1]);
  }

  __device__ __forceinline__ void release_values() {
    tile::arrive_as_warp(shared_.v_ring.empty[v_at_.stage], lane());
    v_at_.advance();
  }

  /// Sets P of hidden pairs to zero: scores of -inf would not do with a scale of zero or less.
  __device__ __forceinline__ void hide_p() {
    const int row = first_row() + thread() / 32 * 16 + lane() / 4;
    forward::mask_scores<T::kListRows>(s_, shared_.stage_steps[k_at_.stage], descriptor(),
                                       args_.walk, args_.masks, row, lane() % 4 * 2, 0.0f);
  }

  /// The derivative of the softcap, 1 - (s / cap)^2, where s is recomputed from P = exp(s - lse),
  /// as there are no registers for both.
  __device__ __forceinline__ float slope_of(float p, float negative_lse) const {
    const float relative = (log2_fast(p) - negative_lse) * args_.inverse_cap;
    return p > 0.0f ? fmaf(-relative, relative, 1.0f) : 0.0f;
  }

  __device__ __forceinline__ void wait_for_keys() {
    tile::wait(&shared_.k_ring.full[k_at_.stage], k_at_.parity);
    flags_ = __shfl_sync(kAllLanes, shared_.stage_steps[k_at_.stage].flags_of(kConsumer), 0);
  }

  // ---- Products ---------------------------------------------------------------------------------

  /// S = Q K^T, of which some columns of Q are in registers.
  __device__ __forceinline__ void issue_scores() {
    if constexpr (!T::kOwnLists) wait_for_keys();
    const std::uint64_t a = shared_.q[0].by_columns(first_row());
    const std::uint64_t b = shared_.keys[0].by_columns(0) + k_at_.stage * (T::Keys::kBytes >> 4);
    tile::settle(s_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kReadMmas; ++i)
      tile::mma<Element, T::kN, tile::Major::k, tile::Major::k>(
          s_, a + T::Queries::columns_of_mma(i), b + T::Keys::columns_of_mma(i), i == 0);
#pragma unroll
    for (int i = kReadMmas; i < T::kQkMmas; ++i)
      tile::mma<Element, T::kN, tile::Major::k>(s_, q_registers_ + (i - kReadMmas) * 4,
                                                b + T::Keys::columns_of_mma(i), i == 0);
    tile::mma_commit();
  }

  /// dP = dO V^T.
  __device__ __forceinline__ void issue_score_gradients() {
    tile::wait(&shared_.v_ring.full[v_at_.stage], v_at_.parity);
    const std::uint64_t a = shared_.gradients.by_columns(first_row());
    const std::uint64_t b =
        shared_.values[0].by_columns(0) + v_at_.stage * (T::Values::kBytes >> 4);
    tile::settle(dp_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kDimV / T::Precision::kMmaDepth; ++i)
      tile::mma<Element, T::kN, tile::Major::k, tile::Major::k>(
          dp_, a + T::Gradients::columns_of_mma(i), b + T::Values::columns_of_mma(i), i == 0);
    tile::mma_commit();
  }

  /// dQ += dS K.
  __device__ __forceinline__ void issue_dq(int stage) {
    const std::uint64_t b = shared_.keys[0].by_rows() + stage * (T::Keys::kBytes >> 4);
    tile::settle(dq_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kPvMmas; ++i)
      tile::mma<Element, T::kDim, tile::Major::mn>(dq_, ds_ + i * 4, b + i * T::Keys::kRowsOfMma,
                                                   false);
    tile::mma_commit();
  }

  __device__ __forceinline__ void load_q_registers() {
    if constexpr (T::kQRegisterMmas == 0) return;
    const std::uint32_t at = tile::shared_address(shared_.q[0].chunk(
        first_row() + thread() / 32 * 16 + lane() % 16, lane() / 16 * T::Queries::kChunk));
#pragma unroll
    for (int i = 0; i < T::kQRegisterMmas; ++i)
      load_left_operand(T::Queries::to_mma(at, kReadMmas + i), q_registers_ + i * 4);
  }

  // ---- Tiles ------------------------------------------------------------------------------------

  __device__ __forceinline__ const forward::TileDescriptor& descriptor() const {
    return shared_.tiles[tile_ % T::kTileDescriptors];
  }
  __device__ __forceinline__ forward::RowPlaces places() const {
    return {args_.walk, descriptor(), first_row(), thread()};
  }

  /// lse and delta of a thread's two rows. Rows without a query have P = 0.
  __device__ __forceinline__ void load_statistics() {
    const forward::RowPlaces rows = places();
    const int first = args_.query_blocks.first(descriptor().batch, descriptor().q_begin);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = rows.query[half];
      lse_[half] = -INFINITY, delta_[half] = 0;
      if (query >= descriptor().q_length) continue;
      const std::int64_t block = std::int64_t{rows.head[half]} * args_.query_blocks_per_head +
                                 first + query / planning::kQueriesPerBlock;
      const std::int64_t at = block * planning::kQueriesPerBlock +
                              planning::mixed_query(query % planning::kQueriesPerBlock);
      lse_[half] = __ldg(args_.lse + at), delta_[half] = __ldg(args_.delta + at);
    }
  }

  __device__ __forceinline__ void store() {
    const float factor[2] = {args_.scale, args_.scale};
    if (args_.result.dtype == DType::f32)
      forward::store_f32<T::kDim>(args_.result, descriptor(), places(), dq_, factor, thread());
    else
      forward::store_16bit<T::kDim>(args_.result, descriptor(), places(), dq_, factor, thread());
  }

  // ---- Turns and positions ----------------------------------------------------------------------

  __device__ __forceinline__ void take_turn() {
    tile::sync_at(T::kTurnBarrier + kConsumer, 2 * forward::kWarpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    tile::arrive_at(T::kTurnBarrier + 1 - kConsumer, 2 * forward::kWarpgroup);
  }
  /// The first of this consumer's 64 rows in a tile.
  __device__ __forceinline__ int first_row() const { return kConsumer * T::kRows; }
  /// Read from the special register at each use, so that they occupy no register.
  __device__ __forceinline__ int thread() const { return thread_of_block() % forward::kWarpgroup; }
  __device__ __forceinline__ int lane() const { return thread_of_block() % kLanes; }

  static constexpr int kScores = T::kN / 2;
  static constexpr int kReadMmas = T::kQkMmas - T::kQRegisterMmas;  // of S, from shared memory

  const DqArguments& args_;
  Shared& shared_;
  unsigned tile_ = 0;   // tiles before this one
  unsigned flags_ = 0;  // of the current step
  tile::RingCursor<T::kStages> k_at_;
  tile::RingCursor<T::kValueStages> v_at_;
  float lse_[2], delta_[2];
  float s_[kScores], dp_[kScores];
  std::uint32_t ds_[kScores / 2];
  forward::OAccumulator<T::kDim> dq_;
  std::uint32_t q_registers_[T::kQRegisterMmas > 0 ? T::kQRegisterMmas * 4 : 1];
};

}  // namespace tessera::cuda::sm90::attention_backward
