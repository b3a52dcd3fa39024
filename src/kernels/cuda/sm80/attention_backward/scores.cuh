#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/math.cuh"
#include "src/kernels/cuda/sm80/attention/copy.cuh"
#include "src/kernels/cuda/sm80/attention_backward/products.cuh"
#include "src/kernels/cuda/sm80/attention_backward/shape.cuh"

// P and dS of a warp's part of a step.
namespace tessera::cuda::sm80::attention_backward {

template <class T>
class WarpScores {
  static constexpr WarpGrid kGrid = T::kScores;
  static constexpr int kBlocks = kGrid.rows / 16, kPairs = kGrid.columns / 16;
  static constexpr int kPerBlock = kGrid.columns / 2;  // accumulators

 public:
  using Shared = typename T::Shared;

  __device__ __forceinline__ WarpScores(const Arguments& args, Shared& shared)
      : args_(args), shared_(shared) {}

  /// Loads V, where it stays in registers. All threads call.
  __device__ __forceinline__ void begin() {
    if constexpr (T::kHoldsValues) {
      const auto values = right_operand<typename T::Values>(shared_.values);
#pragma unroll
      for (int i = 0; i < T::kDimV / 16; ++i) load(values, 0, i, values_.words[i]);
      __syncthreads();  // P and dS take their place
    }
  }

  /// Computes P and dS of a step and writes them to shared memory, rounded. Calls `meanwhile()`
  /// while the tensor cores compute scores, which hides latency.
  __device__ __forceinline__ void compute(const BackwardStep& step, int stage,
                                          const auto& meanwhile) {
    const auto& rows = shared_.stages[stage];
    const float* const lse = shared_.lse[stage] + first_query() + lane() / 4;
    const float* const delta = shared_.delta[stage] + first_query() + lane() / 4;
    float s[kBlocks][kPerBlock] = {};
    multiply<typename T::Element, T::kDim / 16, kPairs>(
        s, left_operand<typename T::Queries>(rows.queries),
        right_operand<typename T::Keys>(shared_.keys));
    meanwhile();
    float dp[kBlocks][kPerBlock] = {};
    const auto gradients = left_operand<typename T::Gradients>(rows.gradients);
    if constexpr (T::kHoldsValues)
      multiply<typename T::Element, T::kDimV / 16, kPairs>(dp, gradients, values_);
    else
      multiply<typename T::Element, T::kDimV / 16, kPairs>(
          dp, gradients, right_operand<typename T::Values>(shared_.values));
    compute_p(s, lse);
    if (agreed(step.masked)) hide(s, step);
    write(s, shared_.rounded().p);
    compute_ds(dp, s, lse, delta);
    write(dp, shared_.rounded().ds);
  }

 private:
  // Not kept in registers, which are scarce, and neither are addresses that follow from them.
  __device__ __forceinline__ static int lane() { return thread_of_block() % kLanes; }
  __device__ __forceinline__ static int warp() { return thread_of_block() / kLanes; }
  __device__ __forceinline__ static int first_query() {
    constexpr WarpGrid kScores = T::kScores;
    return kScores.first_row(warp());
  }
  /// In the keys of the thread block.
  __device__ __forceinline__ static int first_key() {
    constexpr WarpGrid kScores = T::kScores;
    return kScores.first_column(warp());
  }

  template <class Rows>
  __device__ __forceinline__ static AlongRows<Rows> left_operand(const unsigned char* rows) {
    return AlongRows<Rows>::left(attention::shared_address(rows), first_query(), lane());
  }
  template <class Rows>
  __device__ __forceinline__ static AlongRows<Rows> right_operand(const unsigned char* rows) {
    return AlongRows<Rows>::right(attention::shared_address(rows), first_key(), lane());
  }

  // Of a block's accumulators, number i belongs to row i / 2 % 2 * 8 + lane / 4.
  __device__ __forceinline__ static constexpr int row_of(int block, int i) {
    return block * 16 + i / 2 % 2 * 8;
  }

  __device__ __forceinline__ void compute_p(float (&s)[kBlocks][kPerBlock], const float* lse) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (args_.caps) cuda::attention::transform_scores(s[block], args_.transform);
      const float of[2] = {lse[row_of(block, 0)], lse[row_of(block, 2)]};
#pragma unroll
      for (int i = 0; i < kPerBlock; ++i)
        s[block][i] = exp2_fast(fmaf(s[block][i], args_.exponent_scale, of[i / 2 % 2]));
    }
  }

  __device__ __forceinline__ void compute_ds(float (&dp)[kBlocks][kPerBlock],
                                             const float (&p)[kBlocks][kPerBlock], const float* lse,
                                             const float* delta) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float of[2] = {delta[row_of(block, 0)], delta[row_of(block, 2)]};
#pragma unroll
      for (int i = 0; i < kPerBlock; ++i)
        dp[block][i] = p[block][i] * (dp[block][i] - of[i / 2 % 2]);
      if (!args_.caps) continue;
#pragma unroll
      for (int i = 0; i < kPerBlock; ++i) {
        // The derivative of the softcap, 1 - (s / cap)^2, where s is recomputed from
        // P = exp(s - lse), as there are no registers for both.
        const float relative = (log2_fast(p[block][i]) - lse[row_of(block, i)]) * args_.inverse_cap;
        dp[block][i] *= p[block][i] > 0.0f ? fmaf(-relative, relative, 1.0f) : 0.0f;
      }
    }
  }

  /// Sets P of hidden pairs to zero: by position, by the list and by the element mask of a block.
  __device__ __forceinline__ void hide(float (&p)[kBlocks][kPerBlock], const BackwardStep& step) {
    const int key = shared_.taken.key_part * T::kN + first_key();  // in the tile
    const int half = key / 64, shift = key % 64 + lane() % 4 * 2;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int query = first_query() + row_of(block, upper * 2) + lane() / 4;
        const auto seen = static_cast<std::uint32_t>(
            planning::keys_of_query(args_.walk.edges, shared_.taken.job, step,
                                    shared_.taken.kept[half], half, query) >>
            shift);
#pragma unroll
        for (int j = 0; j < kPerBlock / 4; ++j)
#pragma unroll
          for (int k = 0; k < 2; ++k)
            if ((seen >> (j * 8 + k) & 1) == 0) p[block][j * 4 + upper * 2 + k] = 0;
      }
    }
  }

  /// Writes scores to rows of queries, rounded.
  __device__ __forceinline__ void write(const float (&scores)[kBlocks][kPerBlock],
                                        unsigned char* to) {
    const auto places = ScorePlaces<typename T::Scores>::of(attention::shared_address(to),
                                                            first_query(), first_key(), lane());
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < kPerBlock; i += 2)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(places.at(block, i)),
                     "r"(T::Precision::pack(scores[block][i], scores[block][i + 1]))
                     : "memory");
  }

  const Arguments& args_;
  Shared& shared_;
  HeldOperand<T::kHoldsValues ? T::kDimV / 16 : 1> values_;
};

}  // namespace tessera::cuda::sm80::attention_backward
