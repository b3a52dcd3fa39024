#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cuda/attention_backward/head_rows.cuh"
#include "src/kernels/cuda/attention_backward/turns.cuh"
#include "src/kernels/cuda/sm80/attention/copy.cuh"
#include "src/kernels/cuda/sm80/attention_backward/products.cuh"
#include "src/kernels/cuda/sm80/attention_backward/shape.cuh"

// A warp's parts of dV or dK, and of dQ.
namespace tessera::cuda::sm80::attention_backward {

/// The first half of the warps has dV, the other one dK. A warp of each is on each scheduler, so
/// head dimensions may differ.
template <class T>
class WarpGradients {
 public:
  using Shared = typename T::Shared;

  __device__ __forceinline__ WarpGradients(const Arguments& args, Shared& shared)
      : args_(args), shared_(shared) {
#pragma unroll
    for (auto& block : sum_)
#pragma unroll
      for (float& x : block) x = 0;
  }

  /// dV += P^T dO, or dK += dS^T Q.
  __device__ __forceinline__ void add(int stage) {
    const auto& rows = shared_.stages[stage];
    const auto& rounded = shared_.rounded();
    if constexpr (T::kDim == T::kDimV) {  // one loop for both
      const bool keys = has_keys();
      add_product<typename T::Queries, T::kOfKeys>(keys ? rounded.ds : rounded.p,
                                                   keys ? rows.queries : rows.gradients);
    } else if (agreed(has_keys())) {
      add_product<typename T::Queries, T::kOfKeys>(rounded.ds, rows.queries);
    } else {
      add_product<typename T::Gradients, T::kOfValues>(rounded.p, rows.gradients);
    }
  }

  /// Stores dV and dK by rows, through shared memory, in a loop: code that runs once per tile is
  /// not in the instruction cache. All threads call, when no warp reads operands any more.
  __device__ __forceinline__ void store() {
    auto& rows = *reinterpret_cast<GradientRows*>(&shared_);
    if (agreed(has_keys()))
      write_rows<T::kOfKeys>(rows.keys);
    else
      write_rows<T::kOfValues>(rows.values);
    __syncthreads();
    store_rows(args_.dv, rows.values, 1.0f);
    store_rows(args_.dk, rows.keys, args_.scale);
  }

 private:
  static constexpr int kWarpsOfEach = T::kWarps / 2;
  static constexpr int kBlocks = T::kOfKeys.rows / 16;
  static constexpr int kPerBlock = std::max(T::kOfKeys.columns, T::kOfValues.columns) / 2;

  __device__ __forceinline__ static int lane() { return thread_of_block() % kLanes; }
  __device__ __forceinline__ static int warp() { return thread_of_block() / kLanes; }
  __device__ __forceinline__ static bool has_keys() { return warp() >= kWarpsOfEach; }
  /// Among the warps with the same gradient.
  __device__ __forceinline__ static int place() { return warp() % kWarpsOfEach; }

  template <class Rows, WarpGrid kGrid>
  __device__ __forceinline__ void add_product(const unsigned char* scores,
                                              const unsigned char* rows) {
    constexpr WarpGrid kWarps = kGrid;
    multiply<typename T::Element, T::kM / 16, kWarps.columns / 16>(
        sum_,
        AcrossRows<typename T::Scores>::left(attention::shared_address(scores),
                                             kWarps.first_row(place()), lane()),
        AcrossRows<Rows, kWarps.column_warps>::right(attention::shared_address(rows),
                                                     kWarps.first_of_turns(place()), lane()));
  }

  /// Sums of the thread block's keys, in place of operands. Rows are apart by 32 bytes more than
  /// they take, so that the four rows that half a warp writes at once lie in different banks.
  template <int kDim>
  using SumRows = float[T::kN][kDim + 8];
  struct GradientRows {
    alignas(16) SumRows<T::kDimV> values;
    alignas(16) SumRows<T::kDim> keys;
  };
  static_assert(sizeof(GradientRows) <= offsetof(Shared, lse));

