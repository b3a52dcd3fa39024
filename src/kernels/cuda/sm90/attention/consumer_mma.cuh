#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/sm90/attention/consumer_pipeline.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

namespace tessera::cuda::sm90::attention {

/// The two MMAs of a step for a consumer's 64 rows, QK and PV, and the registers of both.
template <class T>
struct ConsumerMma {
  using Element = typename T::Element;
  using Pipe = ConsumerPipeline<T>;
  // MMAs whose Q comes from shared memory.
  static constexpr int kReadMmas = T::kQkMmas - T::kQRegisterMmas;

  /// Issues the QK MMA of the current step. The caller has waited for Q and K.
  __device__ __forceinline__ void issue_qk(const Pipe& pipe) {
    unsigned tile = pipe.tile;
    // Hides `tile` from the compiler, so that no register holds values derived from it.
    if constexpr (T::kFewRegisters) asm volatile("" : "+r"(tile));
    const std::uint64_t q = pipe.shared.q[0].by_columns(pipe.first_row()) +
                            tile % T::kQueryStages * (T::Queries::kBytes >> 4);
    const std::uint64_t k =
        pipe.shared.keys[0].by_columns(0) + pipe.at.stage * (T::Keys::kBytes >> 4);
    tile::settle(score);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < kReadMmas; ++i)
      tile::mma<Element, T::kN, tile::Major::k, tile::Major::k>(
          score, q + T::Queries::columns_of_mma(i), k + T::Keys::columns_of_mma(i), i == 0);
#pragma unroll
    for (int i = kReadMmas; i < T::kQkMmas; ++i)
      tile::mma<Element, T::kN, tile::Major::k>(score, q_registers + (i - kReadMmas) * 4,
                                                k + T::Keys::columns_of_mma(i), i == 0);
    tile::mma_commit();
  }

  /// Loads the columns of the tile's Q that stay in registers (kQRegisterMmas).
  __device__ __forceinline__ void load_q_registers(Pipe& pipe) {
    if constexpr (T::kQRegisterMmas == 0) return;
    const int mine = pipe.thread(), lane = mine % 32;
    const std::uint32_t at = tile::shared_address(pipe.queries_of(pipe.tile).chunk(
        pipe.first_row() + mine / 32 * 16 + lane % 16, lane / 16 * T::Queries::kChunk));
#pragma unroll
    for (int i = 0; i < T::kQRegisterMmas; ++i)
      load_left_operand(T::Queries::to_mma(at, kReadMmas + i), q_registers + i * 4);
  }

  /// Waits for the step's V and issues its PV; P is in registers.
  __device__ __forceinline__ void issue_pv(Pipe& pipe, typename Pipe::Cursor at) {
    tile::wait(&pipe.shared.v_ring.full[at.stage], at.parity);
    const std::uint64_t v = pipe.shared.values[0].by_rows() + at.stage * (T::Values::kBytes >> 4);
    tile::settle(o_acc);
    tile::mma_fence();
#pragma unroll
    for (int i = 0; i < T::kPvMmas; ++i)
      tile::mma<Element, T::kDimV, tile::Major::mn>(o_acc, p + i * 4, v + i * T::Values::kRowsOfMma,
                                                    false);
    tile::mma_commit();
  }

  __device__ __forceinline__ void rescale(const float (&rescale_factor)[2]) {
#pragma unroll
    for (int i = 0; i < T::kDimV / 2; ++i) o_acc[i] *= rescale_factor[i / 2 % 2];
  }

  __device__ __forceinline__ void round() {
#pragma unroll
    for (int i = 0; i < T::kN / 4; ++i) p[i] = T::Precision::pack(score[2 * i], score[2 * i + 1]);
  }

  float score[T::kN / 2];
  OAccumulator<T::kDimV> o_acc;
  std::uint32_t p[T::kPvMmas * 4];
  std::uint32_t q_registers[T::kQRegisterMmas > 0 ? T::kQRegisterMmas * 4 : 1];
};

}  // namespace tessera::cuda::sm90::attention
