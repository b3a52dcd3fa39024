#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/sm90/attention/producer.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/walk/turned_values.hpp"

namespace tessera::cuda::sm90::attention {

inline constexpr int kTurningWarps = 2;

/// The warps that transpose V for wgmma, which reads FP8 operands with the depth contiguous
/// only. Pieces that have landed as rows of keys become columns of a stage, with the keys in the
/// order of turned_key; each warp turns half of each piece's keys. Keys that no query of the tile
/// sees become zeros, as they may be NaN.
template <class T>
class ValuesTurner {
 public:
  __device__ ValuesTurner(typename T::Shared& shared, unsigned warp, unsigned lane)
      : shared_(shared),
        turn_{lane, warp},
        from_(tile::shared_address(shared.landing.rows[0].chunk(turn_.row(), 0))),
        to_(tile::shared_address(shared.values[0].chunk(turn_.column(), turn_.place()))) {}

  __device__ void run() {
    tile::RingCursor<T::kLandingPieces> at;
    while (true) {
      tile::wait(&shared_.landing.ring.full[at.stage], at.parity);
      const auto [stage, number, kept] = shared_.landing.pieces[at.stage];
      if (stage < 0) return;
      if (kept != kAllKeys) {
        clear_rows(shared_.landing.rows[at.stage], 0, kept | ~turn_.keys(),
                   static_cast<int>(turn_.lane));
        __syncwarp();
      }
      turn(from_ + at.stage * Landed::kBytes,
           to_ + stage * Values::kBytes + number * Values::kPanelBytes);
      tile::ptx::fence_proxy_async(tile::ptx::space_shared);
      arrive_as_warp(shared_.landing.ring.empty[at.stage], turn_.lane);
      arrive_as_warp(shared_.v_ring.full[stage], turn_.lane);
      at.advance();
    }
  }

 private:
  using Landed = typename T::LandingRows;
  using Values = typename T::Values;
  static constexpr int kColumns = planning::LaneOfTurn::kColumns;

  /// Turns a piece, 16 columns at a time.
  __device__ void turn(std::uint32_t from, std::uint32_t to) const {
    constexpr int kChunks = T::kDimV / kColumns, kAtOnce = 2;
    static_assert(kChunks % kAtOnce == 0);
#pragma unroll 1
    for (int first = 0; first < kChunks; first += kAtOnce) {
      std::uint32_t words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        load_transposed(Landed::at_column(from, (first + i) * kColumns), words[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        turn_.arrange(words[i]);
        // 16 columns are whole atoms of the swizzle.
        store_left_operand(to + (first + i) * kColumns * Values::kLineBytes, words[i]);
      }
    }
  }

  typename T::Shared& shared_;
  planning::LaneOfTurn turn_;
  std::uint32_t from_, to_;  // this lane's first addresses in the first piece and stage
};

}  // namespace tessera::cuda::sm90::attention