  template <WarpGrid kGrid, int kPitch>
  __device__ __forceinline__ void write_rows(float (&rows)[T::kN][kPitch]) const {
    constexpr WarpGrid kWarps = kGrid;
    float* const to = &rows[kWarps.first_row(place()) + lane() / 4]
                           [kWarps.first_of_turns(place()) + lane() % 4 * 2];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < kWarps.columns / 2; i += 2)
        *reinterpret_cast<float2*>(to + (block * 16 + i / 2 % 2 * 8) * kPitch +
                                   kWarps.column_in_turns(0, i / 4)) = {sum_[block][i],
                                                                        sum_[block][i + 1]};
  }

  template <int kPitch>
  __device__ __forceinline__ void store_rows(const HeadRows& to, const float (&rows)[T::kN][kPitch],
                                             float scale) const {
    if (!to.data) return;
    constexpr int kChunks = kPitch / kEight - 1;
    const KeyTileJob& job = shared_.taken.job;
#pragma unroll 1
    for (int i = thread_of_block(); i < T::kN * kChunks; i += T::kThreads) {
      const int of_block = i / kChunks, column = i % kChunks * kEight;
      const int key = shared_.taken.key_part * T::kN + of_block;  // in the tile
      const int in_sequence = job.tile * planning::kKeysPerTile + key;
      if (in_sequence >= job.kv_length || column >= to.columns) continue;
      const bool kept = (shared_.taken.kept[key / 64] >> key % 64 & 1) != 0;
      float x[kEight];
#pragma unroll
      for (int j = 0; j < kEight; ++j) x[j] = kept ? rows[of_block][column + j] * scale : 0.0f;
      store_eight(to,
                  job.batch * to.batch + job.share * to.head +
                      (std::int64_t{job.kv_begin} + in_sequence) * to.row,
                  column, x);
    }
  }

  const Arguments& args_;
  Shared& shared_;
  float sum_[kBlocks][kPerBlock];
};

/// dQ of a step.
template <class T>
class WarpDq {
  static constexpr WarpGrid kGrid = T::kDq;
  static constexpr int kBlocks = kGrid.rows / 16, kPerBlock = kGrid.columns / 2;

 public:
  /// dQ = dS K.
  __device__ __forceinline__ void compute(typename T::Shared& shared) {
#pragma unroll
    for (auto& block : sum_)
#pragma unroll
      for (float& x : block) x = 0;
    constexpr WarpGrid kWarps = T::kDq;
    multiply<typename T::Element, T::kN / 16, kWarps.columns / 16>(
        sum_,
        AlongRows<typename T::Scores>::left(attention::shared_address(shared.rounded().ds),
                                            kWarps.first_row(warp()), lane()),
        AcrossRows<typename T::Keys, kWarps.column_warps>::right(
            attention::shared_address(shared.keys), kWarps.first_of_turns(warp()), lane()));
  }

  /// Adds to the sums of a block of queries, or stores the first ones. Only one thread block at a
  /// time has its turn, so the order of additions is fixed.
  __device__ __forceinline__ void add_to(float* sums, bool is_first) const {
    constexpr WarpGrid kWarps = T::kDq;
    constexpr auto kOrder = planning::SumsOrder::by_accumulator;
    float* const to =
        sums +
        planning::sum_index(kOrder, kWarps.first_row(warp()), kWarps.first_of_turns(warp())) +
        lane();
    const auto each = [&](const auto& use) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int i = 0; i < kPerBlock; ++i)
          use(to + planning::sum_index(kOrder, block * 16 + i / 2 % 2 * 8,
                                       kWarps.column_in_turns(0, i / 4) + i % 2),
              sum_[block][i]);
    };
    if (is_first)
      each([](float* at, float x) { *at = x; });
    else
      each([](float* at, float x) { add_to_global(at, x); });
  }

 private:
  __device__ __forceinline__ static int lane() { return thread_of_block() % kLanes; }
  __device__ __forceinline__ static int warp() { return thread_of_block() / kLanes; }

  float sum_[kBlocks][kPerBlock];
};

}  // namespace tessera::cuda::sm80::attention_backward
