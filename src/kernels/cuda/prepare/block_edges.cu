#include "src/kernels/cuda/prepare/block_edges.hpp"

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"

// The transposed view of a composed mask. One warp takes one row of lists of one sequence, its
// lanes the entries. Bits are set by OR, so results do not depend on the order of warps.
namespace tessera::cuda {
namespace {

using planning::BlockEdges;

constexpr int kThreads = 256, kWarps = kThreads / kLanes;

__global__ void __launch_bounds__(kThreads) clear_kernel(BlockEdges edges) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < edges.sizes.bitmap_words(); i += step) edges.bitmap[i] = 0;
  for (std::int64_t i = first; i < edges.sizes.key_words(); i += step) edges.keys[i] = 0;
}

__global__ void __launch_bounds__(kThreads)
    block_edges_kernel(const __grid_constant__ BlockEdges edges,
                       const __grid_constant__ planning::SequenceView sequences) {
  const int lane = threadIdx.x % kLanes;
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t number = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
       number < edges.sizes.query_words(); number += step) {
    const std::uint64_t queries = planning::add_edges(
        edges, sequences, number, lane, kLanes,
        [](std::uint32_t* word, std::uint32_t bit) { atomicOr(word, bit); },
        [](std::uint64_t* word, std::uint64_t bits) {
          atomicOr(reinterpret_cast<unsigned long long*>(word),
                   static_cast<unsigned long long>(bits));
        });
    const unsigned low = __reduce_or_sync(kAllLanes, static_cast<unsigned>(queries));
    const unsigned high = __reduce_or_sync(kAllLanes, static_cast<unsigned>(queries >> 32));
    if (lane == 0) edges.queries[number] = std::uint64_t{high} << 32 | low;
  }
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
