#pragma once

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/common/copy.cuh"
#include "src/kernels/cuda/sm90/attention/consumer_mma.cuh"
#include "src/kernels/cuda/sm90/attention/consumer_pipeline.cuh"
#include "src/kernels/cuda/sm90/attention/merge.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"
#include "src/walk/turned_values.hpp"

// The consumer warpgroups of FP8.
namespace tessera::cuda::sm90::attention {

/// One warpgroup: 64 rows of each tile. The tensor cores' sums of FP8 have few bits: what a long
/// row adds late would be lost. So the PV of each step is summed up by itself, in the registers
/// of its scores, and added to the O accumulator in f32. A warpgroup waits for each of its
/// MMAs; the other warpgroups compute meanwhile.
///
/// Plain instances do not look for the largest score of a step. They compute P with the row maxes
/// that they have, and a P above 448 saturates. An MMA of P with ones, beside PV, yields the row
/// sums of P as it was rounded. They normalise out, and show whether a P saturated; then the step's
/// MMAs are not added, and the warpgroup computes the step again with higher row maxes. LSE needs
/// the sums of P before it was rounded, which are added up only where it is asked for (`kWithLse`).
template <class T, bool kWithLse>
class NarrowConsumer {
 public:
  __device__ __forceinline__ NarrowConsumer(const Arguments& args, typename T::Shared& shared,
                                            int consumer)
      : pipe_(args, shared, consumer) {}

  __device__ __forceinline__ void run() {
    while (pipe_.has_tile(pipe_.tile)) {
      const bool computes = !T::kSkipsTiles || pipe_.has_rows(pipe_.tile);
      if (!computes) {
        pipe_.next_needed_step(false);
      } else if constexpr (T::kOverlapsSteps) {
        walk_overlapped();
      } else if constexpr (T::kOwnLists) {
        walk_row_group();
      } else {
        walk();
      }
      pipe_.release(pipe_.shared.q_ring.empty[pipe_.tile % T::kQueryStages]);
      if (computes) finish();
      pipe_.release_result(pipe_.tile);
      pipe_.end_tile();
    }
  }

 private:
  using Element = typename T::Element;
  using Pipe = ConsumerPipeline<T>;
  static_assert(T::kKvSplits == 1);
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr int kPieceScores = planning::kKeyPiece / 2;
  // Columns of V that are multiplied at once.
  static constexpr int kParts = (T::kDimV + T::kPvColumns - 1) / T::kPvColumns,
                       kPart = T::kDimV / kParts;
  static_assert(kPart * kParts == T::kDimV && kPart % 32 == 0);
  static constexpr bool kSumsByMma = !T::kTransformsScores;
  // Whether a tile's first step sets O; else it adds to zeros. One row spills.
  static constexpr bool kFirstSetsO = kSumsByMma && !(T::kConsumers > 2 && T::kDim > 128);
  // The sum of a row's P in one step is below this if no P saturated.
  static constexpr float kMaxSum = 448.0f;
  // Row maxes found by the scores are raised until no such sum exceeds 2^kTargetSum, so that later
  // steps fit. What is rounded to zero then is small beside the sum.
  static constexpr int kTargetSum = 7;

  __device__ __forceinline__ void walk() {
    pipe_.next_needed_step();
    while (true) {
      if (!step()) continue;
      if (pipe_.is_last()) break;
      pipe_.advance();
      pipe_.wait_for_keys();
    }
    pipe_.leave_tile();
  }

  /// A tile for a consumer whose row group has its own list: it skips the steps that only other
  /// lists need.
  __device__ __forceinline__ void walk_row_group() {
    if (!begin_walk()) return;
    while (true) {
      if (!step()) continue;
      const bool last = pipe_.has_flag(kLastOfTile);
      pipe_.advance();
      if (last || !pipe_.next_needed_step()) return;
    }
  }

  /// Goes to the first step of a tile that the consumer needs. Without one, O is zero; else the
  /// step starts the tile.
  __device__ __forceinline__ bool begin_walk() {
    if (pipe_.next_needed_step()) return true;
    start_tile();
    if constexpr (kFirstSetsO) clear<T::kDimV>(o_acc_);
    return false;
  }

