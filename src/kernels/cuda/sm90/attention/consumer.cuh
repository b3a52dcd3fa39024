#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/counted_mma.cuh"
#include "src/kernels/cuda/sm90/attention/follower.cuh"
#include "src/kernels/cuda/sm90/attention/rescore.cuh"
#include "src/kernels/cuda/sm90/attention/softmax.cuh"
#include "src/kernels/cuda/sm90/attention/store.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// Warps load what the walk names into rings of keys and values; each consumer warpgroup takes 64
// rows of queries through them. Scores of a step are multiplied while the step before meets its
// values, so the tensor cores work while weights are computed.
namespace tessera::cuda::sm90::attention {

/// 16 rows x 16 columns, as wgmma takes its left operand from registers. Lane l gives the line that
/// begins at row l % 16, column l / 16 * 8.
__device__ __forceinline__ void load_blocks(std::uint32_t line, std::uint32_t* pair) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pair[0]), "=r"(pair[1]), "=r"(pair[2]), "=r"(pair[3])
               : "r"(line)
               : "memory");
}

/// One warpgroup: 64 rows of each tile.
template <class T>
class Consumer : Follower<T> {
  using Follows = Follower<T>;
  using Follows::advance, Follows::at_, Follows::args_, Follows::comes, Follows::consumer_;
  using Follows::first_row, Follows::give_back, Follows::give_turn, Follows::has_rows;
  using Follows::is_last, Follows::is_mine, Follows::is_whole, Follows::kBased, Follows::known_;
  using Follows::knows, Follows::leave_result, Follows::leave_tile, Follows::look_ahead;
  using Follows::meet, Follows::note_of, Follows::pass_by, Follows::pass_first, Follows::pass_rest;
  using Follows::pass_tile, Follows::queries_of, Follows::shared_, Follows::team, Follows::thread;
  using Follows::thread_of_block, Follows::tile_, Follows::wait_for_keys, Follows::wait_for_turn;
  using typename Follows::Cursor;

 public:
  __device__ __forceinline__ Consumer(const Arguments& args, typename T::Shared& shared,
                                      int consumer)
      : Follows(args, shared, consumer) {}

  __device__ __forceinline__ void run() {
    while (comes(tile_)) {
      if constexpr (T::kSkipsTiles) {
        if (!has_rows(tile_)) {
          pass_tile();
          continue;
        }
      }
      hold_queries();
      if constexpr (T::kOwnLists) {
        walk_line();
        continue;
      }
      wait_for_keys();
      pass_first();
      softmax_ = {};
      begin<false>();
      clear_sums();
      do {
        while (!is_last()) step();
      } while (turn());
    }
  }

 private:
  using Element = typename T::Element;
  static constexpr int kKeySteps = T::kDim / 16, kValueSteps = T::kN / 16;
  static constexpr int kReadSteps = kKeySteps - T::kHeldSteps;  // whose queries are not held

  // The next tile's scores are multiplied beside a tile's last values. Where there are teams, they
  // fill that time, and what they found would take the registers of those scores.
  static constexpr bool kCrosses = T::kQueryStages > 1 && T::kTeams == 1;

  static constexpr bool kFewRegisters = T::kConsumers > 3;

  __device__ __forceinline__ void issue_scores() {
    unsigned tile = tile_;
    if constexpr (kFewRegisters) asm volatile("" : "+r"(tile));  // nothing is kept of it
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
      tile::mma<Element, T::kN, tile::Major::k>(score_, held_ + (i - kReadSteps) * 4,
                                                k + T::Keys::column_step(i), i == 0);
    tile::mma_commit();
  }

  /// The tile's queries have come: what of them stays in registers.
  __device__ __forceinline__ void hold_queries() {
    if constexpr (T::kHeldSteps == 0) return;
    const int mine = thread(), lane = mine % 32;
    const std::uint32_t at = tile::shared_address(
        queries_of(tile_).chunk(first_row() + mine / 32 * 16 + lane % 16, lane / 16 * 8));
#pragma unroll
    for (int i = 0; i < T::kHeldSteps; ++i)
      load_blocks(T::Queries::to_column(at, (kReadSteps + i) * 16), held_ + i * 4);
  }

