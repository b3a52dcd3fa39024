#pragma once

#include <cstdint>

#include "src/cuda/sm90/attention/arrivals.cuh"
#include "src/cuda/sm90/attention/counted_mma.cuh"
#include "src/cuda/sm90/attention/rescore.cuh"
#include "src/cuda/sm90/attention/softmax.cuh"
#include "src/cuda/sm90/attention/store.cuh"
#include "src/cuda/sm90/attention/traits.cuh"
#include "src/cuda/tile/wgmma.cuh"

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
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Arguments& args, typename T::Shared& shared,
                                      int consumer)
      : args_(args), shared_(shared), consumer_(consumer), leads_(threadIdx.x % 32 == 0) {
    // Said where each has lists of its own, that all lanes are of one: else it takes registers.
    if constexpr (T::kOwnLists && !kEachLaneArrives) consumer_ = __shfl_sync(~0u, consumer, 0);
    next_.stage = team();
    advance();
  }

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
  using Cursor = tile::RingCursor<T::kStages>;
  static constexpr int kKeySteps = T::kDim / 16, kValueSteps = T::kN / 16;
  static constexpr int kReadSteps = kKeySteps - T::kHeldSteps;  // whose queries are not held

  /// The first of its 64 rows of a tile.
  __device__ __forceinline__ int first_row() const {
    return (consumer_ - team() * T::kTeamSize) * T::kRows;
  }
  __device__ __forceinline__ int team() const {
    return T::kTeams > 1 ? consumer_ / T::kTeamSize : 0;
  }
  __device__ __forceinline__ int line() const {
    return (consumer_ - team() * T::kTeamSize) / T::kConsumersALine;
  }

  // The next tile's scores are multiplied beside a tile's last values. Where there are teams, they
  // fill that time, and what they found would take the registers of those scores.
  static constexpr bool kCrosses = T::kQueryStages > 1 && T::kTeams == 1;

  // What ptxas takes a warp to agree on decides whether it keeps it together: in some rows what is
  // known of a step has to come from votes, else it is shared once more where two consumers ask.
  static constexpr bool kVotesOnNotes = T::kLeavesSooner;

  static constexpr bool kFewRegisters = T::kConsumers > 3;
  static constexpr int kTurnBarriers = 1 + T::kConsumers;  // the first of two; others are one's own

  /// To this team's next step.
  __device__ __forceinline__ void advance() {
    at_ = next_;
    next_.stage += T::kTeams;
    if (next_.stage >= T::kStages) {
      next_.stage -= T::kStages;
      next_.parity ^= 1;
    }
  }

  /// Read anew each time: neither it nor what follows from it is kept in a register.
  __device__ __forceinline__ static int thread_of_block() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }
  __device__ __forceinline__ static int thread() { return thread_of_block() % kWarpgroup; }

  /// Each warp for itself.
  __device__ __forceinline__ void give_back(std::uint64_t& empty) {
    arrive_as_warp(empty, leads_ ? 0 : 1);
  }

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

  /// Waits for the next keys. What their note says is read before there is anything to wait for.
  __device__ __forceinline__ void wait_for_keys() {
    if (!knows(kKeysCame)) tile::wait(&shared_.k_ring.full[at_.stage], at_.parity);
    known_ &= kBased;
    const typename T::Step& step = shared_.notes[at_.stage];
    if constexpr (kVotesOnNotes) {
      std::uint8_t masked = 0;
#pragma unroll
      for (const LineBits& lines : step.lines) masked |= lines.masked;
      if (tile::agreed(masked >> line() & 1)) known_ |= kMasked;
      if (tile::agreed(step.lines[0].leaves >> line() & 1)) known_ |= kLast;
      if (tile::agreed(step.lines[0].ends != 0)) known_ |= kEnds;
      if constexpr (T::kJoinsLater)
        if (tile::agreed(step.lines[0].needed >> line() & 1)) known_ |= kNeeded;
    } else {
      known_ |= __shfl_sync(~0u, step.known_to(line()), 0);
    }
  }

  /// Of the step whose keys came last, and the like.
  __device__ __forceinline__ bool knows(unsigned bit) const {
    const bool asks = !kVotesOnNotes && T::kConsumers == 2;
    return ((asks ? __shfl_sync(~0u, known_, 0) : known_) & bit) != 0;
  }
  /// Whether it is the last of its tile that this consumer needs.
  __device__ __forceinline__ bool is_last() const { return knows(kLast); }
  __device__ __forceinline__ bool is_mine() const { return knows(kNeeded); }

  /// Whether the keys of the step after this one have come, asked where there is other work to do.
  __device__ __forceinline__ void look_ahead() {
    if (tile::agreed(
            tile::ptx::mbarrier_test_wait_parity(&shared_.k_ring.full[next_.stage], next_.parity)))
      known_ |= kKeysCame;
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

  /// Two consumers that begin together would have their scores at one time, and both wait from then
  /// on: the second begins when the first has its first scores. Tiles have a barrier in turns: the
  /// first consumer may begin the next tile before the second begins this one, but no later tile.
  __device__ __forceinline__ void wait_for_turn() {
    if (tile::agreed(consumer_ == 1))
      asm volatile("barrier.cta.sync %0, 256;" ::"r"(turn_barrier()) : "memory");
  }
  __device__ __forceinline__ void give_turn() {
    if (tile::agreed(consumer_ == 0))
      asm volatile("barrier.cta.arrive %0, 256;" ::"r"(turn_barrier()) : "memory");
  }
  __device__ __forceinline__ unsigned turn_barrier() const { return kTurnBarriers + tile_ % 2; }

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

  /// Goes on to a step that this consumer needs, whose keys have come. False, and behind the tile's
  /// last step, where there is none.
  __device__ __forceinline__ bool pass_by() {
    while (!is_mine()) {
      pass();
      advance();
      if (is_last()) return false;
      wait_for_keys();
    }
    return true;
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

  /// What others need of a tile whose scores this consumer is done with. Its last values stay,
  /// which the ring has stages for.
  __device__ __forceinline__ void pass_rest() {
    while (!knows(kEnds)) {
      advance();
      wait_for_keys();
      pass();
    }
  }

  /// What others need of a tile before this consumer's rows see something of it.
  __device__ __forceinline__ void pass_first() {
    if constexpr (T::kJoinsLater) {
      while (!is_mine()) {
        pass();
        advance();
        wait_for_keys();
      }
    }
  }

  /// A tile in which this consumer has no rows.
  __device__ __forceinline__ void pass_tile() {
    do {
      wait_for_keys();
      pass();
      advance();
    } while (!knows(kEnds));
    leave_result(tile_);
    leave_tile();
  }

  /// Leaves a step to others. A stage of values is given back after it has been filled: sooner, it
  /// would count as given back by who still has the values before them.
  __device__ __forceinline__ void pass() {
    give_back(shared_.k_ring.empty[at_.stage]);
    tile::wait(&shared_.v_ring.full[at_.stage], at_.parity);
    give_back(shared_.v_ring.empty[at_.stage]);
  }

  /// Whether there is a tile of this number.
  __device__ __forceinline__ bool comes(unsigned tile) {
    wait_for_queries(tile);
    return !tile::agreed(note_of(tile).ends_all);
  }

  /// Whether any of this consumer's rows is in a tile that comes.
  __device__ __forceinline__ bool has_rows(unsigned tile) {
    return tile::agreed(note_of(tile).reaches(first_row(), args_.walk.pack_shift));
  }

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (float& value : sum_) value = 0.0f;
    if constexpr (T::kCounts) {
#pragma unroll
      for (float& value : count_) value = 0.0f;
    }
  }

  __device__ __forceinline__ void leave_tile() {
    ++tile_;
    known_ &= ~kBased;
  }

  __device__ __forceinline__ TileNote& note_of(unsigned tile) {
    return shared_.tiles[tile % T::kTileNotes];
  }
  __device__ __forceinline__ bool is_whole(unsigned tile) {
    return tile::agreed(note_of(tile).share.parts == 1);
  }
  __device__ __forceinline__ typename T::Queries& queries_of(unsigned tile) {
    return shared_.q[tile % T::kQueryStages];
  }
  __device__ __forceinline__ void wait_for_queries(unsigned tile) {
    tile::wait(&shared_.q_ring.full[tile % T::kQueryStages], tile / T::kQueryStages % 2);
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

  /// All threads of this warpgroup.
  __device__ __forceinline__ void meet() {
    asm volatile("barrier.cta.sync %0, 128;" ::"r"(1 + consumer_) : "memory");
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

  /// The tile's result is stored, or lies where the carrier takes it from.
  __device__ __forceinline__ void leave_result(unsigned tile) {
    give_back(T::kStoresItself ? shared_.tile_ring.empty[tile % T::kTileNotes]
                               : shared_.results[tile % T::kQueryStages]);
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

  const Arguments& args_;
  typename T::Shared& shared_;
  int consumer_;
  bool leads_;         // its warp
  unsigned tile_ = 0;  // how many came before
  Cursor at_, next_;   // its team's step, and the one after it
  // Bits, as the registers of some rows have no room for flags: what its note says of a step; its
  // keys have come, asked a step ahead; all rows of the tile have seen a key.
  static constexpr unsigned kKeysCame = 2, kBased = 4;
  unsigned known_ = 0;

  float score_[T::kN / 2], sum_[T::kDimV / 2];
  float count_[4];  // sums of weights, two of each row, where multiplications add them up
  std::uint32_t weight_[T::kN / 4];
  std::uint32_t held_[T::kHeldSteps > 0 ? T::kHeldSteps * 4 : 1];
  Softmax softmax_;
};

}  // namespace tessera::cuda::sm90::attention
