#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/consumer_mma.cuh"
#include "src/kernels/cuda/sm90/attention/consumer_pipeline.cuh"
#include "src/kernels/cuda/sm90/attention/merge.cuh"
#include "src/kernels/cuda/sm90/attention/rescore.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The consumer warpgroups. Each computes 64 query rows of every tile: it waits for K and V in the
// rings, issues the QK of a step together with the PV of the step before, and computes P while PV
// runs.
namespace tessera::cuda::sm90::attention {

/// One warpgroup: 64 rows of each tile.
template <class T>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Arguments& args, typename T::Shared& shared,
                                      int consumer)
      : pipe_(args, shared, consumer) {}

  __device__ __forceinline__ void run() {
    while (pipe_.has_tile(pipe_.tile)) {
      if (T::kSkipsTiles && !pipe_.has_rows(pipe_.tile)) {
        pipe_.next_needed_step(false);
        pipe_.release_result(pipe_.tile);
        pipe_.end_tile();
        continue;
      }
      mma_.load_q_registers(pipe_);
      if constexpr (T::kOwnLists) {
        walk_row_group();
        continue;
      }
      pipe_.next_needed_step();
      softmax_ = {};
      begin<false>();
      clear<T::kDimV>(mma_.o_acc);
      do {
        while (!pipe_.is_last()) step();
      } while (start_next_tile());
    }
  }

 private:
  using Pipe = ConsumerPipeline<T>;
  using Cursor = typename Pipe::Cursor;

  /// The first step of a tile, or of a run of needed steps inside a tile (kTileBegun). Its QK
  /// overlaps nothing.
  template <bool kTileBegun>
  __device__ __forceinline__ void begin() {
    constexpr bool kWaitsForTurn = !kTileBegun && T::kTakesTurns;
    if constexpr (kWaitsForTurn) pipe_.wait_for_turn();
    mma_.issue_qk(pipe_);
    tile::mma_wait<0>();
    tile::settle(mma_.score);
    if constexpr (kWaitsForTurn) pipe_.give_turn();
    prepare_scores();
    if constexpr (kTileBegun) {
      softmax_.update_by_max(mma_.score, exponents(), [&](const float(&rescale_factor)[2]) {
        mma_.rescale(rescale_factor);
      });
    } else {
      softmax_.start(mma_.score, exponents());
    }
    check_row_maxes();
    mma_.round();
  }

  /// The last PV of a tile or of a run of steps. It overlaps nothing.
  __device__ __forceinline__ void end(Cursor at) {
    mma_.issue_pv(pipe_, at);
    wait_for_pv(at);
  }

  __device__ __forceinline__ void step() {
    const Cursor before = pipe_.at;
    pipe_.advance();
    pipe_.wait_for_keys();
    overlap(before);
  }

  /// QK of a step, overlapped with PV of the step before.
  __device__ __forceinline__ void overlap(Cursor before) {
    mma_.issue_qk(pipe_);
    mma_.issue_pv(pipe_, before);
    tile::mma_wait<1>();
    tile::settle(mma_.score);
    if constexpr (T::kTransformsScores) {
      if (fits_near_zero()) {
        pipe_.release(pipe_.shared.k_ring.empty[pipe_.at.stage]);
        pipe_.look_ahead();
        softmax_.update_by_series(mma_.score, pipe_.args.transform.series_log2);
        wait_for_pv(before);
        mma_.round();
        return;
      }
    }
    prepare_scores();
    pipe_.look_ahead();
    const auto rescaling = [&](const float(&rescale_factor)[2]) {
      tile::mma_wait<0>();
      tile::settle(mma_.o_acc);
      mma_.rescale(rescale_factor);
    };
    if constexpr (T::kTakesTurns) {
      softmax_.update_by_max(mma_.score, exponents(), rescaling);
    } else {
      if (!pipe_.has_flag(Pipe::kHasRowMaxes)) {
        softmax_.set_row_maxes(mma_.score, exponents());
        check_row_maxes();
      }
      softmax_.update_by_row_sum(mma_.score, exponents(), rescaling,
                                 [&](const auto& take) { rescore(take); });
    }
    wait_for_pv(before);
    mma_.round();
  }

  /// The ceiling exists only with a score transform: without one, scores are not bounded.
  __device__ __forceinline__ Exponents exponents() const {
    return {pipe_.args.exponents.scale,
            T::kTransformsScores ? pipe_.args.exponents.ceiling : INFINITY};
  }

  /// Whether the softcap fast path applies to this step: no score is masked, all scores are near
  /// zero relative to the cap, and none raises a row max.
  __device__ __forceinline__ bool fits_near_zero() {
    const float largest = largest_of(mma_.score);
    const bool fits = largest <= pipe_.args.transform.near &&
                      softmax_.fits(largest * pipe_.args.transform.slope_log2);
    return !pipe_.has_flag(kMasked) && !agreed(!fits);
  }

  /// Sets kHasRowMaxes once all rows of the warp have a row max.
  __device__ __forceinline__ void check_row_maxes() {
    if constexpr (T::kTakesTurns) return;
    if (!agreed(!softmax_.seen(0) | !softmax_.seen(1))) pipe_.flags |= Pipe::kHasRowMaxes;
  }

  /// Recomputes the step's scores with no PV in flight; the O accumulator is spilled to local
  /// memory meanwhile. The step's K is still in its stage: the producer loads no later K before the
  /// V of the previous step is released.
  __device__ __forceinline__ void rescore(const auto& take) {
    tile::mma_wait<0>();
    tile::settle(mma_.o_acc);
    volatile float saved_o_acc[T::kDimV / 2],
        saved_row_sum[2] = {softmax_.row_sum[0], softmax_.row_sum[1]};
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) saved_o_acc[i] = mma_.o_acc[i];
    const int mine = pipe_.thread();
    score_again<T>(mma_.score, pipe_.queries_of(pipe_.tile), pipe_.first_row() + mine / 32 * 16,
                   pipe_.shared.keys[pipe_.at.stage], mine % 32);
    transform_and_mask();
    softmax_.row_sum[0] = saved_row_sum[0], softmax_.row_sum[1] = saved_row_sum[1];
    float factor[2];
    take([&](const float(&rescale_factor)[2]) {
      factor[0] = rescale_factor[0], factor[1] = rescale_factor[1];
    });
    // The branch stops the compiler from reloading the O accumulator while P still occupies
    // registers.
    if (!T::kFewRegisters || agreed(!(mma_.score[0] < 0.0f))) {
#pragma unroll
      for (int i = 0; i < T::kDimV / 2; ++i) mma_.o_acc[i] = saved_o_acc[i] * factor[i / 2 % 2];
    }
    mma_.load_q_registers(pipe_);
  }

  __device__ __forceinline__ void wait_for_pv(Cursor of) {
    tile::mma_wait<0>();
    tile::settle(mma_.o_acc);
    pipe_.release(pipe_.shared.v_ring.empty[of.stage]);
  }

  /// One tile for a consumer whose row group has its own list: runs of steps that it needs,
  /// separated by steps that it skips. While it skips, no MMA runs and no stage is held.
  __device__ __forceinline__ void walk_row_group() {
    softmax_ = {};
    clear<T::kDimV>(mma_.o_acc);
    while (pipe_.next_needed_step()) {
      begin<true>();
      Cursor before = pipe_.at;
      while (pipe_.advance(), !pipe_.is_last()) {
        pipe_.wait_for_keys();
        if (!pipe_.is_needed()) break;
        overlap(before);
        before = pipe_.at;
      }
      end(before);
      if (pipe_.is_needed()) break;  // the run ended at the last needed step
    }
    finish();
    pipe_.end_tile();
  }

  /// Overlaps the last PV of a tile with the first QK of the next tile. Returns false without
  /// starting a tile if there is no next tile, this tile is split across CTAs, or walks are short.
  __device__ __forceinline__ bool start_next_tile() {
    if constexpr (T::kConsumersStore) pipe_.release(pipe_.shared.q_ring.empty[0]);
    const Cursor before = pipe_.at;
    pipe_.leave_tile();
    if (!T::kOverlapsTiles || !pipe_.args.overlaps_tiles || !pipe_.is_unsplit(pipe_.tile) ||
        !pipe_.has_tile(pipe_.tile + 1) || (T::kSkipsTiles && !pipe_.has_rows(pipe_.tile + 1))) {
      end(before);
      finish();
      pipe_.end_tile();
      return false;
    }
    pipe_.end_tile();
    mma_.load_q_registers(pipe_);
    pipe_.next_needed_step();
    mma_.issue_qk(pipe_);
    mma_.issue_pv(pipe_, before);
    tile::mma_wait<1>();
    tile::settle(mma_.score);
    prepare_scores();
    Softmax former = softmax_;
    softmax_ = {};
    pipe_.look_ahead();
    // The O accumulator still belongs to the previous tile, so nothing is rescaled.
    softmax_.start(mma_.score, exponents());
    tile::settle(mma_.score);  // P is complete before the wait for PV
    check_row_maxes();
    wait_for_pv(before);
    mma_.round();
    store_tile(pipe_, pipe_.tile - 1, mma_.o_acc, former);
    pipe_.release_result(pipe_.tile - 1);
    clear<T::kDimV>(mma_.o_acc);
    return true;
  }

  /// Transforms and masks the scores, then releases the stage's K.
  __device__ __forceinline__ void prepare_scores() {
    transform_and_mask();
    pipe_.release(pipe_.shared.k_ring.empty[pipe_.at.stage]);
  }

  __device__ __forceinline__ void transform_and_mask() {
    if constexpr (T::kTransformsScores) transform_scores(mma_.score, pipe_.args.transform);
    if (pipe_.has_flag(kMasked)) {
      const int in_split = thread_of_block() % (T::kSplitConsumers * kWarpgroup);
      const int row = in_split / 32 * 16 + in_split % 32 / 4;
      mask_scores<T::kListRows>(mma_.score, pipe_.shared.stage_steps[pipe_.at.stage],
                                pipe_.descriptor_of(pipe_.tile), pipe_.args.walk, pipe_.args.masks,
                                row, pipe_.thread() % 4 * 2);
    }
  }

  /// Ends a tile: stores the normalised O accumulator, or hands it over as a partial result to be
  /// merged.
  __device__ __forceinline__ void finish() {
    if constexpr (T::kKvSplits > 1) {
      if (pipe_.kv_split() > 0) return send_partial(pipe_, mma_.o_acc, softmax_);
      merge_splits(pipe_, mma_.o_acc, softmax_);
    }
    bool stores = true;
    if (!pipe_.is_unsplit(pipe_.tile)) stores = merge_parts(pipe_, mma_.o_acc, softmax_);
    if (stores) store_tile(pipe_, pipe_.tile, mma_.o_acc, softmax_);
    pipe_.release_result(pipe_.tile);
  }

  Pipe pipe_;
  ConsumerMma<T> mma_;
  Softmax softmax_;
};

}  // namespace tessera::cuda::sm90::attention
