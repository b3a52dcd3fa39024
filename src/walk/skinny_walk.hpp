#pragma once

#include <cstdint>

#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

// The part of the product that a thread block of sm90/skinny computes: one output tile and, with
// split-K in a cluster, the share of the depth for its rank. Steps divide K in a dense operand, and
// the stored blocks of a block row in a sparse one.
namespace tessera::planning::skinny {

inline constexpr int kLine = 64;  // depth of a step

/// The output tile of a thread block, and the block's role in its cluster.
struct TileAt {
  int tile, row, row_end, col, batch;
  int rank;       // split-K: the share of the depth
  int neighbour;  // index among the cluster's tiles that load columns for each other
};

/// `args` are the kernel's arguments. `cluster` and `rank`: the thread block's cluster along x, and
/// its rank there. `y` is the tile of columns, `z` the batch.
template <int kN, class Arguments>
TESSERA_HD constexpr TileAt tile_of(const Arguments& args, int cluster, int rank, unsigned y,
                                    unsigned z) {
  TileAt at;
  at.rank = rank;
  at.tile = cluster;
  at.neighbour = 0;
  if (args.together > 1) {  // a cluster of tiles without split-K
    at.neighbour = at.rank;
    at.tile = at.tile * args.together + at.rank;
    at.rank = 0;
  }
  at.row = at.tile * args.height;
  at.row_end = min_of(at.row + args.height, args.m);
  at.col = static_cast<int>(y) * kN;
  at.batch = static_cast<int>(z);
  return at;
}

/// The steps of one thread block.
struct Share {
  int first = 0, count = 0;  // steps [first, first + count)
  int begin = 0;             // dense: the step to start with; the walk wraps around
  // Sparse: the list entry, and the part of its block, of the first step.
  int entry = 0, part = 0;
  // Sparse: the tile's first row within its blocks; position of the list's first block.
  int row = 0, matrix = 0;
  BsrRow list{};

  TESSERA_HD constexpr int end_depth() const { return (first + count) * kLine; }
  static constexpr int kTogether = 32;  // list entries per read
  /// The block column of an entry; -1 if it is out of range.
  TESSERA_HD constexpr int column(int index) const {
    const std::int64_t at = list.begin + index;
    return at < list.end ? static_cast<int>(list.column(at)) : 0;
  }
};

/// The share of a thread block. `kRotatesDepth`: dense tiles start at different depths and wrap
/// around. The stride of the left operand's rows is often a power of two, and tiles in lockstep
/// would access the same few memory channels. The code avoids divisions, as the whole block waits
/// for the first load.
template <bool kRotatesDepth, class Arguments>
TESSERA_HD constexpr Share share_of(const Arguments& args, const TileAt& at) {
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
  share.first = each * at.rank + min_of(at.rank, rest);
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

}  // namespace tessera::planning::skinny
