#include <cstdint>

#include "src/kernels/cuda/attention_backward/head_rows.cuh"
#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"

// After the main kernel: sums of dQ, and of dK and dV of shares, to the gradients' dtypes and
// strides.
namespace tessera::cuda::attention_backward {
namespace {

struct Conversion {
  const float* sums;
  const std::int32_t* turns;  // null: sums were added in any order, to zeros
  HeadRows dq;
  float scale;
  int turns_per_block, width;  // turn counters, and columns of sums
  int count;                   // of sums
  SumsOrder order;
};

/// A warp takes 16 queries and 32 columns at a time. Its loads are contiguous, each lane's of two
/// columns of two queries; lanes of a quad exchange them, for rows of 64 bytes or more at once.
__device__ void convert_dq(const Conversion& c, const BackwardWalk& walk, bool stores) {
  constexpr int kRows = 16, kRowSets = planning::kQueriesPerBlock / kRows, kGroups = 4;
  static_assert(kThreads / kLanes % kRowSets == 0);
  const HeadPlace place = HeadPlace::here(walk);
  if (place.queries.batch < 0) return;
  const bool by_lane = c.order == SumsOrder::by_lane;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, in_quad = lane % kGroups;
  const int row_set = warp % kRowSets, query = row_set * kRows + lane / 4;
  for (int first = warp / kRowSets * kGroups; first * kEight < c.dq.columns;
       first += kThreads / kLanes / kRowSets * kGroups) {
    // Of each of four groups of eight columns: two columns of `query`, and of `query` + 8.
    float sums[2][2 * kGroups] = {};
    for (int i = 0; i < c.count; ++i) {
      const std::int64_t slot = place.slot + i * blocks_of_heads(walk);
      if (c.turns && __ldcg(c.turns + slot * c.turns_per_block) == 0)
        continue;  // nothing has been added
      const float* const block = c.sums + slot * planning::kQueriesPerBlock * c.width;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float* const from =
            block + planning::sum_index(c.order, row_set * kRows, (first + g) * kEight);
        const float4 of =
            by_lane ? __ldcg(reinterpret_cast<const float4*>(from) + lane)
                    : float4{__ldcg(from + lane), __ldcg(from + kLanes + lane),
                             __ldcg(from + 2 * kLanes + lane), __ldcg(from + 3 * kLanes + lane)};
        sums[0][2 * g] += of.x, sums[0][2 * g + 1] += of.y;
        sums[1][2 * g] += of.z, sums[1][2 * g + 1] += of.w;
      }
    }
#pragma unroll
    for (auto& of_query : sums)
#pragma unroll
      for (float& x : of_query) x *= c.scale;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      transpose_in_quad<2>(sums[half], in_quad);
      const int i = query + half * 8, column = (first + in_quad) * kEight;
      if (stores && i < place.queries.size() && column < c.dq.columns)
        store_eight(c.dq, place.in(c.dq, i), column, sums[half]);
    }
  }
}

/// dk or dv, whose sums of shares are in contiguous rows.
struct SharedGradient {
  HeadRows sums, to;
  int rows = 0;
  planning::Divisor words, kv_heads;  // eight columns each; heads
  planning::Divisor length;           // rows of a sequence, or all if packed

  __host__ __device__ std::int64_t threads() const {
    return to.data ? std::int64_t{rows} * kv_heads.divisor * words.divisor : 0;
  }
};

/// A thread adds up eight columns of a key, in the order of shares.
__device__ void add_shares(const SharedGradient& g, const BackwardWalk& walk, std::int64_t number,
                           bool stores) {
  if (number >= g.threads()) return;
  const int shares = walk.tile_shares.count();
  const std::int64_t of_heads = g.words.quotient(number);
  const int column = static_cast<int>(number - of_heads * g.words.divisor) * kEight;
  const int row = static_cast<int>(g.kv_heads.quotient(of_heads));
  const int head = static_cast<int>(of_heads - std::int64_t{row} * g.kv_heads.divisor);
  if (walk.keys.packed) {  // rows of no sequence have no sums
    const planning::Sequence last = walk.sequences.at(walk.batches - 1);
    if (row < walk.sequences.at(0).kv_begin || row >= last.kv_begin + last.kv_length) return;
  }
  float sum[kEight] = {};
  const float* from = static_cast<const float*>(g.sums.data) + row * g.sums.row +
                      head * shares * g.sums.head + column;
  for (int share = 0; share < shares; ++share, from += g.sums.head) {
    const float4 low = __ldcg(reinterpret_cast<const float4*>(from));
    const float4 high = __ldcg(reinterpret_cast<const float4*>(from) + 1);
    const float of_share[kEight] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum[i] += of_share[i];
  }
  if (!stores) return;
  const int batch = g.length.quotient(row), in_sequence = g.length.rest(row);
  store_eight(g.to, batch * g.to.batch + in_sequence * g.to.row + head * g.to.head, column, sum);
}

