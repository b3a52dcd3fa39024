#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/sm90/product/epilogue.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/walk/list_walk.hpp"

// Which part of the product a thread block computes: one tile, and of the tile's depth the share of
// its rank in the cluster. Dense: steps of K. Sparse: steps of the stored blocks of a row of
// blocks.
namespace tessera::cuda::sm90::skinny {

struct Arguments {
  CUtensorMap a, b;
  product::Finish finish;
  int m = 0, n = 0;
  int height = 0;                          // rows per tile
  int splits = 1, stages = 0, owned = 0;   // owned: maximum pieces of columns per block
  int together = 1;                        // blocks that load the columns for each other
  int a_batch_step = 0, b_batch_step = 0;  // 0: shared by all batches
  std::uint64_t policy = 0;                // L2 policy of the left side
  int each = 0, rest = 0;  // dense: steps per rank; the first `rest` ranks have one more
  // Sparse a.
  bool sparse = false;
  planning::BsrView lists;
  int per_block = 1, parts = 1;  // row tiles per block; steps per block
  std::int64_t pool_step = 0;    // stored blocks per batch; 0: one pool
};

/// The output tile of this block, and the block's place in its cluster.
struct TileAt {
  int tile, row, row_end, col, batch;
  int rank;       // which share of the depth
  int neighbour;  // which of the tiles that load columns for each other
};

/// Blocks of a cluster lie along x, as do tiles of rows; tiles of columns along y, batches along z.
template <int kN>
__device__ __forceinline__ TileAt tile_of(const Arguments& args) {
  TileAt at;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(at.rank));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(at.tile));
  at.neighbour = 0;
  if (args.together > 1) {  // a cluster of tiles without split-K
    at.neighbour = at.rank;
    at.tile = at.tile * args.together + at.rank;
    at.rank = 0;
  }
  at.row = at.tile * args.height;
  at.row_end = min(at.row + args.height, args.m);
  at.col = static_cast<int>(blockIdx.y) * kN;
  at.batch = static_cast<int>(blockIdx.z);
  return at;
}

/// The steps of one block.
struct Share {
  int first = 0, count = 0;
  int begin = 0;  // dense: the step that comes first; the others follow, wrapping around
  int entry = 0,
      part = 0;  // sparse: the entry of the list, and the part of its block, where they begin
  int row = 0,
      matrix = 0;  // sparse: the tile's first row in its blocks; position of the list's first block
  planning::BsrRow list{};

  __device__ int end_depth() const { return (first + count) * tile::kLine; }
  static constexpr int kTogether = 32;  // list entries per read
  /// The block column of an entry, -1 where it names none.
  __device__ int column(int entry) const {
    const std::int64_t at = list.begin + entry;
    return at < list.end ? static_cast<int>(list.column(at)) : 0;
  }
};

/// `kRotatesDepth`: dense tiles begin at different depths and wrap around. Rows of the left side
/// are often a power of two apart, and tiles in step with each other would access the same few
/// memory channels. Divisions take long while the whole block waits for the first load: most are
/// avoided.
template <bool kRotatesDepth>
__device__ __forceinline__ Share share_of(const Arguments& args, const TileAt& at) {
  Share share;
  int each = args.each, rest = args.rest;
  if (args.sparse) {
    int row = at.tile, within = 0;
    if (args.per_block > 1) row = at.tile / args.per_block, within = at.tile % args.per_block;
    share.list = args.lists.row(at.batch, row);
    share.row = within * args.height;
    share.matrix = static_cast<int>(share.list.begin + at.batch * args.pool_step);
    each = static_cast<int>(share.list.size()) * args.parts, rest = 0;
    if (args.splits > 1) rest = each % args.splits, each /= args.splits;
  }
  share.first = each * at.rank + min(at.rank, rest);
  share.count = each + (at.rank < rest ? 1 : 0);
  share.begin = share.first;
  if (kRotatesDepth && !args.sparse) {
    const std::uint32_t mixed = static_cast<std::uint32_t>(at.tile) * 0x9E3779B9u >> 16;
    share.begin += static_cast<int>(mixed * static_cast<std::uint32_t>(share.count) >> 16);
  }
  share.entry = share.first;
  if (args.parts > 1) share.entry = share.first / args.parts, share.part = share.first % args.parts;
  return share;
}

}  // namespace tessera::cuda::sm90::skinny