  /// The values of a step whose weights are ready.
  __device__ __forceinline__ void issue_values(Cursor at) {
    tile::wait(&shared_.v_ring.full[at.stage], at.parity);
    const std::uint64_t v = shared_.rings.values_by_rows(at.stage);
    settle_sums();
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kValueSteps; ++i) {
      const std::uint32_t* const weights = weight_ + i * 4;
      const std::uint64_t values = v + i * T::Values::kRowStep;
      if constexpr (T::kCounts) {
        counting_mma<Element, T::kDimV>(sum_, count_, weights, values);
      } else {
        tile::mma<Element, T::kDimV, tile::Major::mn>(sum_, weights, values, false);
      }
    }
    tile::mma_commit();
  }

  __device__ __forceinline__ void settle_sums() {
    tile::settle(sum_);
    if constexpr (T::kCounts) tile::settle(count_);
  }

  __device__ __forceinline__ void rescale(const float (&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) sum_[i] *= shrink[i / 2 % 2];
    if constexpr (T::kCounts) count_[0] *= shrink[0], count_[2] *= shrink[1];
  }

  /// Sums of weights become the softmax's: those of whole rows, which four lanes share.
  __device__ __forceinline__ void take_counts(Softmax& softmax) const {
    if constexpr (T::kCounts)
      softmax.sum[0] = 0.25f * count_[0], softmax.sum[1] = 0.25f * count_[2];
  }

  __device__ __forceinline__ void round() {
    constexpr DType kType = std::is_same_v<Element, __nv_bfloat16> ? DType::bf16 : DType::f16;
#pragma unroll
    for (int i = 0; i < T::kN / 4; ++i)
      weight_[i] = product::pack(kType, score_[2 * i], score_[2 * i + 1]);
  }

  /// First scores, of a tile or, where it is begun, of a run of steps, have nothing to be
  /// multiplied beside.
  template <bool kBegun>
  __device__ __forceinline__ void begin() {
    constexpr bool kTakesTurns = !kBegun && T::kByMaxima;
    if constexpr (kTakesTurns) wait_for_turn();
    issue_scores();
    tile::mma_wait<0>();
    tile::settle(score_);
    if constexpr (kTakesTurns) give_turn();
    adjust();
    if constexpr (kBegun) {
      softmax_.take_by_maxima(score_, exponents(),
                              [&](const float(&shrink)[2]) { rescale(shrink); });
    } else {
      softmax_.take_first(score_, exponents());
    }
    look_at_bases();
    round();
  }

  /// And so have last values.
  __device__ __forceinline__ void end(Cursor at) {
    issue_values(at);
    wait_for_sums(at);
  }

  __device__ __forceinline__ void step() {
    const Cursor before = at_;
    advance();
    wait_for_keys();
    overlap(before);
  }

  /// A step's scores are multiplied while the weights of the one before meet their values.
  __device__ __forceinline__ void overlap(Cursor before) {
    issue_scores();
    issue_values(before);
    tile::mma_wait<1>();
    tile::settle(score_);
    if constexpr (T::kMapped) {
      if (fits_near_zero()) {
        give_back(shared_.k_ring.empty[at_.stage]);
        look_ahead();
        softmax_.take_by_series(score_, args_.map.series_log2);
        wait_for_sums(before);
        round();
        return;
      }
    }
    adjust();
    look_ahead();
    const auto rescaling = [&](const float(&shrink)[2]) {
      tile::mma_wait<0>();
      settle_sums();
      rescale(shrink);
    };
    if constexpr (T::kByMaxima) {
      softmax_.take_by_maxima(score_, exponents(), rescaling);
    } else {
      if (!knows(kBased)) {
        softmax_.find_bases(score_, exponents());
        look_at_bases();
      }
      softmax_.take_by_sums(score_, exponents(), rescaling,
                            [&](const auto& take) { score_once_more(take); });
    }
    wait_for_sums(before);
    round();
  }

  /// Without a map, none of them has a ceiling.
  __device__ __forceinline__ Exponents exponents() const {
    return {args_.exponents.scale, T::kMapped ? args_.exponents.ceiling : INFINITY};
  }

  /// Whether a step's scores are all seen, and near zero under their cap, and none asks for another
  /// base: then nothing has to be looked at once they are mapped.
  __device__ __forceinline__ bool fits_near_zero() {
    const float largest = largest_of(score_);
    const bool fits = largest <= args_.map.near && softmax_.fits(largest * args_.map.slope_log2);
    return !knows(kMasked) && !tile::agreed(!fits);
  }

  /// Whether all rows have seen a key.
  __device__ __forceinline__ void look_at_bases() {
    if constexpr (T::kByMaxima) return;
    if (!tile::agreed(!softmax_.seen(0) | !softmax_.seen(1))) known_ |= kBased;
  }

  /// The step's scores once more, to be taken while no values are being multiplied. Sums make room
  /// for them. Its keys are still there, as the values of the step before have not been given back.
  __device__ __forceinline__ void score_once_more(const auto& take) {
    tile::mma_wait<0>();
    settle_sums();
    volatile float parked[T::kDimV / 2], parked_state[2] = {softmax_.sum[0], softmax_.sum[1]};
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) parked[i] = sum_[i];
    const int mine = thread();
    score_again<T>(score_, queries_of(tile_), first_row() + mine / 32 * 16,
                   shared_.rings.keys(at_.stage), mine % 32);
    shape();
    softmax_.sum[0] = parked_state[0], softmax_.sum[1] = parked_state[1];
    float factor[2];
    take([&](const float(&shrink)[2]) { factor[0] = shrink[0], factor[1] = shrink[1]; });
    // Behind a branch, lest sums come back before weights have left their registers.
    if (!kFewRegisters || tile::agreed(!(score_[0] < 0.0f))) {
#pragma unroll
      for (int i = 0; i < T::kDimV / 2; ++i) sum_[i] = parked[i] * factor[i / 2 % 2];
    }
    hold_queries();
  }

  __device__ __forceinline__ void wait_for_sums(Cursor of) {
    tile::mma_wait<0>();
    settle_sums();
    give_back(shared_.v_ring.empty[of.stage]);
  }

  /// All of a tile, where this consumer's line has a list of its own: runs of steps that it needs,
  /// and others between them. Nothing is multiplied and no stage is held while steps pass by.
  __device__ __forceinline__ void walk_line() {
    softmax_ = {};
    clear_sums();
    wait_for_keys();
    while (pass_by()) {
      begin<true>();
      Cursor before = at_;
      while (advance(), !is_last()) {
        wait_for_keys();
        if (!is_mine()) break;
        overlap(before);
        before = at_;
      }
      end(before);
      if (is_mine()) break;  // and was the last
    }
    finish();
    leave_tile();
  }

  /// A tile's last values, beside the first scores of the next one. False if none follows, or this
  /// one is divided.
  __device__ __forceinline__ bool turn() {
    if constexpr (T::kStoresItself) give_back(shared_.q_ring.empty[0]);
    const Cursor before = at_;
    if constexpr (T::kLeavesSooner) pass_rest();
    if (!kCrosses || !is_whole(tile_) || !comes(tile_ + 1) ||
        (T::kSkipsTiles && !has_rows(tile_ + 1))) {
      end(before);
      finish();
      advance();
      leave_tile();
      return false;
    }
    advance();
    leave_tile();
    hold_queries();
    wait_for_keys();
    pass_first();
    issue_scores();
    issue_values(before);
    tile::mma_wait<1>();
    tile::settle(score_);
    adjust();
    Softmax former = softmax_;
    softmax_ = {};
    look_ahead();
    // The sums are still the former tile's.
    softmax_.take_first(score_, exponents());
    tile::settle(score_);  // the weights are there before the wait
    look_at_bases();
    wait_for_sums(before);
    round();
    take_counts(former);
    store(tile_ - 1, former);
    leave_result(tile_ - 1);
    clear_sums();
    return true;
  }

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (float& value : sum_) value = 0.0f;
    if constexpr (T::kCounts) {
#pragma unroll
      for (float& value : count_) value = 0.0f;
    }
  }

  /// What scores become before the softmax; then the stage's keys are given back.
  __device__ __forceinline__ void adjust() {
    shape();
    give_back(shared_.k_ring.empty[at_.stage]);
  }

  __device__ __forceinline__ void shape() {
    if constexpr (T::kMapped) map_scores(score_, args_.map);
    if (knows(kMasked)) {
      const int of_team = thread_of_block() % (T::kTeamSize * kWarpgroup);
      const int row = of_team / 32 * 16 + of_team % 32 / 4;
      hide<T>(score_, shared_.notes[at_.stage], note_of(tile_), args_, row, thread() % 4 * 2);
    }
  }

  /// The tile's sums leave, as its result or for whoever joins what was found of it.
  __device__ __forceinline__ void finish() {
    take_counts(softmax_);
    if constexpr (T::kTeams > 1) {
      if (team() > 0) return hand_over();
      take_over();
    }
    bool stores = true;
    if (!is_whole(tile_)) stores = join_parts();
    if (stores) store(tile_, softmax_);
    leave_result(tile_);
  }

  __device__ __forceinline__ void hand_over() {
    const int place = consumer_ - T::kTeamSize;
    tile::wait(&shared_.handed.empty[place], tile_ % 2 ^ 1);
    put_found(shared_.handed.found[place], sum_, softmax_, thread());
    give_back(shared_.handed.full[place]);
  }

  __device__ __forceinline__ void take_over() {
#pragma unroll
    for (int place = consumer_; place < T::kHanded; place += T::kTeamSize) {
      tile::wait(&shared_.handed.full[place], tile_ % 2);
      add_found<true>(shared_.handed.found[place], sum_, softmax_, thread());
      give_back(shared_.handed.empty[place]);
    }
  }

  /// True for the last of those who share a tile: it then has what all of them found, added up in
  /// the same order whoever it is.
  __device__ __forceinline__ bool join_parts() {
    const planning::TileShare& share = note_of(tile_).share;
    bool& joins = shared_.joins[tile_ % T::kQueryStages][consumer_];
    auto* parts = static_cast<typename T::Found*>(args_.parts) + consumer_;
    put_found(parts[(share.slot + share.part) * T::kTeamSize], sum_, softmax_, thread());
    __threadfence();
    meet();
    if (thread() == 0) {
      const int before = count_up(&args_.joined[share.tile * T::kTeamSize + consumer_],
                                  args_.walk.tag, share.parts, false);
      joins = before == share.parts - 1;
      __threadfence();
    }
    meet();
    if (!tile::agreed(joins)) return false;
    softmax_ = {};
    clear_sums();
#pragma unroll 1
    for (int part = 0; part < share.parts; ++part)
      add_found<false>(parts[(share.slot + part) * T::kTeamSize], sum_, softmax_, thread());
    return true;
  }

  /// Stores sums, or puts them where the carrier takes them from.
  __device__ __forceinline__ void store(unsigned tile, const Softmax& softmax) {
    const TileNote& note = note_of(tile);
    const int thread = this->thread();
    const RowPlaces rows(args_, note, first_row(), thread);
    const Normalised normalised(args_, softmax, rows);
    const bool wide = args_.result.dtype == DType::f32;
    if (wide) {
      store_wide<T::kDimV>(args_, note, rows, sum_, normalised.factor, thread);
    } else if constexpr (T::kStoresItself) {
      store_short<T::kDimV>(args_, note, rows, sum_, normalised.factor, thread);
    } else {
      meet();  // all warps have read their queries: the last scores are done
      put_panels<T>(args_, queries_of(tile), sum_, normalised.factor, first_row(), thread);
    }
    store_lse(args_, note, rows, normalised.lse, thread);
    if (T::kStoresItself || wide) return;
    if (tile::agreed(is_carried<T>(args_, note, first_row()))) {
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    } else {
      meet();
      copy_out<T>(args_, note, queries_of(tile), first_row(), thread);
    }
  }

  float score_[T::kN / 2], sum_[T::kDimV / 2];
  float count_[4];  // sums of weights, two of each row, where multiplications add them up
  std::uint32_t weight_[T::kN / 4];
  std::uint32_t held_[T::kHeldSteps > 0 ? T::kHeldSteps * 4 : 1];
  Softmax softmax_;
};

}  // namespace tessera::cuda::sm90::attention
