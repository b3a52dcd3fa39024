#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/mma.cuh"
#include "src/kernels/cuda/sm80/attention/copy.cuh"
#include "src/kernels/cuda/sm80/attention/shape.cuh"

namespace tessera::cuda::sm80::attention {

/// A range of keys.
struct KeyRange {
  std::int32_t begin, end;
};

/// A warp's rows of a tile: one or two blocks of 16 rows, which share each load of K and V from
/// shared memory. Holds their scores, P, O accumulators and softmax state.
template <class T>
class WarpRows {
 public:
  /// `seen`: of each warp, for its own use: registers are scarce.
  __device__ __forceinline__ WarpRows(const Arguments& args, KeyRange* seen)
      : args_(args), seen_(seen) {}

  /// Begins a tile, whose Q lies at the shared address `queries`.
  __device__ __forceinline__ void begin(const TileDescriptor& tile, std::uint32_t queries) {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      clear<T::kDimV>(o_acc_[block]);
      softmax_[block] = {};
    }
    if (lane() == 0) seen_[warp()] = find_keys(tile);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < T::kQRegisterMmas; ++i)
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block)
        load_left_operand(query_address(queries, block, i), q_registers_[block] + i * 4);
  }

  /// Whether some row of this warp sees a key of the step.
  __device__ __forceinline__ bool needs(int key) const {
    const KeyRange seen = seen_[warp()];
    return agreed(key < seen.end && key + T::kN > seen.begin);
  }

  /// score = Q K^T.
  __device__ __forceinline__ void multiply_qk(std::uint32_t queries, std::uint32_t keys) {
    using Rows = typename T::Keys;
    constexpr int kPairBytes = 16 * Rows::kLineBytes;  // to the next 16 keys
    const LaneChunk at = LaneChunk::of_keys(lane());
    const std::uint32_t from = keys + Rows::offset(at.row, at.chunk);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
#pragma unroll
      for (float& score : score_[block]) score = 0.0f;
#pragma unroll
    for (int i = 0; i < T::kQkMmas; ++i) {
      std::uint32_t q[T::kBlocks][4];
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
        if (i < T::kQRegisterMmas) {
#pragma unroll
          for (int word = 0; word < 4; ++word) q[block][word] = q_registers_[block][i * 4 + word];
        } else {
          load_left_operand(query_address(queries, block, i), q[block]);
        }
      }
#pragma unroll
      for (int pair = 0; pair < T::kN / 16; ++pair) {
        std::uint32_t k[4];
        load_left_operand(Rows::to_right(from, 2 * i) + pair * kPairBytes, k);
#pragma unroll
        for (int block = 0; block < T::kBlocks; ++block) {
          mma<typename T::Element>(four(score_[block], pair * 2), q[block], k[0], k[1]);
          mma<typename T::Element>(four(score_[block], pair * 2 + 1), q[block], k[2], k[3]);
        }
      }
    }
  }

  /// Transforms and masks the scores and turns them into P, rounded. The accumulators of QK have
  /// the layout of the left operand of PV.
  /// With pages, keys that are not `kept` are hidden: their pages may not exist.
  __device__ __forceinline__ void compute_p(const typename T::Step& step,
                                            const TileDescriptor& tile, std::uint64_t kept) {
    // The ceiling exists only with a score transform: without one, scores are not bounded.
    const Exponents exponents{args_.exponents.scale,
                              T::kTransformsScores ? args_.exponents.ceiling : INFINITY};
    const bool masked = agreed((step.flags[0].masked >> warp() & 1) != 0);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      if constexpr (T::kTransformsScores) transform_scores(score_[block], args_.transform);
      if (masked) {
        const int column = lane() % 4 * 2;
        std::uint64_t present = kAllKeys;
        if constexpr (T::kReadsPages)
          if (args_.pages.table) present = kept >> column;
        mask_scores<0>(score_[block], step, tile, args_.walk, args_.masks,
                       first_row(block) + lane() / 4, column, -INFINITY,
                       [&](std::uint64_t bits) { return bits & present; });
      }
      softmax_[block].update_by_max(score_[block], exponents, [&](const float(&factor)[2]) {
#pragma unroll
        for (int i = 0; i < T::kDimV / 2; ++i) o_acc_[block][i] *= factor[i / 2 % 2];
      });
#pragma unroll
      for (int i = 0; i < T::kN / 4; ++i)
        p_[block][i / 4][i % 4] =
            T::Precision::pack(score_[block][2 * i], score_[block][2 * i + 1]);
    }
  }

  /// O += P V.
  __device__ __forceinline__ void multiply_pv(std::uint32_t values) {
    using Rows = typename T::Values;
    const LaneChunk at = LaneChunk::of_values(lane());
    const std::uint32_t from = values + Rows::offset(at.row, at.chunk);
#pragma unroll
    for (int i = 0; i < T::kPvMmas; ++i) {
#pragma unroll
      for (int pair = 0; pair < T::kDimV / 16; ++pair) {
        std::uint32_t v[4];
        load_transposed(Rows::to_right(from, 2 * pair) + i * 16 * Rows::kLineBytes, v);
#pragma unroll
        for (int block = 0; block < T::kBlocks; ++block) {
          mma<typename T::Element>(four(o_acc_[block], pair * 2), p_[block][i], v[0], v[1]);
          mma<typename T::Element>(four(o_acc_[block], pair * 2 + 1), p_[block][i], v[2], v[3]);
        }
      }
    }
  }

  /// Ends a tile: stores its rows. Where its keys are split across thread blocks, only the last one
  /// of them stores. All threads call this together.
  __device__ __forceinline__ void finish(const TileDescriptor& tile) {
    if (agreed(tile.share.parts > 1) && !merge_parts(tile.share)) return;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      const RowPlaces rows(args_.walk, tile, first_row(block), lane());
      const Normalised normalised(softmax_[block], args_.sinks, rows);
      if (args_.result.dtype == DType::f32) {
        store_f32<T::kDimV>(args_.result, tile, rows, o_acc_[block], normalised.factor, lane());
      } else {
        store_16bit<T::kDimV>(args_.result, tile, rows, o_acc_[block], normalised.factor, lane());
      }
      store_lse(args_.result, tile, rows, normalised.lse, lane());
    }
  }

 private:
  /// Accumulators of an MMA: 16 rows x the eight columns number `eight`.
  template <int kCount>
  __device__ __forceinline__ static float (&four(float (&all)[kCount], int eight))[4] {
    return reinterpret_cast<float(&)[4]>(all[eight * 4]);
  }

  // Not kept in registers, which are scarce, and neither are addresses that follow from them.
  __device__ __forceinline__ static int lane() { return thread_of_block() % kLanes; }
  __device__ __forceinline__ static int warp() { return thread_of_block() / kLanes; }
  __device__ __forceinline__ static int first_row(int block) {
    return warp() * T::kWarpRows + block * 16;
  }

  __device__ __forceinline__ std::uint32_t query_address(std::uint32_t queries, int block,
                                                         int i) const {
    using Rows = typename T::Queries;
    const LaneChunk at = LaneChunk::of_queries(lane());
    const std::uint32_t from = queries + Rows::offset(first_row(0) + at.row, at.chunk);
    return Rows::to_right(from, 2 * i) + block * 16 * Rows::kLineBytes;
  }

  /// The keys that some row of this warp sees.
  __device__ __forceinline__ KeyRange find_keys(const TileDescriptor& tile) const {
    const Walk& walk = args_.walk;
    const int row = first_row(0), end = min(row + T::kWarpRows, walk.rows());
    const int first = tile.first_query + walk.pack.quotient(row);
    if (row >= end || first >= tile.q_length) return {0, 0};
    const int last = min(tile.first_query + walk.pack.quotient(end - 1), tile.q_length - 1);
    return {tile.sight.begin_of(first), tile.sight.end_of(last)};
  }

  /// Stores this thread block's partial results of a split tile and counts them. Returns true in
  /// the thread block that counts last, which then holds the merged results. Parts are always added
  /// in the same order, whichever is last.
  __device__ __forceinline__ bool merge_parts(const planning::KvShare& share) {
    constexpr int kPerPart = T::kM / 16;
    auto* const partials = static_cast<typename T::Partial*>(args_.partials) +
                           share.slot * kPerPart + first_row(0) / 16;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block)
      store_partial<T::kDimV>(partials[share.part * kPerPart + block], o_acc_[block],
                              softmax_[block], lane());
    __threadfence();
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
      last = count_up(&args_.merge_counts[share.tile], args_.walk.tag, share.parts, false) ==
             share.parts - 1;
      __threadfence();
    }
    if (!__syncthreads_or(last)) return false;
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      softmax_[block] = {};
      clear<T::kDimV>(o_acc_[block]);
#pragma unroll 1
      for (int part = 0; part < share.parts; ++part)
        add_partial<false, T::kDimV>(partials[part * kPerPart + block], o_acc_[block],
                                     softmax_[block], lane());
    }
    return true;
  }

  const Arguments& args_;
  KeyRange* seen_;
  float score_[T::kBlocks][T::kN / 2];
  std::uint32_t p_[T::kBlocks][T::kPvMmas][4];
  OAccumulator<T::kDimV> o_acc_[T::kBlocks];
  Softmax softmax_[T::kBlocks];
  std::uint32_t q_registers_[T::kBlocks][T::kQRegisterMmas > 0 ? T::kQRegisterMmas * 4 : 1];
};

}  // namespace tessera::cuda::sm80::attention
