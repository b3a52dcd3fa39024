#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/math.cuh"
#include "src/kernels/cuda/sm90/attention_backward/consumer_mma.cuh"
#include "src/kernels/cuda/sm90/attention_backward/hidden.cuh"
#include "src/kernels/cuda/sm90/attention_backward/store.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"

// What all consumer warpgroups do: wait for operands, compute P and dS of 64 keys, stage dQ.
namespace tessera::cuda::sm90::attention_backward {

/// Stores to shared memory. Where only a pointer is given, the compiler does not see that it leads
/// there, and the store is slower.
__device__ __forceinline__ void store_four(std::uint32_t to, const float* from) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(from[0]), "f"(from[1]),
               "f"(from[2]), "f"(from[3])
               : "memory");
}

template <class T>
class ScoreConsumer {
 public:
  using Shared = typename T::Shared;
  using StageCursor = tile::RingCursor<T::kStages>;

  __device__ __forceinline__ ScoreConsumer(const Arguments& args, Shared& shared, int consumer)
      : args_(args), shared_(shared), consumer_(consumer), mma_(shared, consumer) {}

 protected:
  /// Which half of the key tile the consumer has.
  __device__ __forceinline__ int half() const {
    return T::kKeyParts == 1 ? consumer_ : taken().key_part;
  }
  __device__ __forceinline__ KeyRows key_rows() const {
    const KeyTileJob& job = taken().job;
    return {job.batch,     job.share,
            job.kv_begin,  job.tile * planning::kKeysPerTile + half() * 64,
            job.kv_length, taken().kept[half()]};
  }

  // ---- Tiles ------------------------------------------------------------------------------------

  __device__ __forceinline__ const TileDescriptor& taken() const {
    return shared_.tiles[tile_ % T::kTiles];
  }
  /// Walks all tiles: `walk(first, end)` the steps of one, counted through all tiles, and `store()`
  /// its gradients.
  template <class Walk, class Store>
  __device__ __forceinline__ void walk_tiles(const Walk& walk, const Store& store) {
#pragma unroll 1
    for (;; ++tile_) {
      tile::wait(&shared_.tile_ring.full[tile_ % T::kTiles], tile_ / T::kTiles % 2);
      if (agreed(taken().num_steps < 0)) return;
      tile::wait(&shared_.kv_ring.full[0], tile_ % 2);
      mma_.clear();
      const unsigned first = __shfl_sync(kAllLanes, taken().first_step, 0);
      const unsigned end = __shfl_sync(kAllLanes, taken().end_step, 0);
      if (agreed(first < end)) {
        clear_hidden_keys();
        walk(first, end);
      }
      arrive_as_warp(shared_.kv_ring.empty[0], lane());
      store();
      arrive_as_warp(shared_.tile_ring.empty[tile_ % T::kTiles], lane());
    }
  }

  /// Of the blocks of a step, whose descriptor has arrived. They are read well before they are
  /// used, as loads take long while operands are read from shared memory.
  struct StepFlags {
    bool ragged[T::kBlocks], masked[T::kBlocks];
  };
  __device__ __forceinline__ static StepFlags flags_of(const BackwardStep* step) {
    StepFlags flags;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
      flags.ragged[block] = step[block].ragged, flags.masked[block] = step[block].masked;
    return flags;
  }

  // ---- Scores -----------------------------------------------------------------------------------

  /// lse or delta of the queries of this thread's scores. Some are loaded before MMAs are waited
  /// for, as many as registers hold.
  struct Statistics {
    static constexpr int kAhead = T::kBlocks > 1 ? 4 : T::kM / 16;
    const float* numbers;
    float4 ahead[kAhead];
  };
  __device__ __forceinline__ int quad_lane() const { return lane() % 4; }
  __device__ __forceinline__ static Statistics statistics(const float* numbers, int quad_lane) {
    Statistics loaded;
    loaded.numbers = numbers;
#pragma unroll
    for (int j = 0; j < Statistics::kAhead; ++j) loaded.ahead[j] = four_of(numbers, quad_lane, j);
    return loaded;
  }
  __device__ __forceinline__ float4 four_of(const Statistics& loaded, int j) const {
    return j < Statistics::kAhead ? loaded.ahead[j] : four_of(loaded.numbers, quad_lane(), j);
  }

