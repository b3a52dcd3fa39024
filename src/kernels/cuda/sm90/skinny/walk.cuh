#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/walk/list_walk.hpp"
#include "src/walk/skinny_walk.hpp"

// The kernel's parameters, and the output tile of a CTA. src/walk/skinny_walk.hpp defines what a
// tile walks.
namespace tessera::cuda::sm90::skinny {

struct Arguments {
  CUtensorMap a, b;
  product::Finish finish;
  int m = 0, n = 0;
  int height = 0;                          // rows per tile
  int splits = 1, stages = 0, owned = 0;   // owned: pieces of 16 columns per CTA, at most
  int together = 1;                        // CTAs of a cluster that share the loads of B
  int a_batch_step = 0, b_batch_step = 0;  // 0: one matrix for all batches
  std::uint64_t policy = 0;                // L2 policy of the left operand
  int each = 0, rest = 0;  // dense: steps per rank; the first `rest` ranks have one more
  // A sparse left operand.
  bool sparse = false;
  planning::BsrView lists;
  int per_block = 1, parts = 1;  // row tiles per block; steps per block
  std::int64_t pool_step = 0;    // stored blocks per batch; 0: one pool
};

using planning::skinny::Share;
using planning::skinny::TileAt;
static_assert(planning::skinny::kLine == tile::kLine);

/// The output tile of this CTA.
template <int kN>
__device__ __forceinline__ TileAt tile_of(const Arguments& args) {
  int rank, cluster;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  return planning::skinny::tile_of<kN>(args, cluster, rank, blockIdx.y, blockIdx.z);
}

}  // namespace tessera::cuda::sm90::skinny