  using Cursor = typename Pipe::Cursor;

  /// A tile whose steps overlap: runs of steps that the consumer needs. The first step of a run is
  /// computed by itself, and of a tile it finds row maxes. So is a step whose P was too large.
  __device__ __forceinline__ void walk_overlapped() {
    if (!begin_walk()) return;
    while (true) {
      if (!step()) continue;
      if (ends_tile() || !pipe_.next_needed_step()) return;
      begin_step();
      bool last, ends, fits = true;
      while (last = pipe_.is_last(), ends = pipe_.has_flag(kLastOfTile), pipe_.advance(), !last) {
        pipe_.wait_for_keys();
        if (T::kSkipsSteps && !pipe_.is_needed()) break;
        fits = overlap();
        if (!fits) break;
      }
      if (fits) fits = finish_step();
      if (!fits) {
        pipe_.at = before();
        pipe_.wait_for_keys();
        pipe_.flags |= Pipe::kAgain;
      } else if (last) {
        if (T::kLeavesSooner && !ends) pipe_.next_needed_step(false);
        return;
      } else if (!pipe_.next_needed_step()) {
        return;
      }
    }
  }

  /// Goes on to the next step and returns false; if this was the last step that the consumer needs,
  /// leaves the tile and returns true.
  __device__ __forceinline__ bool ends_tile() {
    if (pipe_.is_last()) {
      pipe_.leave_tile();
      return true;
    }
    pipe_.advance();
    return false;
  }

  /// The step before the current one.
  __device__ __forceinline__ Cursor before() const {
    Cursor cursor = pipe_.at;
    if (cursor.stage == 0) cursor.stage = T::kStages, cursor.parity ^= 1;
    --cursor.stage;
    return cursor;
  }

  /// Scores and P of the current step while no MMA runs.
  __device__ __forceinline__ void begin_step() {
    multiply_qk();
    finish_scores();
    softmax_.compute_p(score_, own(pipe_.shared.rows.exponents));
    if constexpr (kWithLse) add_up_step();
    round_p();
  }

  // While steps overlap: columns of V that are multiplied at once.
  static constexpr int kAtOnce = T::kConsumers > 2 ? 32 : std::min(T::kDimV, 64);
  static constexpr int kTimes = T::kDimV / kAtOnce;

  /// PV of the step before, and the current step's scores and P. Returns false if some P of the
  /// step before was too large.
  __device__ __forceinline__ bool overlap() {
    issue_qk();
    float sums[kAtOnce / 2];
    issue_pv(0, sums);
    tile::mma_wait<1>();
    tile::settle(score_);
    finish_scores();
    // Words of P that are rounded meanwhile, and their scores.
    constexpr int kHalves = kTimes > 1 ? 2 : 1, kEarly = T::kPvMmas * 4 / kHalves;
    constexpr int kScores = T::kN / 2 / kHalves;
    static_assert(kScores % kPieceScores == 0);
    std::uint32_t early[T::kPvMmas * 4];
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      if (i < kHalves)
        softmax_.compute_p(score_, own(pipe_.shared.rows.exponents), i * kScores,
                           (i + 1) * kScores);
      if (i == 0) {
        round_p(early, 0, kEarly);
        // Never taken, as no P is negative. The compiler does not move the wait for PV above a
        // branch, so P is computed while PV runs.
        std::uint32_t signs = 0;
#pragma unroll
        for (int word = 0; word < kEarly; ++word) signs |= early[word];
        if (agreed((signs & 0x80808080) != 0)) asm volatile("nanosleep.u32 20;" ::: "memory");
      }
      if (!take_pv(i, sums)) return false;
      if (i + 1 < kTimes) issue_pv(i + 1, sums);
    }
    end_step();
    if constexpr (kWithLse) add_up_step();
#pragma unroll
    for (int word = 0; word < kEarly; ++word) p_[word] = early[word];
    round_p(p_, kEarly, T::kPvMmas * 4);
    return true;
  }

