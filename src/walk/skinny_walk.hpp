#pragma once

#include <cstdint>

#include "src/walk/lanes.hpp"
#include "src/walk/list_walk.hpp"

// Which part of the product a thread block of sm90/skinny computes: one tile, and of the tile's
// depth the share of its rank in the cluster. Dense: steps of K. Sparse: steps of the stored blocks
// of a row of blocks.
namespace tessera::planning::skinny {

inline constexpr int kLine = 64;  // depth of a step

/// The output tile of this block, and the block's place in its cluster.
struct TileAt {
  int tile, row, row_end, col, batch;
  int rank;       // which share of the depth
  int neighbour;  // which of the tiles that load columns for each other
};

/// `Arguments` of these functions: what a kernel of this family gets, less what the walk does not
/// need. `cluster` and `rank`: the thread block's cluster along x, and its place there; tiles of
/// columns lie along y, batches along z.
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

/// The steps of one block.
struct Share {
  int first = 0, count = 0;
  int begin = 0;  // dense: the step that comes first; the others follow, wrapping around
  int entry = 0,
      part = 0;  // sparse: the entry of the list, and the part of its block, where they begin
  int row = 0,
      matrix = 0;  // sparse: the tile's first row in its blocks; position of the list's first block
  BsrRow list{};

  TESSERA_HD constexpr int end_depth() const { return (first + count) * kLine; }
  static constexpr int kTogether = 32;  // list entries per read
  /// The block column of an entry, -1 where it names none.
  TESSERA_HD constexpr int column(int index) const {
    const std::int64_t at = list.begin + index;
    return at < list.end ? static_cast<int>(list.column(at)) : 0;
  }
};

/// `kRotatesDepth`: dense tiles begin at different depths and wrap around. Rows of the left side
/// are often a power of two apart, and tiles in step with each other would access the same few
/// memory channels. Divisions take long while the whole block waits for the first load: most are
/// avoided.
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
