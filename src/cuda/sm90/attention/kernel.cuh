#pragma once

#include <cstdint>

#include "src/cuda/sm90/attention/loader.cuh"
#include "src/cuda/sm90/attention/softmax.cuh"
#include "src/cuda/sm90/attention/store.cuh"
#include "src/cuda/sm90/attention/traits.cuh"
#include "src/cuda/tile/wgmma.cuh"

// Warps load what the walk names into rings of keys and values; each consumer warpgroup takes 64
// rows of queries through them. Scores of a step are multiplied while the step before meets its
// values, so the tensor cores work while weights are computed.
namespace tessera::cuda::sm90::attention {

/// One warpgroup: 64 rows of each tile.
template <class T>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Arguments& args, typename T::Shared& shared,
                                      int consumer, int thread)
      : args_(args), shared_(shared), consumer_(consumer), thread_(thread) {
    leads_ = tile::elect() && thread < 32;
  }

  __device__ __forceinline__ void run() {
    while (open_tile()) {
      if constexpr (T::kOwnLists) {
        walk_line();
        continue;
      }
      // The first scores, with nothing to multiply beside them.
      const Flags flags = wait_for_keys();
      issue_scores();
      tile::mma_wait<0>();
      tile::settle(score_);
      adjust(flags);
      bool last = flags.last;
      softmax_ = {};
      weigh();
      bool first;
      do {
        for (first = true; !last; first = false) last = step(first);
      } while (turn(first, last));
    }
    if (leads_) ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<0>{});
  }

 private:
  using Element = typename T::Element;
  using Cursor = tile::RingCursor<T::kStages>;
  static constexpr int kKeySteps = T::kDim / 16, kValueSteps = T::kN / 16;

  /// Each warp for itself: its lanes are done with what the barrier guards.
  __device__ __forceinline__ void give_back(std::uint64_t& empty) {
    __syncwarp();
    if (thread_ % 32 == 0) tile::arrive(&empty);
  }

  __device__ __forceinline__ void issue_scores() {
    const std::uint64_t q = queries_of(tile_).by_columns(consumer_ * T::kRows);
    const std::uint64_t k = shared_.k[at_.stage].by_columns(0);
    tile::settle(score_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i)
      tile::mma<Element, T::kN, tile::Major::k, tile::Major::k>(
          score_, tile::stepped(q, T::Queries::column_step(i)),
          tile::stepped(k, T::Keys::column_step(i)), i == 0);
    tile::mma_commit();
  }

  struct Flags {
    bool masked, last;
    bool mine = true;  // this consumer needs the step
  };
  /// Waits for the next keys. What their note says is read before there is anything to wait for.
  __device__ __forceinline__ Flags wait_for_keys() {
    tile::wait(&shared_.k_ring.full[at_.stage], at_.parity);
    const typename T::Step& step = shared_.notes[at_.stage];
    Flags flags{tile::agreed(step.any(step.masked)), tile::agreed(step.last != 0)};
    if constexpr (T::kOwnLists) flags.mine = tile::agreed(step.consumers >> consumer_ & 1);
    return flags;
  }

  /// The values of a step whose weights are ready.
  __device__ __forceinline__ void issue_values(const Cursor& at, bool first) {
    tile::wait(&shared_.v_ring.full[at.stage], at.parity);
    const std::uint64_t v = shared_.v[at.stage].by_rows();
    tile::settle(sum_);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kValueSteps; ++i)
      tile::mma<Element, T::kDimV, tile::Major::mn>(
          sum_, weight_ + i * 4, tile::stepped(v, i * T::Values::kRowStep), first && i == 0);
    tile::mma_commit();
  }

  /// From scores to weights, rounded. Sums that have `begun` meet no values now.
  __device__ __forceinline__ void weigh(bool begun = false) {
    softmax_.take(score_, args_.scale_log2, [&](const float(&shrink)[2]) {
      if (begun) rescale(shrink);
    });
    round();
  }

  __device__ __forceinline__ void rescale(const float (&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) sum_[i] *= shrink[i / 2 % 2];
  }

  __device__ __forceinline__ void round() {
    constexpr DType kType = std::is_same_v<Element, __nv_bfloat16> ? DType::bf16 : DType::f16;
#pragma unroll
    for (int i = 0; i < T::kN / 4; ++i)
      weight_[i] = product::pack(kType, score_[2 * i], score_[2 * i + 1]);
  }

  /// True if that was the tile's last step.
  __device__ __forceinline__ bool step(bool first) {
    const Cursor before = at_;
    at_.advance();
    const Flags flags = wait_for_keys();
    overlap(before, flags, first);
    return flags.last;
  }

  /// A step's scores are multiplied while the weights of the one before meet their values.
  __device__ __forceinline__ void overlap(const Cursor& before, const Flags& flags, bool first) {
    issue_scores();
    issue_values(before, first);
    tile::mma_wait<1>();
    tile::settle(score_);
    adjust(flags);
    release_former_queries();
    softmax_.take(score_, args_.scale_log2, [&](const float(&shrink)[2]) {
      tile::mma_wait<0>();
      tile::settle(sum_);
      rescale(shrink);
    });
    tile::mma_wait<0>();
    tile::settle(sum_);
    give_back(shared_.v_ring.empty[before.stage]);
    round();
  }

  /// All of a tile, where this consumer's line has a list of its own: runs of steps that it needs,
  /// and others between them. Nothing is multiplied and no stage is held while steps pass by.
  __device__ __forceinline__ void walk_line() {
    softmax_ = {};
    bool first = true;  // no weights have met their values yet
    Flags flags = wait_for_keys();
    while (pass_by(flags)) {
      issue_scores();
      tile::mma_wait<0>();
      tile::settle(score_);
      adjust(flags);
      weigh(!first);
      Cursor before = at_;
      bool last = flags.last;
      at_.advance();
      while (!last) {
        flags = wait_for_keys();
        if (!flags.mine) break;
        overlap(before, flags, first);
        first = false;
        before = at_;
        last = flags.last;
        at_.advance();
      }
      issue_values(before, first);
      tile::mma_wait<0>();
      tile::settle(sum_);
      give_back(shared_.v_ring.empty[before.stage]);
      first = false;
      if (last) break;
    }
    if (first) {
#pragma unroll
      for (float& value : sum_) value = 0.0f;
    }
    finish(tile_);
    leave_tile();
  }

  /// Goes on to a step that this consumer needs, whose keys have come. False, and behind the tile's
  /// last step, where there is none. A stage of values is given back after it has been filled:
  /// sooner, it would count as given back by who still has the values before them.
  __device__ __forceinline__ bool pass_by(Flags& flags) {
    while (!flags.mine) {
      give_back(shared_.k_ring.empty[at_.stage]);
      tile::wait(&shared_.v_ring.full[at_.stage], at_.parity);
      give_back(shared_.v_ring.empty[at_.stage]);
      at_.advance();
      if (flags.last) return false;
      flags = wait_for_keys();
    }
    return true;
  }

  /// A tile's last values, beside the first scores of the next one where that follows at once.
  /// False if it does not; `last` says whether the next one's first step was its last.
  __device__ __forceinline__ bool turn(bool first, bool& last) {
    const bool goes_on = next_tile_at_once();
    const Cursor before = at_;
    at_.advance();
    leave_tile();
    Flags flags{};
    if (goes_on) {
      flags = wait_for_keys();
      issue_scores();
      issue_values(before, first);
      tile::mma_wait<0>();
      tile::settle(score_);
      tile::settle(sum_);
    } else {
      issue_values(before, first);
      tile::mma_wait<0>();
      tile::settle(sum_);
    }
    give_back(shared_.v_ring.empty[before.stage]);
    if (goes_on) adjust(flags);
    finish(tile_ - 1);
    if (!goes_on) return false;
    last = flags.last;
    softmax_ = {};
    weigh();
    return true;
  }

  /// The next tile that has steps; those that have none are stored on the way. False at the end.
  __device__ __forceinline__ bool open_tile() {
    while (true) {
      release_former_queries();
      wait_for_queries(tile_);
      const TileNote& note = note_of(tile_);
      if (tile::agreed(note.ends_all)) return false;
      if (tile::agreed(!note.empty)) break;
#pragma unroll
      for (float& value : sum_) value = 0.0f;
      softmax_ = {};
      finish(tile_);
      leave_tile();
    }
    return true;
  }

  __device__ __forceinline__ void leave_tile() {
    ++tile_;
    looked_ = false;
  }

  __device__ __forceinline__ TileNote& note_of(unsigned tile) {
    return shared_.tiles[tile % T::kTileNotes];
  }
  __device__ __forceinline__ typename T::Queries& queries_of(unsigned tile) {
    return shared_.q[tile % T::kQueryStages];
  }
  __device__ __forceinline__ void wait_for_queries(unsigned tile) {
    tile::wait(&shared_.q_ring.full[tile % T::kQueryStages], tile / T::kQueryStages % 2);
  }

  /// Whether a tile with steps follows this one.
  __device__ __forceinline__ bool next_tile_at_once() {
    release_former_queries();  // the next tile's may be waiting for their place
    if constexpr (T::kQueryStages == 1) return false;
    wait_for_queries(tile_ + 1);
    const TileNote& note = note_of(tile_ + 1);
    return tile::agreed(!note.ends_all && !note.empty);
  }

  /// Queries of the tile before, from where its results left.
  __device__ __forceinline__ void release_former_queries() {
    if (!leaving_) return;
    if (leads_) ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
    give_back(shared_.q_ring.empty[(tile_ - 1) % T::kQueryStages]);
    leaving_ = false;
  }

  /// What scores of the stage become before the softmax; then the stage's keys are given back.
  __device__ __forceinline__ void adjust(const Flags& flags) {
    const typename T::Step& step = shared_.notes[at_.stage];
    if constexpr (T::kMapped) map_scores(score_, args_.scale, args_.cap);
    if (flags.masked) {
      if (!looked_) look();
      const int first_column = thread_ % 4 * 2;
      const int row = consumer_ * T::kRows + thread_ / 32 * 16 + thread_ % 32 / 4;
      hide(score_, step, &shared_.sight[row], first_column);
      if (args_.bits) hide_by_bits(score_, step, args_, &shared_.sight[row], first_column);
    }
    give_back(shared_.k_ring.empty[at_.stage]);
  }

  /// What this warpgroup's rows of the tile see, for steps where that is not all. Once a tile, as
  /// all of its threads need it at the same step.
  __device__ __forceinline__ void look() {
    looked_ = true;
    const TileNote& note = note_of(tile_);
    meet();  // nobody looks at the tile before any more
    if (thread_ < T::kRows) {
      const int row = consumer_ * T::kRows + thread_;
      const int query = note.first_query + (row >> args_.walk.pack_shift);
      const planning::KeyRange seen = note.sight.of_row(query);
      RowSight& sight = shared_.sight[row];
      sight.begin = static_cast<int>(planning::clamp_to(seen.begin, 0, kNowhere));
      sight.end = static_cast<int>(planning::clamp_to(seen.end, 0, kNowhere));
      if (args_.bits) sight.bits = query % args_.block_q * args_.bits_row;
    }
    meet();
  }

  /// All threads of this warpgroup.
  __device__ __forceinline__ void meet() {
    asm volatile("barrier.cta.sync %0, 128;" ::"r"(1 + consumer_) : "memory");
  }

  /// Stores a tile's sums. Its queries are given back later, when their memory has been read.
  __device__ __forceinline__ void finish(unsigned tile) {
    const TileNote& note = note_of(tile);
    const RowPlaces rows(args_, note, consumer_ * T::kRows, thread_);
    const Normalised normalised(args_, softmax_, rows);
    store_lse(args_, note, rows, normalised.lse, thread_);
    if (args_.result.dtype == DType::f32) {
      store_wide<T::kDimV>(args_, note, rows, sum_, normalised.factor, thread_);
    } else {
      constexpr int kRows = T::kRows;
      typename T::Queries& panels = queries_of(tile);
      meet();  // all warps have read their queries: the last scores are done
      put_panels<T>(args_, panels, sum_, normalised.factor, consumer_ * kRows, thread_);
      const int after = note.first_query + ((consumer_ + 1) * kRows >> args_.walk.pack_shift);
      const bool carried = args_.carried && (!args_.walk.packed_q || after <= note.q_length);
      if (carried) ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
      meet();
      if (!carried) {
        copy_out<T>(args_, note, panels, consumer_ * kRows, thread_);
      } else if (leads_) {
        carry_out<T>(args_, note, panels, consumer_ * kRows);
      }
    }
    give_back(shared_.tile_ring.empty[tile % T::kTileNotes]);
    leaving_ = true;
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int consumer_, thread_;
  bool leads_;         // one thread of the warpgroup, always the same
  unsigned tile_ = 0;  // how many came before
  Cursor at_;
  bool looked_ = false;
  bool leaving_ = false;  // results of the tile before, from where its queries lay

  float score_[T::kN / 2], sum_[T::kDimV / 2];
  std::uint32_t weight_[T::kN / 4];
  Softmax softmax_;
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    attention_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  constexpr int kConsumerWarps = T::kConsumers * kWarpgroup / 32;
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (threadIdx.x == 0) {
    shared.q_ring.init(kConsumerWarps);
    shared.k_ring.init(kConsumerWarps);
    shared.v_ring.init(kConsumerWarps);
    shared.tile_ring.init(kConsumerWarps + 1);  // and the loader
    shared.step_ring.init(1);
    shared.clearing_ring.init(1);
    for (std::uint64_t& barrier : shared.landed) tile::ptx::mbarrier_init(&barrier, 1);
    tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
  }
  if (threadIdx.x == T::kConsumers * kWarpgroup) {
    tile::prefetch(args.q);
    tile::prefetch(args.k);
    tile::prefetch(args.v);
  }
  __syncthreads();
  if (warpgroup == T::kConsumers) {
    cutlass::arch::warpgroup_reg_dealloc<T::kLoaderRegisters>();
    const int thread = threadIdx.x - T::kConsumers * kWarpgroup;
    if (thread / 32 == 0 && tile::elect()) Loader<T>(args, shared).run();
    if (thread / 32 == 1) Scout<T>(args, shared, thread % 32).run();
    if (thread / 32 == 2) clear_ragged_values<T>(shared, thread % 32);
  } else {
    cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    Consumer<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup).run();
  }
}

}  // namespace tessera::cuda::sm90::attention
