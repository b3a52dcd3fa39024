#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/mma.cuh"
#include "src/kernels/cuda/sm90/decode/merge.cuh"
#include "src/kernels/cuda/sm90/decode/traits.cuh"

// A consumer warp: 16 rows of each tile, and every kTeams-th piece of its keys.
namespace tessera::cuda::sm90::decode {

template <class T>
struct Consumer {
  using Element = typename T::Element;
  using Shared = typename T::Shared;

  const Arguments& args;
  Shared& shared;
  const ConsumerPlace<T> place;
  OAccumulator<T::kChunk> o_acc[T::kChunks];
  Softmax softmax;

  __device__ Consumer(const Arguments& args, Shared& shared)
      : args(args), shared(shared), place(threadIdx.x) {}

  __device__ void run() {
    tile::RingCursor<T::kTiles> tile_at;
    int steps = 0;  // of this CTA, before the tile
    while (true) {
      tile::wait(&shared.tile_ring.full[tile_at.stage], tile_at.parity);
      const TileDescriptor& tile = shared.tiles[tile_at.stage];
      if (tile.no_more_tiles) return;
      const bool active = place.has_rows(args.walk, tile);
      softmax = {};
#pragma unroll
      for (auto& chunk : o_acc) clear<T::kChunk>(chunk);
      if (active) load_queries(tile);
      place.sync();
      const int end = steps + args.walk.template steps_of<T::kTeams>(tile.share);
      for (int step = place.first_step(steps); step < end; step += T::kTeams)
        compute(tile, step, active);
      steps = end;
      finish_tile<T>(args, shared, place, tile, active, o_acc, softmax);
      release(&shared.tile_ring.empty[tile_at.stage]);
      tile_at.advance();
    }
  }

 private:
  __device__ void release(std::uint64_t* barrier) {
    __syncwarp();
    if (place.lane == 0) tile::arrive(barrier);
  }

  /// Loads the A operands of the row warp's 16 rows into shared memory; each team loads some. Rows
  /// and columns that do not exist are zeros.
  __device__ void load_queries(const TileDescriptor& tile) {
    const char* row_at[2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row_warp * 16 + half * 8 + place.lane / 4;
      const int within = args.walk.pack.quotient(row);
      const int head = tile.head + row - within * args.walk.pack.divisor;
      const int query = tile.first_query + within;
      exists[half] = row < args.walk.rows() && query < tile.q_length;
      row_at[half] =
          static_cast<const char*>(args.q.data) +
          (tile.batch * args.q.batch + (tile.q_begin + query) * args.q.row + head * args.q.head) *
              static_cast<int>(sizeof(Element));
    }
#pragma unroll 2
    for (int mma = place.team; mma < T::kDim / 16; mma += T::kTeams) {
      std::uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = mma * 16 + i / 2 * 8 + place.lane % 4 * 2;
        word[i] = 0;
        if (exists[i % 2] && column < args.q.dim)
          word[i] = __ldg(
              reinterpret_cast<const std::uint32_t*>(row_at[i % 2] + column * sizeof(Element)));
      }
      shared.q[place.row_warp][mma][place.lane] = {word[0], word[1], word[2], word[3]};
    }
  }

  __device__ void compute(const TileDescriptor& tile, int number, bool active) {
    const int stage = number % T::kStages;
    const std::uint32_t parity = number / T::kStages & 1;
    tile::wait(&shared.k_full[stage], parity);
    const Step& step = shared.steps[stage];
    if (step.visited && active) {
      const std::uint64_t kept = step.kept;
      float score[T::kKeys / 2];
      multiply_qk(score, shared.keys[stage]);
      if (args.transforms_scores) transform_scores(score, args.transform);
      if (step.masked) mask(score, step, tile);
      softmax.update_by_max(score, args.exponents, [&](const float(&factor)[2]) {
#pragma unroll
        for (auto& chunk : o_acc)
#pragma unroll
          for (int i = 0; i < T::kChunk / 2; ++i) chunk[i] *= factor[i / 2 % 2];
      });
      tile::wait(&shared.v_full[stage], parity);
      if (kept != kAllKeys) clear_hidden(shared.values[stage], kept);
      multiply_pv(score, shared.values[stage]);
    }
    release(&shared.empty[stage]);
  }