  __device__ __forceinline__ void compute_p(const BackwardStep* step, const StepFlags& flags,
                                            const Statistics& lse) {
    tile::settle(mma_.s);
    float(&s)[T::kM / 2] = mma_.s;
    if constexpr (T::kCaps) cuda::attention::transform_scores(s, args_.transform);
#pragma unroll
    for (int j = 0; j < T::kM / 16; ++j) {
      const float4 four = four_of(lse, j);
      const float of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 8; ++e)
        s[j * 8 + e] = exp2_fast(fmaf(s[j * 8 + e], args_.exponent_scale, of[e / 4 * 2 + e % 2]));
    }
    hide_block<0>(s, step, flags.masked[0]);
    if constexpr (T::kBlocks > 1) hide_block<T::kBlock / 2>(s, step + 1, flags.masked[1]);
  }

  template <int kFirst>
  __device__ __forceinline__ void hide_block(float (&s)[T::kM / 2], const BackwardStep* step,
                                             bool masked) {
    if (agreed(masked))
      hide<kFirst>(s, args_.walk, taken().job, *step, taken().kept[half()], half(), thread());
  }

  /// Rounds P to operands of dV.
  __device__ __forceinline__ void pack_p() {
#pragma unroll
    for (int i = 0; i < T::kM / 4; ++i)
      mma_.p[i] = T::Precision::pack(mma_.s[i * 2], mma_.s[i * 2 + 1]);
  }

  /// Rounds dS to operands of dK, and with `kPacksP` P to operands of dV.
  template <bool kPacksP>
  __device__ __forceinline__ void pack_ds(const Statistics& deltas, int q_stage) {
    tile::settle(mma_.dp);
    const float(&s)[T::kM / 2] = mma_.s;
    float(&dp)[T::kM / 2] = mma_.dp;
#pragma unroll
    for (int j = 0; j < T::kM / 16; ++j) {
      const float4 four = four_of(deltas, j);
      const float delta[4] = {four.x, four.y, four.z, four.w};
      float4 lse{};
      if constexpr (T::kCaps) lse = four_of(shared_.lse[q_stage], quad_lane(), j);
      const float of[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = j * 8 + e * 2;
        // The next product reads the registers of dP, so they are free for nothing but dS: where
        // there are few others, it goes there.
        float others[2];
        float* const ds = T::kBlocks > 1 ? dp + i : others;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          ds[k] = s[i + k] * (dp[i + k] - delta[e / 2 * 2 + k]);
          if constexpr (T::kCaps) ds[k] *= slope_of(s[i + k], of[e / 2 * 2 + k]);
        }
        if constexpr (kPacksP) mma_.p[i / 2] = T::Precision::pack(s[i], s[i + 1]);
        mma_.ds[i / 2] = T::Precision::pack(ds[0], ds[1]);
      }
    }
  }

  /// Writes dS for dQ.
  __device__ __forceinline__ void write_ds(unsigned step) {
    const unsigned buffer = step % T::kScoreGradients;
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

  /// Writes a part of dQ for the sender warps. `use`: how often the buffer has been used before.
  __device__ __forceinline__ void stage_dq(int buffer, unsigned use, int thread) {
    tile::settle(mma_.dq);
    tile::wait(&shared_.dq_empty[buffer], (use & 1) ^ 1);
    const std::uint32_t to = tile::shared_address(shared_.dq[buffer]) + thread * sizeof(float4);
#pragma unroll
    for (int j = 0; j < T::kPart / 8; ++j)
      store_four(to + j * kWarpgroup * sizeof(float4), mma_.dq + j * 4);
  }
  __device__ __forceinline__ void announce_dq(int buffer, unsigned use) {
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    arrive_as_warp(shared_.dq_full[buffer][use % T::kSenders], lane());
  }

  // ---- Operands ---------------------------------------------------------------------------------

  __device__ __forceinline__ const BackwardStep* descriptor_of(unsigned step) const {
    return shared_.steps[step % T::kStepDescriptors];
  }

  /// Waits for Q, or dO, and the step's descriptor.
  __device__ __forceinline__ void wait_for_queries(const StageCursor& at) {
    tile::wait(&shared_.q_ring.full[at.stage], at.parity);
  }
  __device__ __forceinline__ void wait_for_gradients(const StageCursor& at) {
    tile::wait(&shared_.g_ring.full[at.stage], at.parity);
  }
  /// Queries that see no key may hold NaN, and P = 0 would not hide them: both consumers clear
  /// them.
  __device__ __forceinline__ void clear_queries(const BackwardStep* step, const StageCursor& at,
                                                const StepFlags& flags) {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
      if (agreed(flags.ragged[block])) {
        clear_rows(shared_.queries[at.stage], block * T::kBlock, step[block].seeing, thread());
        sync_after_clearing();
      }
  }
  __device__ __forceinline__ void clear_gradients(const BackwardStep* step, const StageCursor& at,
                                                  const StepFlags& flags) {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
      if (agreed(flags.ragged[block])) {
        const std::uint64_t seeing = step[block].seeing;
        clear_rows(shared_.gradients[at.stage], block * T::kBlock, seeing, thread());
        if (thread() < T::kBlock && (seeing >> thread() & 1) == 0)
          shared_.delta[at.stage][block * T::kBlock + planning::mixed_query(thread())] = 0;
        sync_after_clearing();
      }
  }
  __device__ __forceinline__ void clear_hidden_keys() {
    const std::uint64_t kept = taken().kept[half()];
    if (!agreed(kept != ~std::uint64_t{0})) return;
    clear_rows(shared_.keys, mma_.first_row(), kept, thread());
    clear_rows(shared_.values, mma_.first_row(), kept, thread());
    sync_after_clearing();
  }
  __device__ __forceinline__ void sync_after_clearing() {
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    tile::sync_at(T::kWarpgroupBarrier + consumer_, kWarpgroup);
  }

  /// Read from the special register at each use, so that they occupy no register.
  __device__ __forceinline__ int thread() const { return thread_of_block() % kWarpgroup; }
  __device__ __forceinline__ int lane() const { return thread_of_block() % kLanes; }

  const Arguments& args_;
  Shared& shared_;
  int consumer_;
  unsigned tile_ = 0;  // tiles before this one
  ConsumerMma<T> mma_;

 private:
  /// Four queries' statistics: of groups 2j and 2j + 1 of eight queries, two each (mixed_query).
  __device__ __forceinline__ static float4 four_of(const float* numbers, int quad_lane, int j) {
    return reinterpret_cast<const float4*>(
        numbers)[j / 4 * (T::kBlock / 4) + quad_lane * 4 + (j % 4 ^ (quad_lane / 2))];
  }
};

}  // namespace tessera::cuda::sm90::attention_backward
