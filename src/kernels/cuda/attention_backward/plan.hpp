#pragma once

#include <cstdint>
#include <string>

#include <tessera/attention.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/family.hpp"
#include "src/walk/backward_walk.hpp"

// How the rows of attention backward on a GPU divide a problem, on every architecture: host
// arithmetic that planners and launches share.
namespace tessera::planning {

struct BackwardLayout {
  std::int64_t tiles = 0;         // shares of key tiles of all KV heads, upper bound
  std::int64_t blocks = 0;        // thread blocks that take tiles, or parts of them
  std::int64_t query_blocks = 0;  // numbers of blocks of queries per head
  TileShares tile_shares;         // what divides the walk of a key tile
  std::int64_t section = 1;       // shares whose tiles are handed out in turns
  double waits = 0;               // seconds for which shares wait for each other
  bool alternates = false;        // every other section ascends
  bool rotates = false;  // tiles begin at blocks of their own; there are sums for both parts
  int chains = 1;        // sums of dQ that tiles add to in turns, where they do not rotate
  double slowdown = 1;   // by waits of tiles for each other, and by what L2 does not hold
  // Turn counters per block of queries; 0: the main kernel adds dQ in any order, or does not add
  // it.
  int turns = 1;
  bool copies_dout = false;  // rows of dout cannot be copied in words of 16 bytes
  EdgeSizes edges;           // of a block mask
  AttentionLayout dq;        // of the kernel that computes dQ alone; no tiles: there is none
};

/// Thread blocks per key tile: each has `n` of its keys.
constexpr int key_parts(const Tile& tile) { return kKeysPerTile / tile.n; }

/// Key tiles of all KV heads, an upper bound where sequences are packed.
std::int64_t key_tiles_of(const AttentionBackwardShape& s);

struct TileOrder;  // order.hpp
/// `turns`: turn counters per block of queries, where sums of dQ have an order; 0: there are none.
BackwardLayout backward_layout(const AttentionBackwardShape& s, int turns, TileShares tile_shares,
                               const TileOrder& order);

/// Bytes of the sums of dQ, where the main kernel adds them up.
double sums_bytes(const AttentionBackwardShape& s, const BackwardLayout& layout, const Tile& tile);

/// Adds the reasons that depend on a layout.
void refuse_backward_layout(const AttentionBackwardShape& s, const BackwardLayout& layout,
                            Reasons& reasons);
std::string describe_backward(const BackwardLayout& layout);

/// The factor by which padded head dimensions, blocks at edges and lists of half key tiles enlarge
/// the work of a row.
double padding_of(const AttentionBackwardShape& s, const Tile& tile);
/// Seconds of the kernels before and after the main one, beside their bytes.
double seconds_around(const BackwardLayout& layout);
/// Seconds to move `work_bytes`, and to write all sums and read them again.
double memory_seconds(const AttentionBackwardShape& s, const BackwardLayout& layout,
                      const Tile& tile, double work_bytes, const DeviceFacts& device);

/// The walk of a problem; `edges` are in the workspace.
BackwardWalk backward_walk(const AttentionProblem& problem, const AttentionShape& shape,
                           const BackwardLayout& layout, const BlockEdges& edges);

/// The kernels' memory, inside the workspace. Of each block of queries of a head, in the order of
/// RowBlocks: statistics of its queries, sums of dQ, and turn counters.
struct BackwardScratch {
  float* lse = nullptr;           // -log2(e) * lse, in the order of `mixed_query`
  float* delta = nullptr;         // rowsum(dO * O) - dlse, likewise
  float* dq = nullptr;            // in the order of `SumsOrder`; null: the main kernel adds none
  std::int32_t* turns = nullptr;  // null: sums of dQ are added in any order
  int turns_per_block = 0;
  int sums = 1;                        // of each block and head, which are added up at last
  int cleared = 0;                     // numbers of a block's sums that have to be zero at first
  std::int32_t* ticket = nullptr;      // key tiles, or parts of them, handed out
  float *dk = nullptr, *dv = nullptr;  // sums of shares: [rows of k, shares, dim or dim_v]
  void* dout = nullptr;                // a readable copy: [rows of q, heads, dim_v]
  BlockEdges edges;
  AttentionScratch dq_walk;  // of the kernel that computes dQ alone
};
BackwardScratch carve_backward(core::Carver& carver, const AttentionShape& s,
                               const BackwardLayout& layout, const Tile& tile);

/// Where a block's statistics have query `query`: a thread of a wgmma consumer needs the queries
/// 8 g + 2 c and 8 g + 2 c + 1 of all g for its c, and reads four of them at once. No bank is read
/// twice.
TESSERA_HD constexpr int mixed_query(int query) {
  const int g = query / 8 % 8, c = query / 2 % 4;
  return c * 16 + ((g / 2) ^ (c / 2)) * 4 + g % 2 * 2 + query % 2;
}

/// The order of a block's sums of dQ. Each group of eight columns has 512 numbers: for each 16
/// queries those of the accumulators of an MMA, which has four per lane.
enum class SumsOrder : std::uint8_t {
  by_lane,         // the four of lane 0, then those of lane 1: bulk copies of whole groups
  by_accumulator,  // the first of all lanes, then the second: 128 bytes per instruction of a warp
};
TESSERA_HD constexpr int sum_index(SumsOrder order, int query, int column) {
  const int lane = query % 8 * 4 + column % 8 / 2, accumulator = query / 8 % 2 * 2 + column % 2;
  const int within = order == SumsOrder::by_lane ? lane * 4 + accumulator : accumulator * 32 + lane;
  return column / 8 * 512 + query / 16 * 128 + within;
}

}  // namespace tessera::planning
