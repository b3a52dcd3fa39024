#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/sm90/attention/consumer_pipeline.cuh"
#include "src/kernels/cuda/sm90/attention/merge.cuh"
#include "src/kernels/cuda/sm90/attention/rescore.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The consumer warpgroups: each takes 64 rows of Q through the rings of K and V. The QK of one step
// overlaps the PV of the step before, so the tensor cores work while P is computed.
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
      if constexpr (T::kSkipsTiles) {
        if (!pipe_.has_rows(pipe_.tile)) {
          pipe_.skip_tile();
          continue;
        }
      }
      load_q_registers();
      if constexpr (T::kOwnLists) {
        walk_row_group();
        continue;
      }
      pipe_.wait_for_keys();
      pipe_.skip_leading();
      softmax_ = {};
      begin<false>();
      clear<T::kDimV>(o_acc_);
      do {
        while (!pipe_.is_last()) step();
      } while (start_next_tile());
    }
  }

 private:
  using Element = typename T::Element;
  using Pipe = ConsumerPipeline<T>;
  using Cursor = typename Pipe::Cursor;
  using Precision = typename T::Precision;
  static constexpr int kReadMmas = T::kQkMmas - T::kQRegisterMmas;  // with Q in shared memory

  __device__ __forceinline__ void issue_qk() {
    unsigned tile = pipe_.tile;
    if constexpr (T::kFewRegisters)
      asm volatile("" : "+r"(tile));  // so that no register holds what follows from it
    const std::uint64_t q = pipe_.shared.q[0].by_columns(pipe_.first_row()) +
                            tile % T::kQueryStages * (T::Queries::kBytes >> 4);
    const std::uint64_t k =
        pipe_.shared.keys[0].by_columns(0) + pipe_.at.stage * (T::Keys::kBytes >> 4);
    tile::settle(score_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kReadMmas; ++i)
      tile::mma<Element, T::kN, tile::Major::k, tile::Major::k>(
          score_, q + T::Queries::columns_of_mma(i), k + T::Keys::columns_of_mma(i), i == 0);
#pragma unroll
    for (int i = kReadMmas; i < T::kQkMmas; ++i)
      tile::mma<Element, T::kN, tile::Major::k>(score_, q_registers_ + (i - kReadMmas) * 4,
                                                k + T::Keys::columns_of_mma(i), i == 0);
    tile::mma_commit();
  }

  /// Loads the part of the tile's Q that stays in registers.
  __device__ __forceinline__ void load_q_registers() {
    if constexpr (T::kQRegisterMmas == 0) return;
    const int mine = pipe_.thread(), lane = mine % 32;
    const std::uint32_t at = tile::shared_address(
        pipe_.queries_of(pipe_.tile)
            .chunk(pipe_.first_row() + mine / 32 * 16 + lane % 16, lane / 16 * T::Queries::kChunk));
#pragma unroll
    for (int i = 0; i < T::kQRegisterMmas; ++i)
      load_left_operand(T::Queries::to_mma(at, kReadMmas + i), q_registers_ + i * 4);
  }

  /// Starts PV of a step whose P is ready.
  __device__ __forceinline__ void issue_pv(Cursor at) {
    tile::wait(&pipe_.shared.v_ring.full[at.stage], at.parity);
    const std::uint64_t v = pipe_.shared.values[0].by_rows() + at.stage * (T::Values::kBytes >> 4);
    tile::settle(o_acc_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kPvMmas; ++i)
      tile::mma<Element, T::kDimV, tile::Major::mn>(o_acc_, p_ + i * 4,
                                                    v + i * T::Values::kRowsOfMma, false);
    tile::mma_commit();
  }

  __device__ __forceinline__ void rescale(const float (&rescale_factor)[2]) {
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) o_acc_[i] *= rescale_factor[i / 2 % 2];
  }

  __device__ __forceinline__ void round() {
#pragma unroll
    for (int i = 0; i < T::kN / 4; ++i) p_[i] = Precision::pack(score_[2 * i], score_[2 * i + 1]);
  }

  /// The first step of a tile or, where the tile is begun, of a run of steps: nothing overlaps its
  /// QK.
  template <bool kTileBegun>
  __device__ __forceinline__ void begin() {
    constexpr bool kWaitsForTurn = !kTileBegun && T::kTakesTurns;
    if constexpr (kWaitsForTurn) pipe_.wait_for_turn();
    issue_qk();
    tile::mma_wait<0>();
    tile::settle(score_);
    if constexpr (kWaitsForTurn) pipe_.give_turn();
    prepare_scores();
    if constexpr (kTileBegun) {
      softmax_.update_by_max(score_, exponents(),
                             [&](const float(&rescale_factor)[2]) { rescale(rescale_factor); });
    } else {
      softmax_.start(score_, exponents());
    }
    check_row_maxes();
    round();
  }

  /// The last PV of a tile or a run: nothing overlaps it either.
  __device__ __forceinline__ void end(Cursor at) {
    issue_pv(at);
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
    issue_qk();
    issue_pv(before);
    tile::mma_wait<1>();
    tile::settle(score_);
    if constexpr (T::kTransformsScores) {
      if (fits_near_zero()) {
        pipe_.release(pipe_.shared.k_ring.empty[pipe_.at.stage]);
        pipe_.look_ahead();
        softmax_.update_by_series(score_, pipe_.args.transform.series_log2);
        wait_for_pv(before);
        round();
        return;
      }
    }
    prepare_scores();
    pipe_.look_ahead();
    const auto rescaling = [&](const float(&rescale_factor)[2]) {
      tile::mma_wait<0>();
      tile::settle(o_acc_);
      rescale(rescale_factor);
    };
    if constexpr (T::kTakesTurns) {
      softmax_.update_by_max(score_, exponents(), rescaling);
    } else {
      if (!pipe_.has_flag(Pipe::kHasRowMaxes)) {
        softmax_.set_row_maxes(score_, exponents());
        check_row_maxes();
      }
      softmax_.update_by_row_sum(score_, exponents(), rescaling,
                                 [&](const auto& take) { rescore(take); });
    }
    wait_for_pv(before);
    round();
  }

  /// Without a score transform there is no ceiling.
  __device__ __forceinline__ Exponents exponents() const {
    return {pipe_.args.exponents.scale,
            T::kTransformsScores ? pipe_.args.exponents.ceiling : INFINITY};
  }

  /// Whether no score of the step is hidden, all are near zero under their cap, and none needs
  /// another row max: then nothing has to be checked after the transform.
  __device__ __forceinline__ bool fits_near_zero() {
    const float largest = largest_of(score_);
    const bool fits = largest <= pipe_.args.transform.near &&
                      softmax_.fits(largest * pipe_.args.transform.slope_log2);
    return !pipe_.has_flag(kMasked) && !agreed(!fits);
  }

  /// Records whether all rows have a row max.
  __device__ __forceinline__ void check_row_maxes() {
    if constexpr (T::kTakesTurns) return;
    if (!agreed(!softmax_.seen(0) | !softmax_.seen(1))) pipe_.flags |= Pipe::kHasRowMaxes;
  }

  /// Recomputes the step's scores while no PV is running; the O accumulator is spilled meanwhile.
  /// The step's K is still there, as the V of the step before has not been released.
  __device__ __forceinline__ void rescore(const auto& take) {
    tile::mma_wait<0>();
    tile::settle(o_acc_);
    volatile float saved_o_acc[T::kDimV / 2],
        saved_row_sum[2] = {softmax_.row_sum[0], softmax_.row_sum[1]};
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) saved_o_acc[i] = o_acc_[i];
    const int mine = pipe_.thread();
    score_again<T>(score_, pipe_.queries_of(pipe_.tile), pipe_.first_row() + mine / 32 * 16,
                   pipe_.shared.keys[pipe_.at.stage], mine % 32);
    transform_and_mask();
    softmax_.row_sum[0] = saved_row_sum[0], softmax_.row_sum[1] = saved_row_sum[1];
    float factor[2];
    take([&](const float(&rescale_factor)[2]) {
      factor[0] = rescale_factor[0], factor[1] = rescale_factor[1];
    });
    // The branch keeps the O accumulator from being reloaded while P still occupies its registers.
    if (!T::kFewRegisters || agreed(!(score_[0] < 0.0f))) {
#pragma unroll
      for (int i = 0; i < T::kDimV / 2; ++i) o_acc_[i] = saved_o_acc[i] * factor[i / 2 % 2];
    }
    load_q_registers();
  }

  __device__ __forceinline__ void wait_for_pv(Cursor of) {
    tile::mma_wait<0>();
    tile::settle(o_acc_);
    pipe_.release(pipe_.shared.v_ring.empty[of.stage]);
  }

  /// A whole tile of a row group with its own list: runs of steps that it needs, with skipped steps
  /// between them. Nothing is multiplied and no stage is held while steps are skipped.
  __device__ __forceinline__ void walk_row_group() {
    softmax_ = {};
    clear<T::kDimV>(o_acc_);
    pipe_.wait_for_keys();
    while (pipe_.advance_to_needed()) {
      begin<true>();
      Cursor before = pipe_.at;
      while (pipe_.advance(), !pipe_.is_last()) {
        pipe_.wait_for_keys();
        if (!pipe_.is_needed()) break;
        overlap(before);
        before = pipe_.at;
      }
      end(before);
      if (pipe_.is_needed()) break;  // and was the last one
    }
    finish();
    pipe_.end_tile();
  }

  /// The last PV of a tile, overlapped with the first QK of the next one. False if no tile follows
  /// or this one is split across CTAs.
  __device__ __forceinline__ bool start_next_tile() {
    if constexpr (T::kConsumersStore) pipe_.release(pipe_.shared.q_ring.empty[0]);
    const Cursor before = pipe_.at;
    if constexpr (T::kLeavesSooner) pipe_.skip_rest();
    if (!T::kOverlapsTiles || !pipe_.is_unsplit(pipe_.tile) || !pipe_.has_tile(pipe_.tile + 1) ||
        (T::kSkipsTiles && !pipe_.has_rows(pipe_.tile + 1))) {
      end(before);
      finish();
      pipe_.advance();
      pipe_.end_tile();
      return false;
    }
    pipe_.advance();
    pipe_.end_tile();
    load_q_registers();
    pipe_.wait_for_keys();
    pipe_.skip_leading();
    issue_qk();
    issue_pv(before);
    tile::mma_wait<1>();
    tile::settle(score_);
    prepare_scores();
    Softmax former = softmax_;
    softmax_ = {};
    pipe_.look_ahead();
    // The O accumulator is still the former tile's, so nothing is rescaled.
    softmax_.start(score_, exponents());
    tile::settle(score_);  // P is there before the wait
    check_row_maxes();
    wait_for_pv(before);
    round();
    store_tile(pipe_, pipe_.tile - 1, o_acc_, former);
    pipe_.release_result(pipe_.tile - 1);
    clear<T::kDimV>(o_acc_);
    return true;
  }

  /// Transforms and masks the scores, then releases the stage's K.
  __device__ __forceinline__ void prepare_scores() {
    transform_and_mask();
    pipe_.release(pipe_.shared.k_ring.empty[pipe_.at.stage]);
  }

  __device__ __forceinline__ void transform_and_mask() {
    if constexpr (T::kTransformsScores) transform_scores(score_, pipe_.args.transform);
    if (pipe_.has_flag(kMasked)) {
      const int in_split = pipe_.thread_of_block() % (T::kSplitConsumers * kWarpgroup);
      const int row = in_split / 32 * 16 + in_split % 32 / 4;
      mask_scores<T::kListRows>(score_, pipe_.shared.stage_steps[pipe_.at.stage],
                                pipe_.descriptor_of(pipe_.tile), pipe_.args.walk, pipe_.args.masks,
                                row, pipe_.thread() % 4 * 2);
    }
  }

  /// Ends a tile: its O accumulator becomes the result, or a partial result to be merged.
  __device__ __forceinline__ void finish() {
    if constexpr (T::kKvSplits > 1) {
      if (pipe_.kv_split() > 0) return send_partial(pipe_, o_acc_, softmax_);
      merge_splits(pipe_, o_acc_, softmax_);
    }
    bool stores = true;
    if (!pipe_.is_unsplit(pipe_.tile)) stores = merge_parts(pipe_, o_acc_, softmax_);
    if (stores) store_tile(pipe_, pipe_.tile, o_acc_, softmax_);
    pipe_.release_result(pipe_.tile);
  }

  Pipe pipe_;
  float score_[T::kN / 2];
  OAccumulator<T::kDimV> o_acc_;
  std::uint32_t p_[T::kPvMmas * 4];
  std::uint32_t q_registers_[T::kQRegisterMmas > 0 ? T::kQRegisterMmas * 4 : 1];
  Softmax softmax_;
};

}  // namespace tessera::cuda::sm90::attention
