#pragma once

#include <array>
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
        const unsigned thread = thread_of_block();
        const planning::LaneOfTurn turn{thread % 32, thread / 32 % 2};
        clear_rows(shared_.landing.rows[at.stage], 0, kept | ~turn.keys(),
                   static_cast<int>(turn.lane));
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

  /// The first of each 16 columns, in the order in which they are turned: those at the same place
  /// of a line, in several panels, follow each other, as their addresses differ by constants.
  static constexpr int kCount = T::kDimV / kColumns;
  static constexpr std::array<int, kCount> in_order() {
    std::array<int, kCount> columns{};
    int i = 0;
    for (int place = 0; place < Landed::kLine; place += kColumns)
      for (int panel = 0; panel + place < T::kDimV; panel += Landed::kLine)
        columns[i++] = panel + place;
    return columns;
  }

  /// Turns a piece. Some columns are loaded ahead, as a load takes longer than their other work.
  __device__ void turn(std::uint32_t from, std::uint32_t to) const {
    constexpr int kAhead = T::kTurnsAhead;
    constexpr auto kOrder = in_order();
    std::uint32_t loaded[kAhead][4];
    const auto load = [&](int i, int column) {
      load_transposed(Landed::at_column(from, column), loaded[i % kAhead]);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(i, kOrder[i]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      std::uint32_t words[4];
      turn_.arrange(loaded[i % kAhead], words);
      if (i + kAhead < kCount) load(i, kOrder[i + kAhead]);
      // 16 columns are whole atoms of the swizzle.
      store_left_operand(to + kOrder[i] * Values::kLineBytes, words);
    }
  }

  typename T::Shared& shared_;
  planning::LaneOfTurn turn_;
  std::uint32_t from_, to_;  // this lane's first addresses in the first piece and stage
};

}  // namespace tessera::cuda::sm90::attention
