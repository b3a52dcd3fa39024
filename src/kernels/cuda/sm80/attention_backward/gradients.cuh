#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/store.cuh"
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

  __device__ __forceinline__ void store() {
    const bool keys = agreed(has_keys());
    if constexpr (T::kDim == T::kDimV)
      store_rows<T::kOfKeys>(keys ? args_.dk : args_.dv, keys ? args_.scale : 1.0f);
    else if (keys)
      store_rows<T::kOfKeys>(args_.dk, args_.scale);
    else
      store_rows<T::kOfValues>(args_.dv, 1.0f);
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

  template <WarpGrid kGrid>
  __device__ __forceinline__ void store_rows(const HeadRows& to, float scale) {
    if (!to.data) return;
    constexpr WarpGrid kWarps = kGrid;
    const KeyTileJob& job = shared_.taken.job;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = shared_.taken.key_part * T::kN + kWarps.first_row(place()) + block * 16 +
                        half * 8 + lane() / 4;  // in the tile
        const int in_sequence = job.tile * planning::kKeysPerTile + key;
        if (in_sequence >= job.kv_length) continue;
        const bool kept = (shared_.taken.kept[key / 64] >> key % 64 & 1) != 0;
        const std::int64_t row = job.batch * to.batch + job.share * to.head +
                                 (std::int64_t{job.kv_begin} + in_sequence) * to.row;
#pragma unroll
        for (int j = 0; j < kWarps.columns / 8; ++j) {
          const int column = kWarps.column_in_turns(place(), j) + lane() % 4 * 2;
          if (column >= to.columns) continue;  // a multiple of eight
          const float low = sum_[block][j * 4 + half * 2] * scale;
          const float high = sum_[block][j * 4 + half * 2 + 1] * scale;
          store_pair(to, row, column, kept ? low : 0.0f, kept ? high : 0.0f);
        }
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