  /// score = Q K^T, for 16 rows and 64 keys.
  __device__ __forceinline__ void multiply_qk(float (&score)[T::kKeys / 2],
                                              typename T::Keys& keys) {
#pragma unroll
    for (float& x : score) x = 0.0f;
    const std::uint32_t chunk =
        tile::shared_address(keys.chunk(place.lane % 16, place.lane / 16 * 8));
#pragma unroll
    for (int mma = 0; mma < T::kDim / 16; ++mma) {
      const uint4 q = shared.q[place.row_warp][mma][place.lane];
      const std::uint32_t a[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int rows = 0; rows < T::kKeys / 16; ++rows) {
        std::uint32_t b[4];
        load_left_operand(T::Keys::to_mma(chunk, mma) + rows * 16 * T::Keys::kLineBytes, b);
        cuda::mma<Element>(columns_of(score, rows * 2), a, b[0], b[2]);
        cuda::mma<Element>(columns_of(score, rows * 2 + 1), a, b[1], b[3]);
      }
    }
  }

  /// O += P V.
  __device__ __forceinline__ void multiply_pv(const float (&p)[T::kKeys / 2],
                                              typename T::Values& values) {
    const std::uint32_t chunk =
        tile::shared_address(values.chunk(place.lane % 16, place.lane / 16 * 8));
#pragma unroll
    for (int mma = 0; mma < T::kKeys / 16; ++mma) {
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = Precision<Element>::pack(p[mma * 8 + i * 2], p[mma * 8 + i * 2 + 1]);
#pragma unroll
      for (int columns = 0; columns < T::kDimV / 16; ++columns) {
        std::uint32_t b[4];
        load_transposed(T::Values::to_mma(chunk, columns) + mma * 16 * T::Values::kLineBytes, b);
        auto& of_chunk = o_acc[columns * 16 / T::kChunk];
        constexpr int kGroups = T::kChunk / 8;
        cuda::mma<Element>(columns_of(of_chunk, columns * 2 % kGroups), a, b[0], b[1]);
        cuda::mma<Element>(columns_of(of_chunk, columns * 2 % kGroups + 1), a, b[2], b[3]);
      }
    }
  }

  /// The accumulators of eight columns.
  template <int kCount>
  __device__ __forceinline__ static float (&columns_of(float (&sum)[kCount], int group))[4] {
    return reinterpret_cast<float(&)[4]>(sum[group * 4]);
  }

  /// Sets scores to -inf: of keys that the query does not see, or whose page does not exist. The
  /// element masks have no rows for tile rows without a query, so these read another row's.
  __device__ __forceinline__ void mask(float (&score)[T::kKeys / 2], const Step& step,
                                       const TileDescriptor& tile) {
    const int last = min(args.walk.queries, tile.q_length - tile.first_query) - 1;
    const int first_column = place.lane % 4 * 2, key = step.key;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row_warp * 16 + half * 8 + place.lane / 4;
      const int query = min(args.walk.pack.quotient(row), last);
      std::uint64_t seen = step.kept >> first_column;
      if (step.bits != kNoBits) {
        const std::int64_t word_row = args.walk.word_queries.quotient(query);
        seen &= read_bits(args.masks, args.walk, step.bits + word_row * args.walk.bits_row) >>
                first_column;
      }
      seen &= tile.sight.bits_of(tile.first_query + query, key + first_column);
#pragma unroll
      for (int i = 0; i < T::kKeys / 4; ++i)
        if ((seen >> (i / 2 * 8 + i % 2) & 1) == 0) score[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
    }
  }

  /// Zeroes the values of keys that no query of the tile sees: they may be NaN, and 0 * NaN is NaN.
  /// All warps of a team write the same zeros.
  __device__ __forceinline__ void clear_hidden(typename T::Values& values, std::uint64_t kept) {
    constexpr int kChunks = T::Values::kLineBytes / 16, kRows = 32 / kChunks;
#pragma unroll 1
    for (int first = 0; first < T::kKeys; first += kRows) {
      const int row = first + place.lane / kChunks;
      if (kept >> row & 1) continue;
#pragma unroll
      for (int panel = 0; panel < T::Values::kPanels; ++panel)
        reinterpret_cast<uint4*>(values.panel(panel, row))[place.lane % kChunks] = uint4{};
    }
    // Before the stage is released, and TMA writes to it again.
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    __syncwarp();
  }
};

}  // namespace tessera::cuda::sm90::decode
