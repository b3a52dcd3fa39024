#pragma once

#include <cuda/ptx>

#include <cstdint>

#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/skinny/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

// Split-K inside a cluster: its CTAs add up their sums. Each CTA owns some pieces of 16 columns of
// the tile, receives the sums of all CTAs for them through distributed shared memory, adds these in
// the order of ranks, and stores the result. Tiles that are not split use the same code.
namespace tessera::cuda::sm90::skinny {

inline constexpr int kWarpgroup = 128;
inline constexpr int kUnit = 64;   // rows of one consumer warpgroup
inline constexpr int kPiece = 16;  // adjacent columns with one owner
inline constexpr int kPieceBytes = kUnit * kPiece * 4;

/// Stores 16 bytes in another CTA's shared memory (st.async); its barrier counts the bytes as they
/// arrive, so no fence is needed.
__device__ __forceinline__ void send(std::uint32_t to, std::uint32_t barrier, const float* s) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(s[0]), "f"(s[1]), "f"(s[2]), "f"(s[3]), "r"(barrier)
      : "memory");
}

/// Stores eight adjacent elements of a row of the result, or of a column (`transposed`), with any
/// epilogue and any strides.
__device__ __forceinline__ void store_eight(const product::Finish& finish, bool transposed, int row,
                                            int col, int batch, int row_end, int col_end,
                                            float (&x)[8]) {
  const auto first = [&](const Plane& plane) {
    return static_cast<char*>(plane.data) + plane.at(row, col, batch) * plane.element_bytes();
  };
  const auto along = [&](const Plane& plane) { return transposed ? plane.row : plane.col; };
  const auto ready = [&](const Plane& plane, const char* at) {
    return !plane.data || (along(plane) == 1 && reinterpret_cast<std::uintptr_t>(at) % 16 == 0);
  };
  char* out = first(finish.out);
  const char *c = first(finish.c), *bias = first(finish.bias);
  const bool one_bias = along(finish.bias) == 0;
  const int left = transposed ? row_end - row : col_end - col;
#pragma unroll
  for (float& value : x) value *= finish.alpha;
  if (left >= 8 && ready(finish.out, out) && ready(finish.c, c) &&
      (one_bias || ready(finish.bias, bias))) {
    if (finish.c.data) product::Eight::load(finish.c, c).add(finish.c, finish.beta, x);
    if (finish.bias.data && one_bias) {
      const float value = finish.bias.load_at(bias);
#pragma unroll
      for (float& each : x) each += value;
    } else if (finish.bias.data) {
      product::Eight::load(finish.bias, bias).add(finish.bias, 1.0f, x);
    }
    product::activate(finish.activation, x);
    product::Eight::store(finish.out, out, x);
    return;
  }
  const auto step = [&](const Plane& plane) { return along(plane) * plane.element_bytes(); };
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= left) continue;
    if (finish.c.data) x[i] += finish.beta * finish.c.load_at(c + i * step(finish.c));
    if (finish.bias.data) x[i] += finish.bias.load_at(bias + i * step(finish.bias));
  }
  product::activate(finish.activation, x);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < left) finish.out.store_at(out + i * step(finish.out), x[i]);
}

/// The reduction of one unit's 64 x kN sums of a tile.
template <int kN>
class SplitKReduction {
 public:
  static constexpr int kPieces = kN / kPiece;

  /// `room`: memory for owned x splits pieces, at the same address in each CTA. `arrived`: the
  /// barrier that counts their bytes.
  __device__ SplitKReduction(const Arguments& args, const TileAt& at, char* room,
                             std::uint64_t* arrived, int unit)
      : args_(args),
        at_(at),
        room_(room),
        arrived_(arrived),
        rank_bytes_(args.owned * kPieceBytes),
        row_(at.row + unit * kUnit) {}

  /// Initialises `arrived` for the arrivals of the owner's threads and the bytes that the other
  /// CTAs send. Called by one thread.
  __device__ static void expect(const Arguments& args, int rank, std::uint64_t* arrived) {
    // `args.owned` pieces, or one less if the pieces do not divide evenly.
    const int owned = rank + (args.owned - 1) * args.splits < kPieces ? args.owned : args.owned - 1;
    tile::ptx::mbarrier_init(arrived, 1 + kWarpgroup);
    tile::arrive_expecting(arrived, owned * (args.splits - 1) * kPieceBytes);
  }

