#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

namespace tessera::cuda::sm90::attention_backward {

/// The five products of a step, and the registers of all: a consumer uses some or all of them. `s`
/// and `dp` are transposed: 64 keys x 64 queries.
template <class T>
struct ConsumerMma {
  using Element = typename T::Element;
  static constexpr int kDepth = T::Precision::kMmaDepth;
  using Shared = typename T::Shared;

  __device__ __forceinline__ ConsumerMma(Shared& of_block, int number)
      : shared(of_block), consumer(number) {
    if constexpr (T::kSendsDq) {
      static_assert(T::Keys::kPanels == T::kColumnParts &&
                    T::ScoreGradients::kPanels == T::kBlocks);
      ds_by_rows = tile::kept_uniform(of_block.ds[0].by_rows());
      keys_by_rows = tile::kept_uniform(of_block.keys.by_rows());
    }
  }

  /// Begins the sums of a tile. All registers are set, so that none keeps a value of the tile
  /// before: with these as well, registers would not suffice, and ptxas would serialise the MMAs.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& x : dk) x = 0;
#pragma unroll
    for (float& x : dv) x = 0;
#pragma unroll
    for (float& x : s) x = 0;
#pragma unroll
    for (float& x : dp) x = 0;
#pragma unroll
    for (float& x : dq) x = 0;
  }

  /// S = K Q^T.
  __device__ __forceinline__ void issue_scores(int stage) {
    const std::uint64_t a = shared.keys.by_columns(first_row());
    const std::uint64_t b = shared.queries[0].by_columns(0) + stage * (T::Queries::kBytes >> 4);
    tile::settle(s);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kDim / kDepth; ++i)
      tile::mma<Element, T::kM, tile::Major::k, tile::Major::k>(
          s, tile::moved(a, T::Keys::columns_of_mma(i)), b + T::Queries::columns_of_mma(i), i == 0);
    tile::mma_commit();
  }

  /// dP = V dO^T.
  __device__ __forceinline__ void issue_score_gradients(int stage) {
    const std::uint64_t a = shared.values.by_columns(first_row());
    const std::uint64_t b = shared.gradients[0].by_columns(0) + stage * (T::Gradients::kBytes >> 4);
    tile::settle(dp);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kDimV / kDepth; ++i)
      tile::mma<Element, T::kM, tile::Major::k, tile::Major::k>(
          dp, tile::moved(a, T::Values::columns_of_mma(i)), b + T::Gradients::columns_of_mma(i),
          i == 0);
    tile::mma_commit();
  }

  /// dV += P^T dO.
  __device__ __forceinline__ void issue_dv(int stage) {
    const std::uint64_t g = shared.gradients[0].by_rows() + stage * (T::Gradients::kBytes >> 4);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kM / kDepth; ++i)
      tile::mma<Element, T::kDimV, tile::Major::mn>(dv, p + i * 4, g + i * T::Gradients::kRowsOfMma,
                                                    false);
    tile::mma_commit();
  }

  /// dK += dS^T Q.
  __device__ __forceinline__ void issue_dk(int stage) {
    const std::uint64_t q = shared.queries[0].by_rows() + stage * (T::Queries::kBytes >> 4);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kM / kDepth; ++i)
      tile::mma<Element, T::kDim, tile::Major::mn>(dk, ds + i * 4, q + i * T::Queries::kRowsOfMma,
                                                   false);
    tile::mma_commit();
  }

  /// A part of dQ = dS K: some columns of a block of queries, over all keys of the thread block.
  __device__ __forceinline__ void issue_dq(int buffer, int part) {
    const std::uint64_t a = ds_by_rows + buffer * (T::ScoreGradients::kBytes >> 4) +
                            T::block_of(part) * (T::ScoreGradients::kPanelBytes >> 4);
    const std::uint64_t b = keys_by_rows + T::columns_at(part) * (T::Keys::kPanelBytes >> 4);
    tile::settle(dq);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kN / kDepth; ++i)
      tile::mma<Element, T::kPart, tile::Major::mn, tile::Major::mn>(
          dq, a + i * T::ScoreGradients::kRowsOfMma, b + i * T::Keys::kRowsOfMma, i == 0);
    tile::mma_commit();
  }

  /// Writes dS into a buffer as lines of the queries of one key, which issue_dq reads.
  __device__ __forceinline__ void write_ds(int buffer, int thread) const {
    const int lane = thread % 32;
    const std::uint32_t line =
        tile::shared_address(shared.ds[0].panel(0, first_row() + thread / 32 * 16 + lane % 16)) +
        buffer * T::ScoreGradients::kBytes;
#pragma unroll
    for (int i = 0; i < T::kM / 16; ++i)
      store_left_operand(line + i / 4 * T::ScoreGradients::kPanelBytes +
                             (((i % 4 * 2 + lane / 16) ^ (lane % 8)) * 16),
                         ds + i * 4);
  }

  /// The first of the consumer's 64 keys in shared memory.
  __device__ __forceinline__ int first_row() const { return T::kKeyParts == 1 ? consumer * 64 : 0; }

  float s[T::kM / 2], dp[T::kM / 2], dq[T::kPart / 2];
  float dk[T::kDim / 2], dv[T::kDimV / 2];
  std::uint32_t p[T::kM / 4], ds[T::kM / 4];
  Shared& shared;
  int consumer;
  std::uint64_t ds_by_rows, keys_by_rows;
};

}  // namespace tessera::cuda::sm90::attention_backward