  /// PV of the step before, alone.
  __device__ __forceinline__ bool finish_step() {
    float sums[kAtOnce / 2];
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      issue_pv(i, sums);
      if (!take_pv(i, sums)) return false;
    }
    end_step();
    return true;
  }

  /// Starts part `part` of the PV of the step before; the first part also the sums of its P.
  __device__ __forceinline__ void issue_pv(int part, float (&sums)[kAtOnce / 2]) {
    const Cursor of = before();
    if (part == 0) tile::wait(&pipe_.shared.v_ring.full[of.stage], of.parity);
    const std::uint64_t v = pipe_.shared.values[0].by_columns(0) +
                            of.stage * (T::Values::kBytes >> 4) +
                            (part * kAtOnce * T::Values::kLineBytes >> 4);
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    tile::settle(sums);
    tile::settle(p_sum_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kPvMmas; ++i) {
      tile::mma<Element, kAtOnce, tile::Major::k>(sums, p_ + i * 4,
                                                  v + T::Values::columns_of_mma(i), i == 0);
      if (part == 0)
        tile::mma<Element, 8, tile::Major::k>(p_sum_, p_ + i * 4, pipe_.shared.ones.by_columns(0),
                                              i == 0);
    }
    tile::mma_commit();
  }

  /// Waits for a part of the PV and adds it to O. Does not add it and returns false if some P was
  /// too large.
  __device__ __forceinline__ bool take_pv(int part, float (&sums)[kAtOnce / 2]) {
    tile::mma_wait<0>();
    tile::settle(sums);
    tile::settle(p_sum_);
    if (part == 0 && any_of_warpgroup(p_sum_[0] >= kMaxSum | p_sum_[2] >= kMaxSum)) return false;
#pragma unroll
    for (int i = 0; i < kAtOnce / 2; ++i) o_acc_[part * kAtOnce / 2 + i] += sums[i];
    return true;
  }

  /// Releases the step before, whose PV is added, and adds its sums of P.
  __device__ __forceinline__ void end_step() {
    pipe_.release(pipe_.shared.k_ring.empty[before().stage]);
    pipe_.release(pipe_.shared.v_ring.empty[before().stage]);
    add_row_sums();
  }

  __device__ __forceinline__ void start_tile() {
    softmax_ = {};
    if constexpr (!kFirstSetsO) clear<T::kDimV>(o_acc_);
    const Arguments& args = pipe_.args;
    const TileDescriptor& tile = pipe_.descriptor_of(pipe_.tile);
    if (!args.factors_by_step && pipe_.arrives) {  // one lane of the warp
      float2& factors = own_factors();
      request(factors.x, args.k_factors, tile.batch, tile.kv_head, 0);
      request(factors.y, args.v_factors, tile.batch, tile.kv_head, 0);
    }
    const RowPlaces rows(args.walk, tile, pipe_.first_row(), pipe_.thread());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool exists = rows.query[half] < tile.q_length;  // else any factor will do
      const int row = exists ? tile.q_begin + rows.query[half] : 0;
      const int head = exists ? rows.head[half] : tile.head;
      request(own(pipe_.shared.rows.exponents).scale[half], args.q_factors, tile.batch, head, row);
    }
    if constexpr (kSumsByMma && kWithLse) own(pipe_.shared.rows.sums) = {0.0f, 0.0f};
  }

  /// The scales of the rows, from the factors that `start_tile` has requested.
  __device__ __forceinline__ void set_scales() {
    wait_for_factors();
    RowExponents& exponents = own(pipe_.shared.rows.exponents);
    const float of_keys = pipe_.args.factors_by_step ? 1.0f : own_factors().x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = of_keys * exponents.scale[half];
      if constexpr (T::kTransformsScores) {
        // `transform` multiplies by the scale of the scores, whether or not there is a softcap.
        factor_[half] = factor, exponents.scale[half] = kLog2e;
      } else {  // hidden scores, of -inf, have to stay so
        const float scale = pipe_.args.exponents.scale * factor;
        exponents.scale[half] = scale == 0.0f ? 1e-37f : scale;
      }
    }
  }

  /// Starts the copy of a factor to shared memory.
  __device__ __forceinline__ static void request(float& to, const FactorsOf<true>& factors, int at,
                                                 int head, int row) {
    if (factors.data)
      copy_word(tile::shared_address(&to), factors.place(at, head, row), true);
    else
      to = 1.0f;
  }
  __device__ __forceinline__ static void wait_for_factors() {
    wait_for_copies();
    __syncwarp();
  }
  /// The factors of the tile's keys and values, which a warp's lanes share.
  __device__ __forceinline__ float2& own_factors() {
    return pipe_.shared.rows.factors[thread_of_block() / 32];
  }

  /// Returns false if the step has to be computed again, because P was too large.
  __device__ __forceinline__ bool step() {
    const bool first = !pipe_.has_flag(Pipe::kHasRowMaxes);
    const bool finds_max = T::kTransformsScores || first || pipe_.has_flag(Pipe::kAgain);
    issue_qk();
    if (first) start_tile();  // while QK runs
    tile::mma_wait<0>();
    tile::settle(score_);
    if (first) set_scales();
    finish_scores();
    const RowExponents exponents = own(pipe_.shared.rows.exponents);
    if constexpr (T::kTransformsScores) {
      softmax_.update_by_max(score_, exponents, [&](const float(&factor)[2]) { rescale(factor); });
      const float of_values = weigh();
      round_p();
      multiply_pv({of_values, of_values}, [] { return true; });
      pipe_.flags |= Pipe::kHasRowMaxes;
      return true;
    } else {
      if (finds_max)
        softmax_.raise_row_maxes_to(score_, exponents,
                                    [&](const float(&factor)[2]) { rescale(factor); });
      softmax_.compute_p(score_, exponents);
      if constexpr (kWithLse) add_up_step();
      round_p();
      float of_step[2] = {1.0f, 1.0f};
      const bool fits = multiply_pv(of_step, [&] {
        if (!finds_max && any_of_warpgroup(p_sum_[0] >= kMaxSum | p_sum_[2] >= kMaxSum))
          return false;
        add_row_sums();
        if (finds_max) {  // so that later steps fit
          const float total[2] = {p_sum_[0], p_sum_[2]};
          softmax_.raise_row_maxes_by<kTargetSum>(total, [&](const float(&factor)[2]) {
            rescale(factor);
            of_step[0] = factor[0], of_step[1] = factor[1];
          });
        }
        return true;
      });
      pipe_.flags |= fits ? Pipe::kHasRowMaxes : Pipe::kAgain;
      return fits;
    }
  }

  /// Adds the sums of a step's P.
  __device__ __forceinline__ void add_row_sums() {
#pragma unroll
    for (int half = 0; half < 2; ++half)  // a quarter for each lane of the quad
      softmax_.row_sum[half] = fmaf(0.25f, p_sum_[half * 2], softmax_.row_sum[half]);
    if constexpr (kWithLse) add_step();
  }

  /// For LSE: sums of this thread's columns of P, as long as P is not rounded.
  __device__ __forceinline__ void add_up_step() {
    float total[2];
    Softmax::sum_p(score_, total);
    own(pipe_.shared.rows.step_sums) = {total[0], total[1]};
  }

  /// Adds them to those of the steps before.
  __device__ __forceinline__ void add_step() {
    const float2 step = own(pipe_.shared.rows.step_sums);
    float2& sums = own(pipe_.shared.rows.sums);
    sums = {sums.x + step.x, sums.y + step.y};
  }

  /// From Q K^T to masked scores.
  __device__ __forceinline__ void finish_scores() {
    if constexpr (T::kTransformsScores) transform();
    if (pipe_.has_flag(kMasked)) {
      const int mine = pipe_.first_row() + pipe_.thread() / 32 * 16 + pipe_.thread() % 32 / 4;
      const planning::BitsOfLane bits(pipe_.args.v_by_keys);
      mask_scores<T::kListRows, false>(score_, step_of_stage(), pipe_.descriptor_of(pipe_.tile),
                                       pipe_.args.walk, pipe_.args.masks, mine,
                                       bits.first_key(pipe_.thread() % 4), -INFINITY, bits);
    }
  }

  /// This thread's element of an array in shared memory.
  __device__ __forceinline__ static auto& own(auto& of_threads) {
    return of_threads[thread_of_block()];
  }

  __device__ __forceinline__ bool any_of_warpgroup(bool value) {
    return agreed(tile::any_at(T::kWarpgroupBarrier + static_cast<unsigned>(pipe_.consumer),
                               kWarpgroup, value));
  }

  /// Whether no step of the tile has set O.
  __device__ __forceinline__ bool is_first() const {
    return kFirstSetsO && !pipe_.has_flag(Pipe::kHasRowMaxes);
  }

  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
    if (!is_first()) {
#pragma unroll
      for (int i = 0; i < T::kDimV / 2; ++i) o_acc_[i] *= factor[i / 2 % 2];
    }
    if constexpr (kSumsByMma && kWithLse) {
      float2& sums = own(pipe_.shared.rows.sums);
      sums = {sums.x * factor[0], sums.y * factor[1]};
    }
  }

  __device__ __forceinline__ void round_p() { round_p(p_, 0, T::kPvMmas * 4); }
  /// Words `begin` to `end` of P.
  __device__ __forceinline__ void round_p(std::uint32_t (&p)[T::kPvMmas * 4], int begin,
                                          int end) const {
    // Four adjacent keys of V (`turned_key`): two scores, and two that lie half a piece further.
    constexpr int kOfPiece = planning::kKeyPiece / 16, kFurther = kPieceScores / 2;
#pragma unroll
    for (int i = 0; i < T::kN / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const two = score_ + i / kOfPiece * kPieceScores + i % kOfPiece * 4 + half * 2;
        const int word = i / 2 * 4 + i % 2 * 2 + half;
        if (word >= begin && word < end)
          p[word] = T::Precision::pack(two[0], two[1], two[kFurther], two[kFurther + 1]);
      }
  }

  /// The descriptor of the current step; of its K's stage until that is released.
  __device__ __forceinline__ const typename T::Step& step_of_stage() const {
    return pipe_.shared.stage_steps[pipe_.at.stage];
  }

  /// Multiplies the scores by the factors of their queries and keys, and caps them.
  __device__ __forceinline__ void transform() {
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece) {
      const float of_keys = pipe_.args.factors_by_step ? step_of_stage().k_factor[piece] : 1.0f;
#pragma unroll
      for (int i = 0; i < kPieceScores; ++i)
        score_[piece * kPieceScores + i] *= factor_[i / 2 % 2] * of_keys;
    }
    transform_scores(score_, pipe_.args.transform);
  }

  /// Multiplies P by the factors of its values, in units of the step's largest one, which is
  /// returned.
  __device__ __forceinline__ float weigh() {
    if (!pipe_.args.factors_by_step) return 1.0f;
    const auto& factors = step_of_stage().v_factor;
    float largest = 0.0f;
#pragma unroll
    for (const float factor : factors) largest = fmaxf(largest, fabsf(factor));
    if (!(largest > 0.0f)) largest = 1.0f;
    const float inverse = 1.0f / largest;
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
#pragma unroll
      for (int i = 0; i < kPieceScores; ++i)
        score_[piece * kPieceScores + i] *= factors[piece] * inverse;
    return largest;
  }

  __device__ __forceinline__ void multiply_qk() {
    issue_qk();
    tile::mma_wait<0>();
    tile::settle(score_);
  }
  __device__ __forceinline__ void issue_qk() {
    const std::uint64_t q = pipe_.shared.q[0].by_columns(pipe_.first_row()) +
                            pipe_.tile % T::kQueryStages * (T::Queries::kBytes >> 4);
    const std::uint64_t k =
        pipe_.shared.keys[0].by_columns(0) + pipe_.at.stage * (T::Keys::kBytes >> 4);
    tile::settle(score_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kQkMmas; ++i)
      tile::mma<Element, T::kN, tile::Major::k, tile::Major::k>(
          score_, q + T::Queries::columns_of_mma(i), k + T::Keys::columns_of_mma(i), i == 0);
    tile::mma_commit();
  }

  /// O += factor * P V, or O = factor * P V in a tile's first step, with a factor for each row, and
  /// releases the stage. Does nothing and returns false if `fits`, which is called when the first
  /// PV and the row sums are done, and may set the factors, returns false.
  __device__ __forceinline__ bool multiply_pv(const float (&factor)[2], const auto& fits) {
    tile::wait(&pipe_.shared.v_ring.full[pipe_.at.stage], pipe_.at.parity);
    const std::uint64_t v =
        pipe_.shared.values[0].by_columns(0) + pipe_.at.stage * (T::Values::kBytes >> 4);
    float sums[kPart / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const std::uint64_t of_part = v + (part * kPart * T::Values::kLineBytes >> 4);
      tile::settle(sums);
      if constexpr (kSumsByMma) tile::settle(p_sum_);
      tile::mma_fence();
#pragma unroll
      for (int i = 0; i < T::kPvMmas; ++i) {
        tile::mma<Element, kPart, tile::Major::k>(sums, p_ + i * 4,
                                                  of_part + T::Values::columns_of_mma(i), i == 0);
        if constexpr (kSumsByMma)
          if (part == 0)
            tile::mma<Element, 8, tile::Major::k>(p_sum_, p_ + i * 4,
                                                  pipe_.shared.ones.by_columns(0), i == 0);
      }
      tile::mma_commit();
      tile::mma_wait<0>();
      tile::settle(sums);
      if constexpr (kSumsByMma) tile::settle(p_sum_);
      if (part == 0 && !fits()) return false;
      if (part == kParts - 1) {
        pipe_.release(pipe_.shared.k_ring.empty[pipe_.at.stage]);
        pipe_.release(pipe_.shared.v_ring.empty[pipe_.at.stage]);
      }
      float* const o_of_part = o_acc_ + part * kPart / 2;
      if (is_first()) {
#pragma unroll
        for (int i = 0; i < kPart / 2; ++i) o_of_part[i] = factor[i / 2 % 2] * sums[i];
      } else {
#pragma unroll
        for (int i = 0; i < kPart / 2; ++i)
          o_of_part[i] = fmaf(factor[i / 2 % 2], sums[i], o_of_part[i]);
      }
    }
    return true;
  }

  __device__ __forceinline__ void finish() {
    if constexpr (kSumsByMma) {
      const float2 sums = kWithLse ? own(pipe_.shared.rows.sums) : float2{};
      TwoSumSoftmax softmax{softmax_, {sums.x, sums.y}};
      if (!has_all_parts(softmax)) return;
      if constexpr (kWithLse)
        store(softmax);
      else
        store(static_cast<const Softmax&>(softmax));
    } else if (has_all_parts(softmax_)) {
      store(softmax_);
    }
  }
  /// Merges the parts of a split tile; false if other CTAs have yet to add theirs.
  __device__ __forceinline__ bool has_all_parts(auto& softmax) {
    return pipe_.is_unsplit(pipe_.tile) || merge_parts(pipe_, o_acc_, softmax);
  }
  __device__ __forceinline__ void store(const auto& softmax) {
    wait_for_factors();  // a consumer without steps has not
    store_tile<T, kWithLse>(pipe_, pipe_.tile, o_acc_, softmax,
                            pipe_.args.factors_by_step ? 1.0f : own_factors().y);
  }

  ConsumerPipeline<T> pipe_;
  Softmax softmax_;
  float factor_[T::kTransformsScores ? 2 : 1];  // of the queries of this thread's rows
  float score_[T::kN / 2];                      // scores, then P
  OAccumulator<T::kDimV> o_acc_;
  std::uint32_t p_[T::kPvMmas * 4];
  float p_sum_[kSumsByMma ? 4 : 1] = {};  // of the step, per row in two equal columns
};

}  // namespace tessera::cuda::sm90::attention
