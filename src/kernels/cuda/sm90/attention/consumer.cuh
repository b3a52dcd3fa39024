#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/consumer_pipeline.cuh"
#include "src/kernels/cuda/sm90/attention/counted_mma.cuh"
#include "src/kernels/cuda/sm90/attention/rescore.cuh"
#include "src/kernels/cuda/sm90/attention/softmax.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The consumer warpgroups: each takes 64 rows of Q through the rings of K and V. The QK of one step
// overlaps the PV of the step before, so the tensor cores work while P is computed.
namespace tessera::cuda::sm90::attention {

/// Loads 16 rows x 16 columns as wgmma takes its left operand from registers. Lane l gives the
/// address of row l % 16, column l / 16 * 8.
__device__ __forceinline__ void load_blocks(std::uint32_t row_address, std::uint32_t* pair) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pair[0]), "=r"(pair[1]), "=r"(pair[2]), "=r"(pair[3])
               : "r"(row_address)
               : "memory");
}

/// One warpgroup: 64 rows of each tile.
template <class T>
class Consumer : ConsumerPipeline<T> {
  using Pipeline = ConsumerPipeline<T>;
  using Pipeline::advance, Pipeline::at_, Pipeline::args_, Pipeline::has_tile, Pipeline::consumer_;
  using Pipeline::first_row, Pipeline::release, Pipeline::give_turn, Pipeline::has_rows;
  using Pipeline::has_flag, Pipeline::release_result, Pipeline::end_tile, Pipeline::look_ahead;
  using Pipeline::is_last, Pipeline::is_needed, Pipeline::is_unsplit, Pipeline::kHasRowMaxes,
      Pipeline::flags_;
  using Pipeline::skip_tile, Pipeline::queries_of, Pipeline::shared_, Pipeline::kv_split,
      Pipeline::thread;
  using Pipeline::sync_warpgroup, Pipeline::descriptor_of, Pipeline::advance_to_needed,
      Pipeline::skip_leading, Pipeline::skip_rest;
  using Pipeline::thread_of_block, Pipeline::tile_, Pipeline::wait_for_keys,
      Pipeline::wait_for_turn;
  using typename Pipeline::Cursor;

 public:
  __device__ __forceinline__ Consumer(const Arguments& args, typename T::Shared& shared,
                                      int consumer)
      : Pipeline(args, shared, consumer) {}

  __device__ __forceinline__ void run() {
    while (has_tile(tile_)) {
      if constexpr (T::kSkipsTiles) {
        if (!has_rows(tile_)) {
          skip_tile();
          continue;
        }
      }
      load_q_registers();
      if constexpr (T::kOwnLists) {
        walk_row_group();
        continue;
      }
      wait_for_keys();
      skip_leading();
      softmax_ = {};
      begin<false>();
      clear_o_acc();
      do {
        while (!is_last()) step();
      } while (start_next_tile());
    }
  }

 private:
  using Element = typename T::Element;
  static constexpr int kKeySteps = T::kDim / 16, kValueSteps = T::kN / 16;
  static constexpr int kReadSteps =
      kKeySteps - T::kQRegisterSteps;  // whose Q is read from shared memory

  // The next tile's QK overlaps this tile's last PV. KV splits overlap each other instead, and
  // merging their results needs the registers of those scores.
  static constexpr bool kOverlapsTiles = T::kQueryStages > 1 && T::kKvSplits == 1;

  static constexpr bool kFewRegisters = T::kConsumers > 3;

  __device__ __forceinline__ void issue_qk() {
    unsigned tile = tile_;
    if constexpr (kFewRegisters)
      asm volatile("" : "+r"(tile));  // so that no register holds what follows from it
    const std::uint64_t q =
        shared_.q[0].by_columns(first_row()) + tile % T::kQueryStages * (T::Queries::kBytes >> 4);
    const std::uint64_t k = shared_.rings.keys_by_columns(at_.stage);
    tile::settle(score_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kReadSteps; ++i)
      tile::mma<Element, T::kN, tile::Major::k, tile::Major::k>(
          score_, q + T::Queries::column_step(i), k + T::Keys::column_step(i), i == 0);
#pragma unroll
    for (int i = kReadSteps; i < kKeySteps; ++i)
      tile::mma<Element, T::kN, tile::Major::k>(score_, q_registers_ + (i - kReadSteps) * 4,
                                                k + T::Keys::column_step(i), i == 0);
    tile::mma_commit();
  }