  /// Sends, adds up and stores. Called after the whole cluster has finished multiplying, because
  /// `room` may overlap the stages.
  __device__ __forceinline__ void reduce_and_store(const float (&sum)[kN / 2], int thread) {
    send_sums(sum, thread);
    if (at_.rank >= kPieces) return;
    tile::arrive(arrived_);
    while (!tile::ptx::mbarrier_try_wait_parity(tile::ptx::sem_acquire, tile::ptx::scope_cluster,
                                                arrived_, 0)) {
    }
    if (args_.finish.out.row == 1) {
      store<true>(thread);
    } else {
      store<false>(thread);
    }
  }

 private:
  /// Sends each piece of 16 columns of this unit's sums to its owner.
  __device__ __forceinline__ void send_sums(const float (&sum)[kN / 2], int thread) {
    char* to = room_ + at_.rank * rank_bytes_ + thread * 16;
    int owner = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const float* s = sum + piece * 8;
      if (owner == at_.rank) {
        auto* mine = reinterpret_cast<float4*>(to);
        mine[0] = {s[0], s[1], s[2], s[3]};
        mine[kWarpgroup] = {s[4], s[5], s[6], s[7]};
      } else {
        const std::uint32_t there = tile::address_of_rank(to, owner);
        const std::uint32_t arrived = tile::address_of_rank(arrived_, owner);
        send(there, arrived, s);
        send(there + kPieceBytes / 2, arrived, s + 4);
      }
      if (++owner == args_.splits) owner = 0, to += kPieceBytes;
    }
  }

  /// Each thread stores eight adjacent elements of each piece that this CTA owns: of a column if
  /// columns are contiguous (kTransposed), else of a row. It reads them from the places of other
  /// threads' accumulators, which transposes the tile without a separate exchange.
  template <bool kTransposed>
  __device__ __forceinline__ void store(int thread) {
    const product::Finish& finish = args_.finish;
    const int lane = thread % 32, half = kTransposed ? thread / 32 % 2 : thread % 2;
    const int r = kTransposed ? thread / 64 * 32 + lane % 4 * 8 : thread / 2;
    const int c = half * 8 + (kTransposed ? lane / 4 : 0);
    const int holder = r / 16 * 32 + r % 8 * 4 + c % 8 / 2;
    const char* piece = room_ + half * (kPieceBytes / 2) + holder * 16 + r % 16 / 8 * 8 + c % 2 * 4;
    const auto total = [&](float(&x)[8]) {
      const char* from = piece;
#pragma unroll
      for (float& value : x) value = 0.0f;
#pragma unroll 1
      for (int rank = 0; rank < args_.splits; ++rank, from += rank_bytes_) {
        if constexpr (kTransposed) {
#pragma unroll
          for (int i = 0; i < 8; ++i) x[i] += *reinterpret_cast<const float*>(from + i * 64);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 two = *reinterpret_cast<const float2*>(from + i * 16);
            x[i * 2] += two.x, x[i * 2 + 1] += two.y;
          }
        }
      }
      piece += kPieceBytes;
    };
    const int row = row_ + r, step = args_.splits * kPiece;
    const int col_end = min(at_.col + kN, args_.n);
    int col = at_.col + at_.rank * kPiece + c;
    if (row >= at_.row_end) return;
    if (finish.plain() &&
        (kTransposed ? finish.tall && row + 8 <= at_.row_end : finish.wide && col_end % 8 == 0)) {
      auto* out = static_cast<std::uint16_t*>(finish.out.data) + finish.out.at(row, col, at_.batch);
      const std::int64_t stride = step * finish.out.col;
#pragma unroll 1
      for (; col < col_end; col += step, out += stride) {
        float x[8];
        total(x);
        const auto pair = [&](int i) { return pack(finish.out.dtype, x[i], x[i + 1]); };
        product::store_16(out, pair(0), pair(2), pair(4), pair(6));
      }
      return;
    }
#pragma unroll 1
    for (; col < col_end; col += step) {
      float x[8];
      total(x);
      store_eight(finish, kTransposed, row, col, at_.batch, at_.row_end, args_.n, x);
    }
  }

  const Arguments& args_;
  const TileAt& at_;
  char* room_;
  std::uint64_t* arrived_;
  int rank_bytes_, row_;
};

}  // namespace tessera::cuda::sm90::skinny