/// The first `dq_blocks` thread blocks have dQ, the next `dk_blocks` dk, the others dv. Where
/// thread blocks wait for the main kernel to end, they first go through all but the stores, with
/// sums that are not complete, so that their code is in the instruction cache (`rehearses`). Sums
/// are read from L2, as the cache of an SM could still hold what was read then.
__global__ void __launch_bounds__(kThreads)
    convert_sums_kernel(const __grid_constant__ Conversion c,
                        const __grid_constant__ BackwardWalk walk,
                        const __grid_constant__ SharedGradient dk,
                        const __grid_constant__ SharedGradient dv, unsigned dq_blocks,
                        unsigned dk_blocks, bool rehearses) {
#pragma unroll 1
  for (int turn = rehearses ? 0 : 1; turn < 2; ++turn) {
    const bool stores = turn == 1;
    if (stores) wait_for_grid_before();
    if (blockIdx.x < dq_blocks) {
      convert_dq(c, walk, stores);
    } else {
      const unsigned block = blockIdx.x - dq_blocks;
      const bool keys = block < dk_blocks;
      const std::int64_t first = std::int64_t{keys ? block : block - dk_blocks} * kThreads;
      add_shares(keys ? dk : dv, walk, first + threadIdx.x, stores);
    }
  }
}

}  // namespace

HeadRows rows_of_shares(const Tensor& to, float* sums, const planning::AttentionShape& shape,
                        const BackwardWalk& walk) {
  HeadRows rows = HeadRows::of(to);
  if (!to || !sums) return rows;
  rows.data = sums;
  rows.dtype = DType::f32;
  rows.head = rows.columns;
  rows.row = std::int64_t{walk.shares} * rows.head;
  rows.batch = walk.keys.packed ? 0 : shape.kv_length * rows.row;
  rows.col = 1;
  rows.wide = true;
  return rows;
}

void convert_sums(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
                  const BackwardWalk& walk, const BackwardScratch& scratch, int width,
                  SumsOrder order, bool overlapped, void* stream) {
  const Conversion c{scratch.dq,
                     scratch.turns,
                     HeadRows::of(problem.dq),
                     shape.scale,
                     scratch.turns_per_block,
                     width,
                     scratch.sums,
                     order};
  const auto gradient = [&](const Tensor& to, float* sums) {
    if (!to || !sums) return SharedGradient{};
    SharedGradient g;
    g.sums = rows_of_shares(to, sums, shape, walk);
    g.to = HeadRows::of(to);
    g.rows = static_cast<int>(shape.kv_total);
    g.words = planning::Divisor::of(g.to.columns / kEight);
    g.kv_heads = planning::Divisor::of(static_cast<int>(shape.kv_heads));
    const std::int64_t length = walk.keys.packed ? shape.kv_total : shape.kv_length;
    g.length = planning::Divisor::of(static_cast<int>(length));
    return g;
  };
  const SharedGradient dk = gradient(problem.dk, scratch.dk), dv = gradient(problem.dv, scratch.dv);
  const auto blocks_of = [](const SharedGradient& g) {
    return static_cast<unsigned>((g.threads() + kThreads - 1) / kThreads);
  };
  const bool has_dq = scratch.dq && problem.dq && shape.q_total > 0;
  const unsigned of_dq = has_dq ? static_cast<unsigned>(blocks_of_heads(walk)) : 0;
  const unsigned of_dk = blocks_of(dk), blocks = of_dq + of_dk + blocks_of(dv);
  if (blocks == 0) return;
  // Of more thread blocks most begin when the main kernel has ended. Blocks of packed queries may
  // be looked for only once (place_of_block).
  constexpr unsigned kWaiting = 256;
  const bool rehearses = overlapped && blocks <= kWaiting && !walk.queries.packed;
  Kernel<convert_sums_kernel>::launch({.name = "convert_sums_kernel",
                                       .grid = grid_of(blocks),
                                       .threads = kThreads,
                                       .stream = stream,
                                       .overlapped = overlapped},
                                      c, walk, dk, dv, of_dq, of_dk, rehearses);
}

}  // namespace tessera::cuda::attention_backward
