#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/mma.cuh"
#include "src/kernels/cuda/sm90/decode/merge.cuh"
#include "src/kernels/cuda/sm90/decode/narrow.cuh"
#include "src/kernels/cuda/sm90/decode/traits.cuh"

// A consumer warp: 16 rows of each tile, and every kTeams-th piece of its keys.
namespace tessera::cuda::sm90::decode {

template <class T>
struct Consumer {
  using Element = typename T::Element;
  using Multiplied = typename T::Multiplied;
  using Shared = typename T::Shared;

  const Arguments& args;
  Shared& shared;
  const ConsumerPlace<T> place;
  OAccumulator<T::kChunk> o_acc[T::kChunks];
  Softmax softmax;
  NarrowState<T::kNarrow> narrow;

  __device__ Consumer(const Arguments& args, Shared& shared)
      : args(args), shared(shared), place(threadIdx.x) {}

  __device__ void run() {
    tile::RingCursor<T::kTiles> tile_at;
    int steps = 0;  // of this CTA, before the tile
    while (true) {
      tile::wait(&shared.tile_ring.full[tile_at.stage], tile_at.parity);
      const TileDescriptor& tile = shared.tiles[tile_at.stage];
      if (tile.no_more_tiles) return;
      const std::uint64_t seen =
          counts(tile.share) ? read_count(&args.merge_counts[tile.share.tile]) : 0;
      const bool active = place.has_rows(args.walk, tile);
      softmax = {};
      narrow = {};
#pragma unroll
      for (auto& chunk : o_acc) clear<T::kChunk>(chunk);
      if (active) load_queries(tile);
      place.sync();
      const int end = steps + args.walk.template steps_of<T::kTeams>(tile.share);
      for (int step = place.first_step(steps); step < end; step += T::kTeams)
        compute(tile, step, active);
      steps = end;
      if constexpr (T::kNarrow) rescale(narrow.unit);
      finish_tile<T>(args, shared, place, tile, active, o_acc, softmax, seen);
      release(&shared.tile_ring.empty[tile_at.stage]);
      tile_at.advance();
    }
  }

 private:
  using Narrow = Precision<__nv_fp8_e4m3>;

  __device__ void release(std::uint64_t* barrier) {
    __syncwarp();
    if (place.lane == 0) tile::arrive(barrier);
  }

  /// One of a lane's two rows of the tile, eight apart, and where it is in Q, in elements.
  struct QueryRow {
    int head, query;  // of all rows of packed sequences
    bool exists;
    std::int64_t at;
  };
  __device__ QueryRow query_row(const TileDescriptor& tile, int half) const {
    const int row = place.row_warp * 16 + half * 8 + place.lane / 4;
    const int within = args.walk.pack.quotient(row);
    QueryRow found;
    found.head = tile.head + row - within * args.walk.pack.divisor;
    const int query = tile.first_query + within;
    found.exists = row < args.walk.rows() && query < tile.q_length;
    found.query = tile.q_begin + query;
    found.at = tile.batch * args.q.batch + found.query * args.q.row + found.head * args.q.head;
    return found;
  }

  /// The same of queries in e4m3, which f16 holds exactly; scores are multiplied by their factors.
  __device__ void load_narrow_queries(const TileDescriptor& tile) {
    const QueryRow rows[2] = {query_row(tile, 0), query_row(tile, 1)};
    if (place.team == 0 && place.lane % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        shared.row_factors[place.row_warp][half * 8 + place.lane / 4] =
            rows[half].exists ? args.q_factors.of(tile.batch, rows[half].head, rows[half].query)
                              : 1.0f;
    }
#pragma unroll 1
    for (int mma = place.team; mma < T::kDim / 16; mma += T::kTeams) {
      std::uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = mma * 16 + column_of_operand<T::kNarrow>(i / 2, place.lane);
        word[i] = 0;
        if (rows[i % 2].exists && column < args.q.dim)
          word[i] = Narrow::low_as_f16(__ldg(reinterpret_cast<const std::uint16_t*>(
              static_cast<const char*>(args.q.data) + rows[i % 2].at + column)));
      }
      shared.q[place.row_warp][mma][place.lane] = {word[0], word[1], word[2], word[3]};
    }
  }

