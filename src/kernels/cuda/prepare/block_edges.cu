#include "src/kernels/cuda/prepare/block_edges.hpp"

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"

// The transposed view of a composed mask. One warp takes one row of lists of one sequence, its
// lanes the entries. Bits are set by OR, so results do not depend on the order of warps.
namespace tessera::cuda {
namespace {

using planning::BlockEdges;
using planning::NarrowSight;

constexpr int kThreads = 256, kWarps = kThreads / kLanes;

__global__ void __launch_bounds__(kThreads) clear_kernel(BlockEdges edges) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < edges.sizes.bitmap_words(); i += step) edges.bitmap[i] = 0;
  for (std::int64_t i = first; i < edges.sizes.key_words(); i += step) edges.keys[i] = 0;
}

__device__ void add_row(const BlockEdges& edges, const planning::SequenceView& sequences,
                        std::int64_t number) {
  const int lane = threadIdx.x % kLanes;
  const planning::ComposedMask& mask = edges.sizes.mask;
  const std::int64_t row = number % mask.rows, list_head = number / mask.rows % mask.heads,
                     batch = number / mask.rows / mask.heads;
  const std::int64_t set = (mask.batch > 1 ? batch : 0) * mask.heads + list_head;
  const std::int64_t line = set * mask.rows + row, begin = line * mask.capacity;
  const planning::Sequence sequence = sequences.at(batch);
  const NarrowSight by_query = NarrowSight::of(sequence.sight),
                    by_key = NarrowSight::of(sequence.sight.from_keys(sequence.q_length));
  const std::int64_t first64 = row * mask.queries;
  const std::int64_t last64 = first64 + mask.queries;
  const int first = static_cast<int>(first64);
  const int end = static_cast<int>(last64 < sequence.q_length ? last64 : sequence.q_length);
  // The bitmap tells what lists name, for all sequences that share them.
  const bool marks = mask.batch > 1 || batch == 0;
  std::uint32_t* const bitmap =
      edges.bitmap + set * edges.sizes.tiles * edges.sizes.row_words + row / 32;
  std::uint64_t* const keys = edges.keys + (batch * mask.heads + list_head) * edges.sizes.tiles * 2;
  std::uint64_t queries = 0;
  const auto note = [&](std::int32_t column, const planning::EdgeSight& sight) {
    queries |= sight.queries;
    if (sight.keys != 0)
      atomicOr(reinterpret_cast<unsigned long long*>(keys + column),
               static_cast<unsigned long long>(sight.keys));
  };
  const auto mark = [&](std::int32_t column) {
    if (marks) atomicOr(bitmap + column / 2 * edges.sizes.row_words, 1u << row % 32);
  };
  for (int i = lane; i < edges.lists.full_counts[line]; i += kLanes) {
    const std::int32_t column = edges.lists.full[begin + i];
    mark(column);
    if (first < end) note(column, planning::sight_of_full(by_query, by_key, first, end, column));
  }
  for (int i = lane; i < edges.lists.partial_counts[line]; i += kLanes) {
    const std::int32_t column = edges.lists.partial[begin + i];
    mark(column);
    const std::uint64_t* const words = edges.lists.bits + (begin + i) * mask.block_words();
    if (first < end)
      note(column, planning::sight_of_partial(by_query, words,
                                              static_cast<std::int32_t>(mask.word_queries()), first,
                                              end, column));
  }
  const std::uint32_t low = __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(queries));
  const std::uint32_t high = __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(queries >> 32));
  if (lane == 0) edges.queries[number] = std::uint64_t{high} << 32 | low;
}

__global__ void __launch_bounds__(kThreads)
    block_edges_kernel(const __grid_constant__ BlockEdges edges,
                       const __grid_constant__ planning::SequenceView sequences) {
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t number = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
       number < edges.sizes.query_words(); number += step)
    add_row(edges, sequences, number);
}

}  // namespace

void write_block_edges(const BlockEdges& edges, const planning::SequenceView& sequences,
                       void* stream) {
  constexpr std::int64_t kMaxBlocks = 1024;
  const std::int64_t words = edges.sizes.bitmap_words() + edges.sizes.key_words();
  Kernel<clear_kernel>::launch(
      {"clear_kernel", grid_of(std::min((words + kThreads - 1) / kThreads, kMaxBlocks)), kThreads,
       stream},
      edges);
  Kernel<block_edges_kernel>::launch(
      {"block_edges_kernel", grid_of((edges.sizes.query_words() + kWarps - 1) / kWarps), kThreads,
       stream},
      edges, sequences);
}

}  // namespace tessera::cuda
