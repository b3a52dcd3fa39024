#include "src/kernels/cuda/attention/order.cuh"

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/common/scan.cuh"

namespace tessera::cuda::attention {
namespace {

constexpr int kThreads = 1024, kBuckets = kThreads;
constexpr float kSooner = 1.1f;  // margin: costs are estimates

/// Packed sequences: number of tiles per head of each sequence, and of tiles of all sequences
/// before it.
struct TileCounts {
  int per_head[planning::kMaxOrderedSequences], before[planning::kMaxOrderedSequences];
};

__device__ SequenceDescriptor sequence_of(const Walk& walk, int batch) {
  return walk.reads_sequences ? SequenceDescriptor::of(walk.sequences.at(batch))
                              : walk.uniform_sequence;
}

__device__ void count_tiles(const Walk& walk, TileCounts& counted) {
  const auto sequence = static_cast<int>(threadIdx.x);
  int per_head = 0;
  if (sequence < walk.batches) per_head = walk.tiles_of(sequence_of(walk, sequence).q_length);
  const auto before =
      static_cast<int>(exclusive_sum<kThreads>(per_head * walk.head_groups.divisor).before);
  if (sequence < walk.batches) {
    counted.per_head[sequence] = per_head;
    counted.before[sequence] = before;
  }
  __syncthreads();
}

__device__ TilePlace place_of(const Walk& walk, const TileCounts& counted, int number) {
  if (!walk.packed_q) return TilePlace::of(walk, number);
  int batch = 0;
  for (int end = walk.batches; end - batch > 1;) {
    const int middle = (batch + end) / 2;
    (counted.before[middle] <= number ? batch : end) = middle;
  }
  const int per_head = counted.per_head[batch];
  number -= counted.before[batch];
  if (number >= per_head * walk.head_groups.divisor) return TilePlace::beyond(walk, batch);
  return TilePlace::of_sequence(walk, batch, per_head, number);
}

/// Estimated cost of a tile, in pieces of keys.
__device__ int cost_of(const Walk& walk, const TilePlace& place) {
  constexpr int kTileCost = 1;  // overhead besides the walk
  const SequenceDescriptor s = sequence_of(walk, place.batch);
  const int first = place.tile * walk.queries;
  if (first >= s.q_length) return 0;
  const int last = min(first + walk.queries, s.q_length) - 1;
  const int keys = s.sight.end_of(last) - s.sight.begin_of(first);
  const int seen = keys > 0 ? keys / planning::kKeyPiece + 1 : 0;
  if (walk.mask.block_q == 0) return seen + kTileCost;
  const int set = place.head_group * walk.pack.divisor / static_cast<int>(walk.mask.group);
  float named = 0;
#pragma unroll 1
  for (int group = 0; group < walk.row_groups; ++group) {
    const int row =
        (first + walk.queries / walk.row_groups * group) / static_cast<int>(walk.mask.block_q);
    named += static_cast<float>(walk.mask.full.row(place.batch, set, row).size +
                                walk.mask.partial.row(place.batch, set, row).size);
  }
  // Assumes that the fraction of listed keys that are visible equals that of all keys.
  const auto blocks = static_cast<float>(max(walk.mask.kv_blocks, std::int64_t{1}));
  return static_cast<int>(min(__fdividef(named, blocks), 1.0f) * static_cast<float>(seen)) +
         kTileCost;
}

/// Orders the tiles by bucket sort. Tiles keep their order, since adjacent tiles share keys in L2,
/// except that a tile longer than the work left at its turn begins earlier: when the work left
/// equals its own length.
__global__ void __launch_bounds__(kThreads) order_kernel(const __grid_constant__ Walk walk) {
  let_next_grid_begin();
  wait_for_grid_before();
  if (threadIdx.x == 0) store_released(walk.grids_seen, walk.tag);
  __shared__ TileCounts counted;
  __shared__ int places[kBuckets];
  places[threadIdx.x] = 0;
  if (walk.packed_q) count_tiles(walk, counted);
  int* const costs = walk.order + walk.whole;
  const int each = (walk.whole + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, walk.whole);
  const int end = min(begin + each, walk.whole);
  std::int64_t mine = 0;
#pragma unroll 1
  for (int number = begin; number < end; ++number) {
    costs[number] = cost_of(walk, place_of(walk, counted, number));
    mine += costs[number];
  }
  const ExclusiveSum sum = exclusive_sum<kThreads>(mine);
  const auto total = static_cast<float>(max(sum.total, std::int64_t{1}));
  const float buckets_per_cost = kBuckets / total;
  auto before = static_cast<float>(sum.before);
  // The first round of tiles is running already. The cost of each other tile is overwritten with
  // its bucket and its place in the bucket.
  const int others = max(begin, walk.blocks);
#pragma unroll 1
  for (int number = begin; number < end; ++number) {
    const auto cost = static_cast<float>(costs[number]);
    const float latest = total - kSooner * cost * static_cast<float>(walk.blocks);
    const float at = max(min(before, latest), 0.0f) * buckets_per_cost;
    before += cost;
    if (number < others) continue;
    const int bucket = min(static_cast<int>(at), kBuckets - 1);
    costs[number] = atomicAdd(&places[bucket], 1) * kBuckets + bucket;
  }
  __syncthreads();
  const int in_bucket = places[threadIdx.x];
  places[threadIdx.x] = static_cast<int>(exclusive_sum<kThreads>(in_bucket).before);
  __syncthreads();
#pragma unroll 1
  for (int number = others; number < end; ++number)
    walk.order[places[costs[number] % kBuckets] + costs[number] / kBuckets] = number;
}

}  // namespace

void order_tiles(const Walk& walk, bool overlapped, cudaStream_t stream) {
  Kernel<order_kernel>::launch({.name = "order_kernel",
                                .grid = 1,
                                .threads = kThreads,
                                .stream = stream,
                                .overlapped = overlapped},
                               walk);
}

}  // namespace tessera::cuda::attention