  /// Loads the A operands of the row warp's 16 rows into shared memory; each team loads some. Rows
  /// and columns that do not exist are zeros.
  __device__ void load_queries(const TileDescriptor& tile) {
    if constexpr (T::kScalesQueries)
      if (args.narrow_queries) return load_narrow_queries(tile);
    const QueryRow rows[2] = {query_row(tile, 0), query_row(tile, 1)};
    const char* row_at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      row_at[half] =
          static_cast<const char*>(args.q.data) + rows[half].at * static_cast<int>(sizeof(Element));
    const auto load = [&](int mma, std::uint32_t(&word)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = mma * 16 + column_of_operand<T::kNarrow>(i / 2, place.lane);
        word[i] = 0;
        if (rows[i % 2].exists && column < args.q.dim)
          word[i] = __ldg(
              reinterpret_cast<const std::uint32_t*>(row_at[i % 2] + column * sizeof(Element)));
      }
    };
    [[maybe_unused]] float to_f16[2];
    if constexpr (T::kScalesQueries) {
      float largest[2] = {};
#pragma unroll 2
      for (int mma = 0; mma < T::kDim / 16; ++mma) {
        std::uint32_t word[4];
        load(mma, word);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = Precision<Element>::unpack(word[i]);
          largest[i % 2] = fmaxf(largest[i % 2], fmaxf(fabsf(pair.x), fabsf(pair.y)));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const RowFactor factor(quad_max(largest[half]));
        to_f16[half] = factor.to_f16;
        if (place.team == 0 && place.lane % 4 == 0)
          shared.row_factors[place.row_warp][half * 8 + place.lane / 4] = factor.of_scores;
      }
    }
#pragma unroll 2
    for (int mma = place.team; mma < T::kDim / 16; mma += T::kTeams) {
      std::uint32_t word[4];
      load(mma, word);
      if constexpr (T::kScalesQueries) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = Precision<Element>::unpack(word[i]);
          const float factor = to_f16[i % 2];
          word[i] = Precision<Multiplied>::pack(pair.x * factor, pair.y * factor);
        }
      }
      shared.q[place.row_warp][mma][place.lane] = {word[0], word[1], word[2], word[3]};
    }
  }

  __device__ void compute(const TileDescriptor& tile, int number, bool active) {
    const int stage = number % T::kStages;
    const std::uint32_t parity = number / T::kStages & 1;
    tile::wait(&shared.k_full[stage], parity);
    const auto& step = shared.steps[stage];
    if (step.visited && active) {
      const std::uint64_t kept = step.kept;
      float score[T::kKeys / 2];
      multiply_qk(score, shared.keys[stage]);
      if constexpr (T::kNarrow) {
        float of_rows[2] = {1.0f, 1.0f};
        if constexpr (T::kScalesQueries) {
          const float* const factors = shared.row_factors[place.row_warp];
          of_rows[0] = factors[place.lane / 4], of_rows[1] = factors[8 + place.lane / 4];
        }
        scale_scores(score, step, of_rows);
      }
      if (args.transforms_scores) transform_each(score, args.transform);
      if (step.masked) mask(score, step, tile);
      softmax.update_by_max(score, args.exponents, [&](const float(&factor)[2]) {
#pragma unroll
        for (auto& chunk : o_acc)
#pragma unroll
          for (int i = 0; i < T::kChunk / 2; ++i) chunk[i] *= factor[i / 2 % 2];
      });
      if constexpr (T::kNarrow) narrow.weigh(score, step, [&](float factor) { rescale(factor); });
      tile::wait(&shared.v_full[stage], parity);
      if (kept != kAllKeys) clear_hidden(shared.values[stage], kept);
      multiply_pv(score, shared.values[stage]);
    }
    release(&shared.empty[stage]);
  }

  __device__ __forceinline__ void rescale(float factor) {
#pragma unroll
    for (auto& chunk : o_acc)
#pragma unroll
      for (float& x : chunk) x *= factor;
  }

  /// score = Q K^T, for 16 rows and 64 keys.
  __device__ __forceinline__ void multiply_qk(float (&score)[T::kKeys / 2],
                                              typename T::Keys& keys) {
#pragma unroll
    for (float& x : score) x = 0.0f;
    const std::uint32_t chunk =
        tile::shared_address(keys.chunk(place.lane % 16, place.lane / 16 * T::Keys::kChunk));
    // Each load gives 32 bytes of 16 keys: a depth of 16, or of 32 where they are narrow.
#pragma unroll
    for (int load = 0; load < T::kDim / T::Keys::Of::kMmaDepth; ++load) {
      std::uint32_t a[T::kNarrow ? 2 : 1][4];
#pragma unroll
      for (auto& words : a) {
        const int mma = T::kNarrow ? load * 2 + static_cast<int>(&words - a) : load;
        const uint4 q = shared.q[place.row_warp][mma][place.lane];
        words[0] = q.x, words[1] = q.y, words[2] = q.z, words[3] = q.w;
      }
#pragma unroll
      for (int rows = 0; rows < T::kKeys / 16; ++rows) {
        std::uint32_t b[4];
        load_left_operand(T::Keys::to_mma(chunk, load) + rows * 16 * T::Keys::kLineBytes, b);
        auto &first = columns_of(score, rows * 2), &second = columns_of(score, rows * 2 + 1);
        if constexpr (T::kNarrow) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const std::uint32_t of_first = b[half * 2], of_second = b[half * 2 + 1];
            cuda::mma<Multiplied>(first, a[half], Narrow::low_as_f16(of_first),
                                  Narrow::high_as_f16(of_first));
            cuda::mma<Multiplied>(second, a[half], Narrow::low_as_f16(of_second),
                                  Narrow::high_as_f16(of_second));
          }
        } else {
          cuda::mma<Multiplied>(first, a[0], b[0], b[2]);
          cuda::mma<Multiplied>(second, a[0], b[1], b[3]);
        }
      }
    }
  }

  /// O += P V.
  __device__ __forceinline__ void multiply_pv(const float (&p)[T::kKeys / 2],
                                              typename T::Values& values) {
    const std::uint32_t chunk =
        tile::shared_address(values.chunk(place.lane % 16, place.lane / 16 * T::Values::kChunk));
#pragma unroll
    for (int mma = 0; mma < T::kKeys / 16; ++mma) {
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = Precision<Multiplied>::pack(p[mma * 8 + i * 2], p[mma * 8 + i * 2 + 1]);
      constexpr int kColumns = T::Values::Of::kMmaDepth, kGroups = T::kChunk / 8;  // per load
#pragma unroll
      for (int load = 0; load < T::kDimV / kColumns; ++load) {
        std::uint32_t b[4];
        load_transposed(T::Values::to_mma(chunk, load) + mma * 16 * T::Values::kLineBytes, b);
        auto& of_chunk = o_acc[load * kColumns / T::kChunk];
        const int group = load * (kColumns / 8) % kGroups;
        if constexpr (T::kNarrow) {
          // Words hold two columns of two keys each: of each 16 columns, first the even ones.
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const std::uint32_t near = by_columns(b[half * 2]), far = by_columns(b[half * 2 + 1]);
            cuda::mma<Multiplied>(columns_of(of_chunk, group + half * 2), a,
                                  Narrow::low_as_f16(near), Narrow::low_as_f16(far));
            cuda::mma<Multiplied>(columns_of(of_chunk, group + half * 2 + 1), a,
                                  Narrow::high_as_f16(near), Narrow::high_as_f16(far));
          }
        } else {
          cuda::mma<Multiplied>(columns_of(of_chunk, group), a, b[0], b[1]);
          cuda::mma<Multiplied>(columns_of(of_chunk, group + 1), a, b[2], b[3]);
        }
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