  /// Loads the part of the tile's Q that stays in registers.
  __device__ __forceinline__ void load_q_registers() {
    if constexpr (T::kQRegisterSteps == 0) return;
    const int mine = thread(), lane = mine % 32;
    const std::uint32_t at = tile::shared_address(
        queries_of(tile_).chunk(first_row() + mine / 32 * 16 + lane % 16, lane / 16 * 8));
#pragma unroll
    for (int i = 0; i < T::kQRegisterSteps; ++i)
      load_blocks(T::Queries::to_column(at, (kReadSteps + i) * 16), q_registers_ + i * 4);
  }

  /// Starts PV of a step whose P is ready.
  __device__ __forceinline__ void issue_pv(Cursor at) {
    tile::wait(&shared_.v_ring.full[at.stage], at.parity);
    const std::uint64_t v = shared_.rings.values_by_rows(at.stage);
    settle_o_acc();
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kValueSteps; ++i) {
      const std::uint32_t* const p = p_ + i * 4;
      const std::uint64_t values = v + i * T::Values::kRowStep;
      if constexpr (T::kCounts) {
        counting_mma<Element, T::kDimV>(o_acc_, p_sum_, p, values);
      } else {
        tile::mma<Element, T::kDimV, tile::Major::mn>(o_acc_, p, values, false);
      }
    }
    tile::mma_commit();
  }

  __device__ __forceinline__ void settle_o_acc() {
    tile::settle(o_acc_);
    if constexpr (T::kCounts) tile::settle(p_sum_);
  }

  __device__ __forceinline__ void rescale(const float (&rescale_factor)[2]) {
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) o_acc_[i] *= rescale_factor[i / 2 % 2];
    if constexpr (T::kCounts) p_sum_[0] *= rescale_factor[0], p_sum_[2] *= rescale_factor[1];
  }

  /// Hands the row sums from the MMA to the softmax, which expects a quarter of a row's sum per
  /// lane.
  __device__ __forceinline__ void take_row_sums(Softmax& softmax) const {
    if constexpr (T::kCounts)
      softmax.row_sum[0] = 0.25f * p_sum_[0], softmax.row_sum[1] = 0.25f * p_sum_[2];
  }

  __device__ __forceinline__ void round() {
    constexpr DType kType = std::is_same_v<Element, __nv_bfloat16> ? DType::bf16 : DType::f16;
#pragma unroll
    for (int i = 0; i < T::kN / 4; ++i)
      p_[i] = product::pack(kType, score_[2 * i], score_[2 * i + 1]);
  }

  /// The first step of a tile or, where the tile is begun, of a run of steps: nothing overlaps its
  /// QK.
  template <bool kTileBegun>
  __device__ __forceinline__ void begin() {
    constexpr bool kWaitsForTurn = !kTileBegun && T::kPingPong;
    if constexpr (kWaitsForTurn) wait_for_turn();
    issue_qk();
    tile::mma_wait<0>();
    tile::settle(score_);
    if constexpr (kWaitsForTurn) give_turn();
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
    const Cursor before = at_;
    advance();
    wait_for_keys();
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
        release(shared_.k_ring.empty[at_.stage]);
        look_ahead();
        softmax_.update_by_series(score_, args_.transform.series_log2);
        wait_for_pv(before);
        round();
        return;
      }
    }
    prepare_scores();
    look_ahead();
    const auto rescaling = [&](const float(&rescale_factor)[2]) {
      tile::mma_wait<0>();
      settle_o_acc();
      rescale(rescale_factor);
    };
    if constexpr (T::kPingPong) {
      softmax_.update_by_max(score_, exponents(), rescaling);
    } else {
      if (!has_flag(kHasRowMaxes)) {
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
    return {args_.exponents.scale, T::kTransformsScores ? args_.exponents.ceiling : INFINITY};
  }

  /// Whether no score of the step is hidden, all are near zero under their cap, and none needs
  /// another row max: then nothing has to be checked after the transform.
  __device__ __forceinline__ bool fits_near_zero() {
    const float largest = largest_of(score_);
    const bool fits =
        largest <= args_.transform.near && softmax_.fits(largest * args_.transform.slope_log2);
    return !has_flag(kMasked) && !tile::agreed(!fits);
  }

  /// Records whether all rows have a row max.
  __device__ __forceinline__ void check_row_maxes() {
    if constexpr (T::kPingPong) return;
    if (!tile::agreed(!softmax_.seen(0) | !softmax_.seen(1))) flags_ |= kHasRowMaxes;
  }

  /// Recomputes the step's scores while no PV is running; the O accumulator is spilled meanwhile.
  /// The step's K is still there, as the V of the step before has not been released.
  __device__ __forceinline__ void rescore(const auto& take) {
    tile::mma_wait<0>();
    settle_o_acc();
    volatile float saved_o_acc[T::kDimV / 2],
        saved_row_sum[2] = {softmax_.row_sum[0], softmax_.row_sum[1]};
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) saved_o_acc[i] = o_acc_[i];
    const int mine = thread();
    score_again<T>(score_, queries_of(tile_), first_row() + mine / 32 * 16,
                   shared_.rings.keys(at_.stage), mine % 32);
    transform_and_mask();
    softmax_.row_sum[0] = saved_row_sum[0], softmax_.row_sum[1] = saved_row_sum[1];
    float factor[2];
    take([&](const float(&rescale_factor)[2]) {
      factor[0] = rescale_factor[0], factor[1] = rescale_factor[1];
    });
    // The branch keeps the O accumulator from being reloaded while P still occupies its registers.
    if (!kFewRegisters || tile::agreed(!(score_[0] < 0.0f))) {
#pragma unroll
      for (int i = 0; i < T::kDimV / 2; ++i) o_acc_[i] = saved_o_acc[i] * factor[i / 2 % 2];
    }
    load_q_registers();
  }

  __device__ __forceinline__ void wait_for_pv(Cursor of) {
    tile::mma_wait<0>();
    settle_o_acc();
    release(shared_.v_ring.empty[of.stage]);
  }

  /// A whole tile of a row group with its own list: runs of steps that it needs, with skipped steps
  /// between them. Nothing is multiplied and no stage is held while steps are skipped.
  __device__ __forceinline__ void walk_row_group() {
    softmax_ = {};
    clear_o_acc();
    wait_for_keys();
    while (advance_to_needed()) {
      begin<true>();
      Cursor before = at_;
      while (advance(), !is_last()) {
        wait_for_keys();
        if (!is_needed()) break;
        overlap(before);
        before = at_;
      }
      end(before);
      if (is_needed()) break;  // and was the last one
    }
    finish();
    end_tile();
  }

  /// The last PV of a tile, overlapped with the first QK of the next one. False if no tile follows
  /// or this one is split across CTAs.
  __device__ __forceinline__ bool start_next_tile() {
    if constexpr (T::kConsumersStore) release(shared_.q_ring.empty[0]);
    const Cursor before = at_;
    if constexpr (T::kLeavesSooner) skip_rest();
    if (!kOverlapsTiles || !is_unsplit(tile_) || !has_tile(tile_ + 1) ||
        (T::kSkipsTiles && !has_rows(tile_ + 1))) {
      end(before);
      finish();
      advance();
      end_tile();
      return false;
    }
    advance();
    end_tile();
    load_q_registers();
    wait_for_keys();
    skip_leading();
    issue_qk();
    issue_pv(before);
    tile::mma_wait<1>();
    tile::settle(score_);
    prepare_scores();
    Softmax former = softmax_;
    softmax_ = {};
    look_ahead();
    // The O accumulator is still the former tile's, so nothing is rescaled.
    softmax_.start(score_, exponents());
    tile::settle(score_);  // P is there before the wait
    check_row_maxes();
    wait_for_pv(before);
    round();
    take_row_sums(former);
    store(tile_ - 1, former);
    release_result(tile_ - 1);
    clear_o_acc();
    return true;
  }

  __device__ __forceinline__ void clear_o_acc() {
#pragma unroll
    for (float& value : o_acc_) value = 0.0f;
    if constexpr (T::kCounts) {
#pragma unroll
      for (float& value : p_sum_) value = 0.0f;
    }
  }

  /// Transforms and masks the scores, then releases the stage's K.
  __device__ __forceinline__ void prepare_scores() {
    transform_and_mask();
    release(shared_.k_ring.empty[at_.stage]);
  }

  __device__ __forceinline__ void transform_and_mask() {
    if constexpr (T::kTransformsScores) transform_scores(score_, args_.transform);
    if (has_flag(kMasked)) {
      const int in_split = thread_of_block() % (T::kSplitConsumers * kWarpgroup);
      const int row = in_split / 32 * 16 + in_split % 32 / 4;
      mask_scores<T>(score_, shared_.stage_steps[at_.stage], descriptor_of(tile_), args_, row,
                     thread() % 4 * 2);
    }
  }

  /// Ends a tile: its O accumulator becomes the result, or a partial result to be merged.
  __device__ __forceinline__ void finish() {
    take_row_sums(softmax_);
    if constexpr (T::kKvSplits > 1) {
      if (kv_split() > 0) return send_partial();
      merge_splits();
    }
    bool stores = true;
    if (!is_unsplit(tile_)) stores = merge_parts();
    if (stores) store(tile_, softmax_);
    release_result(tile_);
  }

  __device__ __forceinline__ void send_partial() {
    const int place = consumer_ - T::kSplitConsumers;
    tile::wait(&shared_.split_exchange.empty[place], tile_ % 2 ^ 1);
    store_partial(shared_.split_exchange.partials[place], o_acc_, softmax_, thread());
    release(shared_.split_exchange.full[place]);
  }

  __device__ __forceinline__ void merge_splits() {
#pragma unroll
    for (int place = consumer_; place < T::kSplitPartials; place += T::kSplitConsumers) {
      tile::wait(&shared_.split_exchange.full[place], tile_ % 2);
      add_partial<true>(shared_.split_exchange.partials[place], o_acc_, softmax_, thread());
      release(shared_.split_exchange.empty[place]);
    }
  }

  /// Stores this CTA's partial result of a split tile. True for the CTA that finishes last: it then
  /// has the merged result of all parts, added in an order that does not depend on which CTA it is.
  __device__ __forceinline__ bool merge_parts() {
    const planning::KvShare& share = descriptor_of(tile_).share;
    bool& merges = shared_.merges[tile_ % T::kQueryStages][consumer_];
    auto* partials = static_cast<typename T::Partial*>(args_.partials) + consumer_;
    store_partial(partials[(share.slot + share.part) * T::kSplitConsumers], o_acc_, softmax_,
                  thread());
    __threadfence();
    sync_warpgroup();
    if (thread() == 0) {
      const int before = count_up(&args_.merge_counts[share.tile * T::kSplitConsumers + consumer_],
                                  args_.walk.tag, share.parts, false);
      merges = before == share.parts - 1;
      __threadfence();
    }
    sync_warpgroup();
    if (!tile::agreed(merges)) return false;
    softmax_ = {};
    clear_o_acc();
#pragma unroll 1
    for (int part = 0; part < share.parts; ++part)
      add_partial<false>(partials[(share.slot + part) * T::kSplitConsumers], o_acc_, softmax_,
                         thread());
    return true;
  }

  /// Stores the result, or stages it for the store warp.
  __device__ __forceinline__ void store(unsigned tile, const Softmax& softmax) {
    const TileDescriptor& descriptor = descriptor_of(tile);
    const int thread = this->thread();
    const RowPlaces rows(args_, descriptor, first_row(), thread);
    const Normalised normalised(args_, softmax, rows);
    const bool wide = args_.result.dtype == DType::f32;
    if (wide) {
      store_f32<T::kDimV>(args_, descriptor, rows, o_acc_, normalised.factor, thread);
    } else if constexpr (T::kConsumersStore) {
      store_16bit<T::kDimV>(args_, descriptor, rows, o_acc_, normalised.factor, thread);
    } else {
      sync_warpgroup();  // all warps have read their Q: the last scores are done
      stage_results<T>(args_, queries_of(tile), o_acc_, normalised.factor, first_row(), thread);
    }
    store_lse(args_, descriptor, rows, normalised.lse, thread);
    if (T::kConsumersStore || wide) return;
    if (tile::agreed(uses_tma_store<T>(args_, descriptor, first_row()))) {
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    } else {
      sync_warpgroup();
      copy_staged<T>(args_, descriptor, queries_of(tile), first_row(), thread);
    }
  }

  float score_[T::kN / 2];
  OAccumulator<T::kDimV> o_acc_;
  float p_sum_[4];  // row sums, two per row, where the PV MMA sums P
  std::uint32_t p_[T::kN / 4];
  std::uint32_t q_registers_[T::kQRegisterSteps > 0 ? T::kQRegisterSteps * 4 : 1];
  Softmax softmax_;
};

}  // namespace tessera::cuda::sm90::attention
